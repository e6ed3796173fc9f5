// Laws: the folders of model hubs in tests/golden/hub, exported, compute the results of transformers when they are read back, for sizes
// that no capture had; decoders do so with earlier tokens and without. The nodes of four files are those of
// tests/golden/onnx_text/exported, which scripts ran in ONNX Runtime (tests/golden/onnx_text/check_exported.py).

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "libcore/infer/components.h"
#include "libcore/infer/export_onnx.h"
#include "libcore/infer/generate.h"
#include "libcore/onnx/onnx.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/safetensors.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

std::string hub(const std::string& name) { return GALLEY_SOURCE_DIR "/tests/golden/hub/" + name; }

/// float32 rounding through two blocks, in another order of sums.
constexpr double kExported = 1e-5;

void write(const std::string& folder, const std::string& path, const ExportOptions& options, std::vector<std::string> overrides = {}) {
  overrides.emplace_back("threads=2");
  const LoadedRecipe loaded = load_recipe(folder, recipe_components(), {.overrides = std::move(overrides)});
  const Session session(loaded.recipe);
  export_onnx(session, path, options);
}

std::vector<std::string> names_of(const std::vector<OnnxValue>& values) {
  std::vector<std::string> names;
  for (const OnnxValue& value : values) names.push_back(value.name);
  return names;
}
std::string shape_of(const OnnxValue& value) {
  std::string text;
  for (const OnnxDimension& size : value.shape) text += cat(text.empty() ? "" : ", ", size.size ? std::to_string(*size.size) : size.name);
  return text;
}

class ExportedEncoders : public testing::TestWithParam<std::string> {};

TEST_P(ExportedEncoders, ComputeTheResultsOfTransformers) {
  const TemporaryFolder folder;
  write(hub(GetParam()), folder / "m.onnx", {});
  const OnnxFile file(folder / "m.onnx");
  EXPECT_EQ(file.model().opset(), 17);
  for (const OnnxValue& input : file.model().inputs) EXPECT_EQ(shape_of(input), "batch_size, sequence_length") << input.name;
  const SafetensorsFile expected(hub(GetParam()) + "/expected.safetensors");
  const Component model = onnx_component(folder / "m.onnx");
  EXPECT_EQ(model_info(model).fixed_batch, 0);
  std::vector<Tensor> inputs;
  for (const ModelInput& input : model_info(model).all_inputs()) {
    if (input.name != "position_ids") {
      inputs.push_back(expected.read(input.name));
      continue;
    }
    inputs.emplace_back(DType::kI64, inputs.front().shape());  // of decoders that classify
    for (int64_t i = 0; i < inputs.back().elements(); ++i) inputs.back().data_as<int64_t>()[i] = i % inputs.front().shape()[1];
  }
  const std::vector<std::string> given = names_of(file.model().inputs);
  EXPECT_EQ(given.at(0), "input_ids");
  EXPECT_EQ(given.at(1), "attention_mask");
  for (const auto& [name, got] : compute_outputs(model, inputs)) {
    const Tensor wanted = expected.read(name);
    ASSERT_EQ(got.shape(), wanted.shape()) << name;
    const double difference = largest_difference(got, wanted);
    EXPECT_TRUE(difference <= kExported * std::max(1.0, largest(wanted))) << name << ": " << difference << " of " << largest(wanted);
  }
}
INSTANTIATE_TEST_SUITE_P(Folders, ExportedEncoders,
                         testing::Values("bert_masked", "bert_base", "bert_classes", "roberta_tokens", "xlm_roberta_masked",
                                         "electra_replaced", "electra_masked", "distilbert_answers", "albert_masked", "bert_next",
                                         "bert_pretraining", "albert_pretraining", "gpt2_classes", "llama_classes"),
                         [](const auto& info) { return info.param; });

TEST(ExportedEncodersOf, FixedSizesAreThoseAskedFor) {
  const TemporaryFolder folder;
  write(hub("bert_classes"), folder / "m.onnx", {.batch = 2, .shape = {7}});
  const OnnxFile file(folder / "m.onnx");
  EXPECT_EQ(shape_of(file.model().inputs[0]), "2, 7");
  EXPECT_EQ(shape_of(file.model().outputs[0]), "2, 3");
}

class ExportedDecoders : public testing::TestWithParam<std::string> {
 protected:
  static const nlohmann::json& expected() {
    static const nlohmann::json all = nlohmann::json::parse(std::ifstream(hub("decoders.json")));
    return all;
  }
};

TEST_P(ExportedDecoders, GenerateWhatTransformersGenerates) {
  const TemporaryFolder folder;
  const nlohmann::json& want = expected()["folders"][GetParam()];
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "with a cache" : "without");
    const std::string path = folder / cat(cache, ".onnx");
    write(hub(GetParam()), path, {.cache = cache});
    const OnnxFile file(path);
    EXPECT_EQ(file.model().inputs.size(), cache ? 7u : 3u);
    EXPECT_EQ(shape_of(file.model().inputs[1]),
              cache ? "batch_size, past_sequence_length + sequence_length" : "batch_size, sequence_length");
    EXPECT_EQ(shape_of(file.model().outputs[0]), "batch_size, sequence_length, 304");
    if (cache) {
      EXPECT_EQ(file.model().inputs[3].name, "past_key_values.0.key");
      EXPECT_EQ(file.model().outputs[4].name, "present.1.value");
    }
    std::ofstream(folder / "recipe.yaml") << "recipe: 1\nthreads: 2\ndata: {tokenizer: {type: hub, path: " << hub("tokenizer")
                                          << "}}\nmodel: {type: onnx, path: " << path << ", shape: [64]}\n";
    const LoadedRecipe loaded = load_recipe(folder / "recipe.yaml", recipe_components(), {});
    Session session(loaded.recipe);
    EXPECT_EQ(session.info().cache, cache);
    LanguageModel model(session);
    std::vector<std::vector<int64_t>> prompts;
    for (const auto& row : want["results"]) prompts.push_back(row["ids"].get<std::vector<int64_t>>());
    const std::vector<Generation> got = generate(model, prompts, {.max_new_tokens = expected()["new_tokens"].get<int64_t>()});
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(nlohmann::json(got[i].tokens), want["results"][i]["new"]) << i;
    const Tensor logits = model.next_logits({expected()["ids"].get<std::vector<int64_t>>()});
    double most = 0;
    for (const double value : want["logits"].get<std::vector<double>>()) most = std::max(most, std::fabs(value));
    for (int64_t i = 0; i < 300; ++i)
      ASSERT_NEAR(logits.data_as<float>()[i], want["logits"][static_cast<size_t>(i)].get<double>(), kExported * most) << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Folders, ExportedDecoders, testing::Values("gpt2", "gpt_neo", "llama", "mistral", "qwen2", "qwen3", "phi3"),
                         [](const auto& info) { return info.param; });

/// The nodes of a file as text, one a line.
std::vector<std::string> lines_of(const OnnxModel& model) {
  std::vector<std::string> lines;
  for (const OnnxNode& node : model.nodes) {
    std::string line = node.op_type;
    for (const std::string& input : node.inputs) line += cat(" ", input);
    line += " ->";
    for (const std::string& output : node.outputs) line += cat(" ", output);
    for (const OnnxAttribute& attribute : node.attributes) {
      line += cat(" ", attribute.name, "=", attribute.i, ",", attribute.f, ",", attribute.s);
      for (const int64_t value : attribute.ints) line += cat(",", value);
      if (attribute.tensor) line += cat(",", attribute.tensor->dtype_text, attribute.tensor->shape);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

TEST(Exported, NodesAreThoseThatOnnxRuntimeRan) {
  for (const std::string name : {"bert_classes", "roberta_tokens", "gpt2", "llama"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    write(hub(name), folder / "m.onnx", {});
    const std::string golden = GALLEY_SOURCE_DIR "/tests/golden/onnx_text/exported/" + name + ".onnx";
    EXPECT_EQ(lines_of(OnnxFile(folder / "m.onnx").model()), lines_of(OnnxFile(golden).model()))
        << "if the change is meant, run tests/golden/onnx_text/check_exported.py, which checks the new nodes in ONNX Runtime and stores "
           "them";
  }
}

}  // namespace
}  // namespace galley
