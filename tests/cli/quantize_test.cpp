// galley-quantize as a user runs it, on a MobileNetV3 that PyTorch trained (tests/golden/train): JSON and tensors, the file in every tool,
// and rejected input.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

const std::string kGolden = GALLEY_SOURCE_DIR "/tests/golden/train";
const std::string kWeights = "weights=" + kGolden + "/weights.safetensors";

class Quantize : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    recipe = folder + "/model.yaml";
    const std::string normalize = "{type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}";
    write_text(recipe,
               "recipe: 1\nname: model\nthreads: 2\nmodel: {type: mobilenet_v3_small, num_classes: 10, width_mult: 0.1, dropout: 0}\n"
               "data:\n  root: " +
                   kGolden +
                   "\n"
                   "  train: {source: {type: tensors, path: train.safetensors}, pipeline: [" +
                   normalize +
                   "], shuffle: false}\n"
                   "  val: {source: {type: tensors, path: val.safetensors}, pipeline: [" +
                   normalize +
                   "], batch: 10}\n"
                   "  calibration: {samples: 24, batch: 8}\n"
                   "quantize: {activations: {observer: min_max}}\n"
                   "train: {duration: 1 step, batch: 8, optimizer: {type: sgd, lr: 0.02}}\n");
  }
  std::string path(const std::string& name) const { return folder + "/" + name; }

  Outcome quantize(const std::string& output, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{recipe, "-o", path(output), "--format", "json"};
    if (std::none_of(more.begin(), more.end(), [](const std::string& word) { return word.starts_with("weights="); }))
      words.push_back(kWeights);
    words.insert(words.end(), more.begin(), more.end());
    return run("galley-quantize", words);
  }
  Json quantized(const std::string& output, const std::vector<std::string>& more = {}) const {
    const Outcome outcome = quantize(output, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }
  Json evaluated(const std::string& weights, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{recipe, "weights=" + weights, "--format", "json", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-evaluate", words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }
  Json shown(const std::string& file) const {
    const Outcome outcome = run("galley-weights", {"show", path(file), "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }
  /// Expects this exit code and these words on stderr, nothing on stdout, and no file.
  void refused(const Outcome& outcome, int code, const std::vector<std::string>& words, const std::string& output) const {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in " << outcome.err;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      EXPECT_FALSE(entry.path().filename().string().starts_with(output)) << entry.path();
  }
  void calibrate(const std::string& output, const std::string& weights = kWeights) const {
    const Outcome outcome = run("galley-calibrate", {recipe, weights, "-o", path(output), "-q"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  std::string folder, recipe;
};

TEST_F(Quantize, GivesTheObjectAndTheTensorsOfTheContract) {
  calibrate("stats.calib");
  const Json result = quantized("model.int8.safetensors", {"--calibration", path("stats.calib"), "--evaluate"});
  ASSERT_EQ(result["layers"].size(), 52u);
  for (const Json& layer : result["layers"]) {
    EXPECT_TRUE(layer["float_reason"].is_null());
    // 8 bits relative to the largest of at least 9 weights of a channel: at least 40 dB. A wrong axis or scale halves that.
    EXPECT_TRUE(layer["sqnr_weight_db"].get<double>() > 38) << layer;
    EXPECT_TRUE(layer["type"] == "conv2d" || layer["type"] == "linear");
    EXPECT_TRUE(layer["scheme"].get<std::string>().starts_with("int8 per channel symmetric")) << layer;
    if (layer["name"] == "classifier.3") {
      EXPECT_TRUE(layer["sqnr_activation_db"].is_null());  // its output is float
    } else {
      EXPECT_TRUE(layer["sqnr_activation_db"].get<double>() > 30) << layer;
    }
  }
  EXPECT_EQ(result["nodes"]["quantize"], 1);
  EXPECT_EQ(result["nodes"]["dequantize"], 0);
  EXPECT_TRUE(result["goal"].is_null());
  EXPECT_EQ(result["bytes"], std::filesystem::file_size(path("model.int8.safetensors")));
  EXPECT_EQ(result["provenance"]["tool"], "galley-quantize");
  // Two of 24 samples: the effect of 52 layers with 8 bits on such a narrow network.
  EXPECT_TRUE(std::fabs(result["metrics"]["quantized"]["top1"].get<double>() - result["metrics"]["float"]["top1"].get<double>()) <=
              100.0 * 2 / 24 + 1e-9)
      << result["metrics"];

  std::map<std::string, std::string> dtypes;
  const Json file = shown("model.int8.safetensors");
  for (const Json& tensor : file["tensors"]) dtypes[tensor["name"]] = tensor["dtype"];
  const std::string layer = "features.4.block.2.fc1";
  for (const char* leaf :
       {"weight", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "output_scale", "output_zero_point", "bias"})
    EXPECT_EQ(dtypes.count(layer + "." + leaf), 1u) << leaf;
  EXPECT_EQ(dtypes[layer + ".weight"], "i8");
  EXPECT_EQ(dtypes[layer + ".weight_scale"], "f32");
  EXPECT_EQ(file["files"][0]["scheme"], "static: 52 of 52 layers in int8");
  EXPECT_EQ(Json::parse(file["metadata"]["galley.metrics"].get<std::string>()), result["metrics"]);
  const Json parents = Json::parse(file["metadata"]["galley.parents"].get<std::string>());
  ASSERT_EQ(parents.size(), 2u);
  EXPECT_EQ(parents[0]["file"], kGolden + "/weights.safetensors");
  EXPECT_EQ(parents[1]["file"], path("stats.calib"));
  const Outcome text = run("galley-weights", {"show", path("model.int8.safetensors")});
  EXPECT_NE(text.out.find("static: 52 of 52 layers in int8"), std::string::npos);
  EXPECT_NE(text.out.find("stats.calib"), std::string::npos);
  EXPECT_NE(text.out.find(" quantized"), std::string::npos);

  // In every tool, the file determines that it is quantized.
  EXPECT_EQ(evaluated(path("model.int8.safetensors"))["metrics"], result["metrics"]["quantized"]);
  EXPECT_EQ(evaluated(path("model.int8.safetensors"), {"quantize.method=dynamic"})["metrics"], result["metrics"]["quantized"]);
  const Json against = evaluated(kGolden + "/weights.safetensors", {"--against", path("model.int8.safetensors")});
  EXPECT_EQ(against["metrics"], result["metrics"]["float"]);
  EXPECT_EQ(against["against"], result["metrics"]["quantized"]);
  ASSERT_EQ(against["layers"].size(), 52u);
  EXPECT_EQ(against["layers"][0]["module"], "features.0.0");
  EXPECT_TRUE(against["layers"][0]["sqnr_db"].get<double>() > 30);
  const Outcome predicted =
      run("galley-predict", {recipe, "weights=" + path("model.int8.safetensors"), "--tensors", kGolden + "/val.safetensors", "-o",
                             path("out.safetensors"), "--capture", "features.3*", "-q"});
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(run("galley-weights", {"verify", path("model.int8.safetensors"), "--strict"}).code, 0);
}

TEST_F(Quantize, WithoutAFileItCalibratesItselfToTheSameIntegers) {
  calibrate("stats.calib");
  quantized("a.safetensors", {"--calibration", path("stats.calib")});
  const Json result = quantized("b.safetensors");
  EXPECT_EQ(result["calibration_samples"], 24);
  EXPECT_TRUE(result["metrics"].is_null());
  EXPECT_EQ(tensor_bytes(path("a.safetensors")), tensor_bytes(path("b.safetensors")));
}

TEST_F(Quantize, LayersOfTheOverridesStayInFloat) {
  write_text(path("keep.yaml"), "quantize: {overrides: [{match: [features.0, classifier.3], keep: float}]}\n");
  const Json result = quantized("model.safetensors", {"--with", path("keep.yaml")});
  for (const Json& layer : result["layers"]) {
    const bool kept = layer["name"] == "features.0.0" || layer["name"] == "classifier.3";
    EXPECT_EQ(layer["float_reason"], kept ? Json("override") : Json()) << layer;
  }
  EXPECT_EQ(result["nodes"]["quantize"], 1);          // after the first convolution
  EXPECT_EQ(result["nodes"]["inner_dequantize"], 0);  // classifier.0 outputs float values itself
  EXPECT_EQ(evaluated(path("model.safetensors"))["samples"], 24);

  write_text(path("wrong.yaml"), "quantize: {overrides: [{match: features.0.1.block, keep: float}]}\n");
  refused(quantize("none.safetensors", {"--with", path("wrong.yaml")}), 3, {"features.0.1.block", "quantize.overrides.0", "features."},
          "none");
}

TEST_F(Quantize, DynamicAndWeightOnly) {
  refused(quantize("none.safetensors", {"method=dynamic"}), 3, {"50 layers have no kernel", "features.0.0 (conv2d)", "fallback=float"},
          "none");
  const Json dynamic = quantized("dynamic.safetensors", {"method=dynamic", "fallback=float"});
  int64_t reasons = 0;
  for (const Json& layer : dynamic["layers"]) reasons += layer["float_reason"] == "no kernel: dynamic quantization does not support conv2d";
  EXPECT_EQ(reasons, 50);
  EXPECT_EQ(dynamic["quantized_layers"], 2);
  EXPECT_EQ(dynamic["calibration_samples"], 0);

  quantized("eight.safetensors", {"method=weight_only"});
  const Json four = quantized("four.safetensors", {"method=weight_only", "quantize.weights.dtype=int4", "quantize.weights.group_size=32"});
  EXPECT_TRUE(four["layers"][0]["scheme"].get<std::string>().starts_with("int4")) << four["layers"][0];
  const double loss = evaluated(kGolden + "/weights.safetensors")["metrics"]["loss"];
  // 8-bit weights change the loss by 1 or 2 %; a scale of the wrong channel gives the loss of guessing, at least 2.3.
  for (const std::string name : {"dynamic", "eight"}) {
    const double after = evaluated(path(name + ".safetensors"))["metrics"]["loss"];
    EXPECT_TRUE(std::fabs(after - loss) < 0.1) << name << ": " << after << " after " << loss;
  }
  EXPECT_EQ(evaluated(path("four.safetensors"))["samples"], 24);
}

TEST_F(Quantize, F8HasAFileOfItsOwn) {
  const Json result = quantized("model.f8.safetensors", {"quantize.weights.dtype=f8_e4m3", "--evaluate"});
  ASSERT_EQ(result["layers"].size(), 52u);
  for (const Json& layer : result["layers"]) {
    EXPECT_EQ(layer["scheme"], "f8_e4m3 per channel symmetric, f8_e4m3 symmetric (min_max), f32 result") << layer;
    // 3 bits of fraction: 32.5 dB for values of all fractions alike; a few weights of a channel differ from that.
    EXPECT_GT(layer["sqnr_weight_db"].get<double>(), 29) << layer;
    // A byte of four, and a scale for each channel, which has at least 9 weights.
    if (layer["type"] != "linear") continue;
    EXPECT_LT(layer["bytes"].get<double>(), 0.35 * layer["bytes_float"].get<double>()) << layer;
  }
  EXPECT_EQ(result["nodes"]["quantize"], 0);
  EXPECT_EQ(evaluated(path("model.f8.safetensors"))["metrics"], result["metrics"]["quantized"]);
  // As many samples as of int8, which is more exact.
  EXPECT_LE(std::fabs(result["metrics"]["quantized"]["top1"].get<double>() - result["metrics"]["float"]["top1"].get<double>()),
            100.0 * 2 / 24 + 1e-9)
      << result["metrics"];
  const Json file = shown("model.f8.safetensors");
  std::map<std::string, std::string> dtypes;
  for (const Json& tensor : file["tensors"]) dtypes[tensor["name"]] = tensor["dtype"];
  EXPECT_EQ(dtypes["features.0.0.weight"], "f8_e4m3");
  EXPECT_EQ(dtypes["features.0.0.weight_scale"], "f32");
  EXPECT_EQ(dtypes["features.0.0.input_scale"], "f32");
  EXPECT_EQ(dtypes.count("features.0.0.weight_zero_point"), 0u);
  EXPECT_EQ(file["files"][0]["scheme"], "static: 52 of 52 layers in f8_e4m3");
  EXPECT_EQ(run("galley-weights", {"verify", path("model.f8.safetensors"), "--strict"}).code, 0);

  const Outcome exported =
      run("galley-weights", {"export", recipe, "weights=" + path("model.f8.safetensors"), "-o", path("f8.onnx"), "-q"});
  EXPECT_EQ(exported.code, 3);
  EXPECT_NE(exported.err.find("opset 19"), std::string::npos) << exported.err;
  refused(quantize("none.safetensors", {"quantize.weights.dtype=f8_e4m3", "method=weight_only"}), 3,
          {"quantize.weights.dtype", "only method: static supports"}, "none");
}

TEST_F(Quantize, CalibrationsOfOthersAreRefused) {
  const Outcome trained = run("galley-train", {recipe, "-o", path("run"), "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  calibrate("other.calib", "weights=" + path("run/weights.safetensors"));
  refused(quantize("none.safetensors", {"--calibration", path("other.calib")}), 4, {"other.calib", "belong to other weights"}, "none");
  const Outcome model = quantize(
      "none.safetensors", {"--calibration", path("other.calib"), "weights=" + path("run/weights.safetensors"), "model.reduced_tail=true"});
  EXPECT_TRUE(model.code == 3 || model.code == 4) << model.err;
  refused(quantize("none.safetensors", {"--calibration", path("absent.calib")}), 4, {"absent.calib"}, "none");
  refused(quantize("none.safetensors", {"--calibration", kGolden + "/weights.safetensors"}), 4, {"not a calibration", "galley-calibrate"},
          "none");

  calibrate("stats.calib");
  std::string bytes = read_text(path("stats.calib"));
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  write_text(path("damaged.calib"), bytes);
  refused(quantize("none.safetensors", {"--calibration", path("damaged.calib")}), 4, {"damaged.calib"}, "none");
}

TEST_F(Quantize, DamagedAndForeignFilesAreRefused) {
  quantized("model.safetensors", {"method=weight_only"});
  const std::string good = read_text(path("model.safetensors"));
  std::string bytes = good;
  bytes[bytes.size() - 10] = static_cast<char>(bytes[bytes.size() - 10] ^ 1);
  write_text(path("flipped.safetensors"), bytes);
  Outcome outcome = run("galley-evaluate", {recipe, "weights=" + path("flipped.safetensors")});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  // A plan with a misspelt layer name. Without digests, as in files of other programs, only the contents can show the error.
  uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof length);
  Json header = Json::parse(good.substr(8, length));
  Json kept{{"galley.quantization", header["__metadata__"]["galley.quantization"]}};
  const auto with_plan = [&](const std::string& from, const std::string& to) {
    std::string plan = kept["galley.quantization"];
    plan.replace(plan.find(from), from.size(), to);
    Json changed = header;
    changed["__metadata__"] = Json{{"galley.quantization", plan}};
    write_text(path("changed.safetensors"), safetensors_of(changed.dump(), good.substr(8 + length)));
    return run("galley-evaluate", {recipe, "weights=" + path("changed.safetensors")});
  };
  outcome = with_plan("classifier.3", "classifier.9");
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("another model"), std::string::npos) << outcome.err;
  outcome = with_plan("weight_only", "weight_many");
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("quantize again"), std::string::npos) << outcome.err;
}

TEST_F(Quantize, QuantizedWeightsAreNotTrainedNorQuantizedAgain) {
  quantized("model.safetensors", {"method=weight_only"});
  const std::string weights = "weights=" + path("model.safetensors");
  const Outcome trained = run("galley-train", {recipe, weights, "-o", path("run")});
  EXPECT_EQ(trained.code, 3) << trained.err;
  EXPECT_NE(trained.err.find("are quantized"), std::string::npos) << trained.err;
  EXPECT_NE(trained.err.find("galley.parents"), std::string::npos) << trained.err;
  refused(quantize("none.safetensors", {weights}), 3, {"are quantized"}, "none");
  const Outcome mean =
      run("galley-weights", {"average", path("model.safetensors"), path("model.safetensors"), "-o", path("mean.safetensors")});
  EXPECT_EQ(mean.code, 4) << mean.err;
}

TEST_F(Quantize, WritesWholeFilesOrNone) {
  const Outcome full = run_limited("galley-quantize", {recipe, kWeights, "method=weight_only", "-o", path("none.safetensors")}, 20'000);
  refused(full, 7, {}, "none");
  refused(quantize("absent/none.safetensors"), 7, {"absent does not exist"}, "none");
  refused(quantize("none.onnx"), 2, {"does not match the extension .onnx", "none.safetensors"}, "none.onnx");
  const Outcome nowhere = run("galley-quantize", {recipe, kWeights});
  EXPECT_EQ(nowhere.code, 2) << nowhere.err;
  const Outcome dry = quantize("none.safetensors", {"--dry-run", "method=weight_only"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(Json::parse(dry.out, nullptr, false)["quantized_layers"], 52);
  EXPECT_FALSE(std::filesystem::exists(path("none.safetensors")));
}

TEST_F(Quantize, MeasuresLayers) {
  const Json result = quantized("model.safetensors", {"--measure=1,4"});
  for (const Json& layer : result["layers"]) {
    for (const char* key : {"float_ms", "quantized_ms", "predicted_float_ms", "predicted_quantized_ms"})
      EXPECT_TRUE(layer[key].get<double>() > 0) << key << " of " << layer;
  }
  ASSERT_EQ(result["times"].size(), 2u);
  EXPECT_EQ(result["times"][0]["batch"], 1);
  EXPECT_EQ(result["times"][1]["batch"], 4);
}

// Swin's windows and shifts depend on the image: the file is for the size of the data, not the model's default, and stores that size.
TEST_F(Quantize, WindowsOfAnotherNumber) {
  write_text(recipe,
             "recipe: 1\nname: model\nthreads: 2\nmodel: {type: swin_t, embed_dim: 8, depths: [2, 2], num_heads: [1, 2], num_classes: 4}\n"
             "data:\n  train: {source: {type: synthetic, samples: 4, shape: [3, 32, 32], classes: 4}}\n  val: {source: {type: synthetic, "
             "samples: 4, shape: [3, 32, 32], classes: 4}}\n"
             "  calibration: {samples: 4, pipeline: train}\ntrain: {duration: 1 step, batch: 4, optimizer: {type: sgd, lr: 0.01}}\n");
  ASSERT_EQ(run("galley-train", {recipe, "-o", path("run"), "-q"}).code, 0);
  const std::string weights = "weights=" + path("run") + "/weights.safetensors";
  const Json result = quantized("swin.int8.safetensors", {weights});
  EXPECT_GT(result["layers"].size(), 8u);
  EXPECT_EQ(shown("swin.int8.safetensors")["metadata"]["galley.input"], "[3,32,32]");
  calibrate("swin.calib", weights);
  quantized("again.int8.safetensors", {weights, "--calibration", path("swin.calib")});
  EXPECT_EQ(evaluated(path("swin.int8.safetensors"))["metrics"], evaluated(path("again.int8.safetensors"))["metrics"]);
  const Outcome exported = run("galley-weights", {"export", recipe, "weights=" + path("swin.int8.safetensors"), "-o", path("swin.onnx")});
  EXPECT_EQ(exported.code, 0) << exported.err;
  // Windows are shifted in larger images only; the plan is that of both.
  const Outcome other = run(
      "galley-weights", {"export", recipe, "weights=" + path("swin.int8.safetensors"), "-o", path("other.onnx"), "--shape", "3,224,224"});
  EXPECT_EQ(other.code, 0) << other.err;
}

}  // namespace
}  // namespace galley::testing_cli
