// ONNX as a user encounters it: a MobileNetV3 that PyTorch trained (tests/golden/train) is exported, read back as a model and as weights by
// every tool, and exported quantized; damaged files and files that are not models give the right exit code.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/onnx/records.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

const std::string kTrainedFolder = GALLEY_SOURCE_DIR "/tests/golden/train";
const std::string kTrainedWeights = "weights=" + kTrainedFolder + "/weights.safetensors";

class Onnx : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    write_text(path("zoo.yaml"), text("{type: mobilenet_v3_small, num_classes: 10, width_mult: 0.1, dropout: 0}"));
    write_text(path("onnx.yaml"), text("{type: onnx, path: model.onnx}"));
  }
  static std::string text(const std::string& model) {
    const std::string normalize = "{type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}";
    return "recipe: 1\nname: model\nthreads: 2\nmodel: " + model + "\ndata:\n  root: " + kTrainedFolder +
           "\n  train: {source: {type: tensors, path: train.safetensors}, pipeline: [" + normalize +
           "], shuffle: false}\n  val: {source: {type: tensors, path: val.safetensors}, pipeline: [" + normalize +
           "], batch: 10}\n  calibration: {samples: 24, batch: 8}\nquantize: {activations: {observer: min_max}}\n"
           "train: {duration: 2 steps, batch: 8, optimizer: {type: sgd, lr: 0.02}}\n";
  }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  /// Runs in the folder that contains the recipe's model.onnx.
  Outcome in_folder(const std::string& command) const { return shell("cd " + folder + " && " + command); }
  std::string done(const std::string& command) const {
    const Outcome outcome = in_folder(command);
    EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
    return outcome.out;
  }
  void refused(const std::string& command, int code, const std::vector<std::string>& words) const {
    const Outcome outcome = in_folder(command);
    EXPECT_EQ(outcome.code, code) << command << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "");
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in " << outcome.err;
  }
  std::vector<float> predicted(const std::string& recipe, const std::string& rest) const {
    done("galley-predict " + recipe + " " + rest + " --tensors " + kTrainedFolder + "/val.safetensors -o out.safetensors --batch 10 -q");
    const std::string bytes = tensor_bytes(path("out.safetensors"));
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), 4 * values.size());
    return values;
  }
  static double largest(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    EXPECT_FALSE(a.empty());
    double difference = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      difference = d <= difference ? difference : d;
    }
    return difference;
  }

  std::string folder;
};

TEST_F(Onnx, IsModelAndWeights) {
  const Json report =
      Json::parse(done("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o model.onnx --format json"));
  EXPECT_EQ(report["scheme"], "float");
  EXPECT_EQ(report["provenance"]["tool"], "galley-weights");
  const std::vector<float> own = predicted("zoo.yaml", kTrainedWeights);
  EXPECT_EQ(largest(own, predicted("zoo.yaml", "weights=model.onnx")), 0);  // the same parameters
  EXPECT_LE(largest(own, predicted("onnx.yaml", "")), 1e-5);  // float32 rounding; import recognizes silu and similar functions
  done("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o folded.onnx --fold --batch 10");
  EXPECT_LE(largest(own, predicted("onnx.yaml", "model.path=folded.onnx")), 1e-4);  // folded numbers are rounded once more
  refused("galley-predict zoo.yaml weights=folded.onnx --tensors " + kTrainedFolder + "/val.safetensors -o out.safetensors", 4,
          {"features.0.1.running_mean", "do_constant_folding=False", "type: onnx"});

  const Json shown = Json::parse(done("galley-weights show model.onnx --format json"));
  EXPECT_EQ(shown["files"][0]["format"], "ONNX");
  EXPECT_TRUE(shown["metadata"].contains("galley.recipe"));
  EXPECT_EQ(Json::parse(done("galley-weights verify model.onnx --strict --format json"))["files"][0]["complete"], true);
  const Json difference = Json::parse(done("galley-weights diff model.onnx " + kTrainedFolder + "/weights.safetensors --format json"));
  for (const Json& tensor : difference["tensors"]) {
    const std::string name = tensor["name"];
    EXPECT_TRUE(tensor["verdict"] == "same" || name.ends_with("num_batches_tracked")) << tensor;
  }
}

TEST_F(Onnx, EveryToolTakesAFileAsTheModel) {
  done("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o model.onnx");
  const Json zoo = Json::parse(done("galley-evaluate zoo.yaml " + kTrainedWeights + " --format json -q")),
             onnx = Json::parse(done("galley-evaluate onnx.yaml --format json -q"));
  EXPECT_EQ(zoo["metrics"]["top1"], onnx["metrics"]["top1"]);
  done("galley-train onnx.yaml -o run -q");
  EXPECT_NE(read_text(path("run/recipe.yaml")).find(folder + "/model.onnx"), std::string::npos) << "the model's path is to be absolute";
  EXPECT_TRUE(Json::parse(done("galley-evaluate run --format json -q")).contains("metrics"));
  done("galley-calibrate onnx.yaml -o stats.calib -q");
  const Json quantized =
      Json::parse(done("galley-quantize onnx.yaml --calibration stats.calib -o q.safetensors --evaluate --format json -q"));
  EXPECT_EQ(quantized["layers"].size(), 52u);  // as for the zoo's model
  EXPECT_NEAR(quantized["metrics"]["float"]["top1"].get<double>(), onnx["metrics"]["top1"].get<double>(), 1e-9);
  done("galley-evaluate onnx.yaml weights=q.safetensors -q");
  done("galley-benchmark onnx.yaml what=forward benchmark.stop.max_time=0.2s -q");
  done("galley-profile onnx.yaml profile.schedule.active=1 -q");
  done("galley-recipes validate onnx.yaml");
  done("galley-weights export onnx.yaml -o again.onnx");
  EXPECT_EQ(largest(predicted("onnx.yaml", ""), predicted("onnx.yaml", "model.path=again.onnx")), 0);
}

TEST_F(Onnx, QuantizedWeightsBecomeNodesThatRound) {
  done("galley-calibrate zoo.yaml " + kTrainedWeights + " -o stats.calib -q");
  for (const std::string method : {"static", "weight_only"}) {
    done("galley-quantize zoo.yaml " + kTrainedWeights + " method=" + method + (method == "static" ? " --calibration stats.calib" : "") +
         " -o q.safetensors -q");
    const Json report = Json::parse(done("galley-weights export zoo.yaml --shape 3,48,48 weights=q.safetensors -o q.onnx --format json"));
    EXPECT_NE(report["scheme"].get<std::string>().find(method), std::string::npos) << report;
    const std::vector<float> integers = predicted("zoo.yaml", "weights=q.safetensors"), read = predicted("onnx.yaml", "model.path=q.onnx"),
                             real = predicted("zoo.yaml", kTrainedWeights);
    const double rounding = largest(real, integers), difference = largest(integers, read);
    EXPECT_GT(rounding, 0) << method;
    // Static: a value near the middle between two levels may round the other way if float32 sums have another order. This effect is much
    // smaller than that of quantization.
    EXPECT_LE(difference, method == "static" ? rounding / 2 : 1e-4) << method << ", rounding " << rounding;
    // Rounding has no gradient; weights stored as integers become floats.
    if (method == "static") refused("galley-train onnx.yaml model.path=q.onnx -o run -q", 4, {"no gradient", "QuantizeLinear"});
  }
  done("galley-quantize zoo.yaml " + kTrainedWeights + " method=dynamic quantize.fallback=float -o d.safetensors -q");
  refused("galley-weights export zoo.yaml weights=d.safetensors -o d.onnx", 3, {"dynamic", "quantize.method=static"});
}

// The table of a tied head is in the file once, as rows of int8 that lookups and the head read.
TEST_F(Onnx, ATiedTableOfIntegersIsExported) {
  const std::string gpt2 = GALLEY_SOURCE_DIR "/tests/golden/hub/gpt2";
  const std::vector<int64_t> ids{5, 100, 303, 17, 0, 42, 7, 7, 250, 1, 90, 3};
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t));
  write_text(path("ids.safetensors"), safetensors_of(R"({"input_ids":{"dtype":"I64","shape":[2,6],"data_offsets":[0,96]}})", bytes));
  write_text(path("decoder.yaml"), "recipe: 1\nname: decoder\nthreads: 1\nmodel: {type: onnx, path: q.onnx}\n");
  done("galley-quantize " + gpt2 + " method=weight_only -o q.safetensors -q");
  done("galley-weights export " + gpt2 + " weights=q.safetensors -o q.onnx");
  const auto logits = [&](const std::string& model) {
    done("galley-predict " + model + " threads=1 --tensors ids.safetensors -o out.safetensors -q");
    const std::string values = tensor_bytes(path("out.safetensors"), "logits");
    std::vector<float> floats(values.size() / sizeof(float));
    std::memcpy(floats.data(), values.data(), values.size());
    return floats;
  };
  const std::vector<float> integers = logits(gpt2 + " weights=q.safetensors");
  EXPECT_GT(largest(logits(gpt2), integers), 1e-3) << "int8 rounds";
  EXPECT_LE(largest(logits("decoder.yaml"), integers), 2e-5);
  const Json shown = Json::parse(done("galley-weights show q.onnx --format json"));
  int tables = 0;
  for (const Json& tensor : shown["tensors"]) {
    const std::string name = tensor["name"];
    tables += tensor["shape"] == Json::array({304, 16});
    EXPECT_TRUE(name != "transformer.wte.weight" || tensor["dtype"] == "i8") << tensor;
  }
  EXPECT_EQ(tables, 1);
}

/// A model from left, right [N,3] to their sum and their difference.
std::string two_inputs() {
  using namespace onnx_records;
  const std::string values =
      input(value("left", size(3))) + input(value("right", size(3))) + output(value("sum", size(3))) + output(value("difference", size(3)));
  return model(node("Add", in("left") + in("right"), out("sum")) + node("Sub", in("left") + in("right"), out("difference")) + values);
}

TEST_F(Onnx, InputsAndOutputsHaveTheFilesNames) {
  write_text(path("two.onnx"), two_inputs());
  write_text(path("two.yaml"),
             "recipe: 1\nname: two\nthreads: 1\nmodel: {type: onnx, path: two.onnx, outputs: [difference, sum]}\ntask: classification\n"
             "data: {root: " +
                 folder + ", val: {source: {type: tensors, path: data.safetensors}, batch: 2}}\n");
  const float left[] = {1, 2, 9, 0, 7, 1, 8, -1, 0}, right[] = {0, 1, 1, 1, 1, 0, -2, 0, 1};
  const int64_t label[] = {2, 1, 0};
  const std::string inputs =
      std::string(reinterpret_cast<const char*>(left), sizeof left) + std::string(reinterpret_cast<const char*>(right), sizeof right);
  write_text(
      path("data.safetensors"),
      safetensors_of(
          R"({"left":{"dtype":"F32","shape":[3,3],"data_offsets":[0,36]},"right":{"dtype":"F32","shape":[3,3],"data_offsets":[36,72]},)"
          R"("label":{"dtype":"I64","shape":[3],"data_offsets":[72,96]}})",
          inputs + std::string(reinterpret_cast<const char*>(label), sizeof label)));
  done("galley-predict two.yaml --tensors data.safetensors -o out.safetensors -q");
  float sum[9];
  ASSERT_EQ(tensor_bytes(path("out.safetensors"), "sum").size(), sizeof sum);
  std::memcpy(sum, tensor_bytes(path("out.safetensors"), "sum").data(), sizeof sum);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(sum[i], left[i] + right[i]);
  done("galley-predict two.yaml model.outputs=difference --tensors data.safetensors -o one.safetensors -q");
  EXPECT_EQ(tensor_bytes(path("one.safetensors"), "difference"), tensor_bytes(path("out.safetensors"), "difference"));
  // The task reads the first output: the largest difference is the label.
  EXPECT_EQ(Json::parse(done("galley-evaluate two.yaml --format json -q"))["metrics"]["top1"], 100.0);
  EXPECT_LT(Json::parse(done("galley-evaluate two.yaml model.outputs=sum,difference --format json -q"))["metrics"]["loss"].get<double>(),
            1.0);
  done("galley-benchmark two.yaml what=forward benchmark.stop.max_time=0.1s -q");
  refused("galley-evaluate two.yaml model.outputs=quotient", 3, {"quotient", "sum, difference"});
  refused("galley-evaluate two.yaml model.shape=3", 3, {"several inputs", "left, right"});
  refused("galley-predict two.yaml --tensors out.safetensors -o x.safetensors", 4, {"left"});
}

TEST_F(Onnx, ADecoderGeneratesAndTrainsAsItsFolder) {
  const std::string hub = GALLEY_SOURCE_DIR "/tests/golden/hub/", tokenizer = "{type: hub, path: " + hub + "tokenizer}";
  std::string words;
  for (int i = 0; i < 20; ++i) words += "To be, or not to be, that is the question. ";
  write_text(path("text.txt"), words);
  const std::string rest = "\ndata:\n  tokenizer: " + tokenizer +
                           "\n  train: {source: {type: text, path: text.txt, sequence_length: 16}}\n"
                           "train: {duration: 3 steps, batch: 2, optimizer: {type: sgd, lr: 0.01}}\nlog: {every: 1 step}\nthreads: 1\n";
  write_text(path("folder.yaml"), "recipe: 1\nmodel: {type: hub, path: " + hub + "llama}\nweights: " + hub + "llama" + rest);
  write_text(path("file.yaml"), "recipe: 1\nmodel: {type: onnx, path: llama.onnx, shape: [64]}" + rest);
  done("galley-weights export folder.yaml -o llama.onnx");
  const auto tokens = [&](const std::string& recipe) {
    return Json::parse(done("galley-predict " + recipe + " --prompt 'To be' generate.max_new_tokens=8 --format json -q"))["tokens"];
  };
  EXPECT_EQ(tokens("file.yaml"), tokens("folder.yaml"));
  const auto loss = [&](const std::string& recipe) {
    done("galley-train " + recipe + " -o " + recipe + ".run -q");
    const Json json = Json::parse(done("galley-evaluate " + recipe + ".run data.val='{from: train}' --format json -q"));
    return json["metrics"]["loss"].get<double>();
  };
  const double wanted = loss("folder.yaml");
  EXPECT_GT(wanted, 1);
  EXPECT_NEAR(loss("file.yaml"), wanted, 1e-5 * wanted);
}

TEST_F(Onnx, AWholeRunIsOneSample) {
  using namespace onnx_records;
  write_text(path("whole.onnx"), model(node("Flatten", in("input"), out("y"), integer("axis", 2)) + input(fixed("input", {2, 3, 4})) +
                                       output(fixed("y", {6, 4}))));
  write_text(path("whole.yaml"), "recipe: 1\nname: whole\nthreads: 1\nmodel: {type: onnx, path: whole.onnx}\ntask: null\n");
  std::string values;
  for (int i = 0; i < 48; ++i) values += float_bytes(static_cast<float>(i));
  write_text(path("in.safetensors"), safetensors_of(R"({"input":{"dtype":"F32","shape":[2,2,3,4],"data_offsets":[0,192]}})", values));
  done("galley-predict whole.yaml --tensors in.safetensors -o out.safetensors -q");
  EXPECT_EQ(tensor_bytes(path("out.safetensors")), values) << "two samples, each by itself, in other shapes";
  const Outcome two = in_folder("galley-benchmark whole.yaml what=forward batch=2 -q");
  EXPECT_EQ(two.code, 3);
  for (const char* word : {"one sample per run", "one row for each sample"}) EXPECT_NE(two.err.find(word), std::string::npos) << two.err;
}

TEST_F(Onnx, MistakesHaveTheirExitCodes) {
  refused("galley-weights export zoo.yaml " + kTrainedWeights, 2, {"-o"});
  refused("galley-weights export -o m.onnx", 2, {"recipe"});
  refused("galley-weights export zoo.yaml " + kTrainedWeights + " -o m.safetensors", 2, {"m.onnx"});
  refused("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o m.onnx --batch 0", 2, {"--batch"});
  refused("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o m.onnx --shape=3,x", 2, {"--shape"});
  refused("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o missing/m.onnx", 7, {"missing"});
  refused("galley-weights export zoo.yaml weights=missing.safetensors -o m.onnx", 4, {"missing.safetensors"});
  refused("galley-evaluate onnx.yaml", 4, {"model.onnx"});
  refused("galley-evaluate onnx.yaml --unset model.path", 3, {"path"});

  done("galley-weights export zoo.yaml --shape 3,48,48 " + kTrainedWeights + " -o model.onnx");
  const std::string whole = read_text(path("model.onnx"));
  write_text(path("model.onnx"), whole.substr(0, whole.size() / 2));
  refused("galley-evaluate onnx.yaml", 4, {"model.onnx"});
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 4);
  write_text(path("model.onnx"), flipped);
  refused("galley-evaluate onnx.yaml", 4, {"digest"});
  refused("galley-evaluate zoo.yaml weights=model.onnx", 4, {"digest"});
  write_text(path("model.onnx"), std::string("\x08\x08\x3a\x02\x0a\x00", 6));
  refused("galley-evaluate onnx.yaml", 4, {"has no op_type"});
  for (const char* name : {"m.onnx", "m.safetensors"}) EXPECT_FALSE(std::filesystem::exists(path(name))) << name;
}

}  // namespace
}  // namespace galley::testing_cli
