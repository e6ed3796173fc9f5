// Laws: config.json becomes a recipe; a folder that is incomplete or contradicts itself is one error (exit code 4) that names file and
// remedy; files with and without a head's prefix, with old names and in shards fill the same model; absent heads start at random, absent
// layers are an error.
#include "libcore/weights/hub.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/weights/load.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

constexpr const char* kConfig = R"({"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 30,
  "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 12,
  "hidden_act": "gelu", "layer_norm_eps": 1e-12, "classifier_dropout": null, "dtype": "float32"})";

Tensor filled_layer(Shape shape, double value) {
  Tensor tensor(DType::kF32, shape);
  tensor.from_doubles(std::vector<double>(static_cast<size_t>(shape.elements()), value));
  return tensor;
}

class Hub : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, const std::string& message) { log_ += message + "\n"; });
    make_folders(folder_ / "m");
  }
  void TearDown() override { set_log_sink({}); }
  std::string file(const std::string& name) const { return folder_ / ("m/" + name); }
  void config(const std::string& text) { write_file(file("config.json"), text); }
  void config_with(const std::string& from, const std::string& to) {
    std::string text = kConfig;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    config(text.replace(at, from.size(), to));
  }
  /// The error of reading the folder as a recipe.
  std::string error() const {
    try {
      static_cast<void>(HubFolder(path_).recipe());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.text();
    }
    return "";
  }
  std::string load_error(const std::vector<ExpectedTensor>& model) const {
    try {
      load_weights(model, std::vector{LoadRule{.from = path_}});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.text();
    }
    return "";
  }
  void weights(const std::string& name, const std::vector<std::pair<std::string, double>>& tensors) const {
    std::vector<TensorSource> sources;
    for (const auto& [tensor, value] : tensors) sources.emplace_back(tensor, filled_layer({2, 2}, value));
    write_safetensors(file(name), sources, {});
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "m", log_;
};

void expect_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
}

TEST_F(Hub, ConfigBecomesARecipe) {
  config(kConfig);
  EXPECT_TRUE(is_hub_folder(path_));
  const std::string recipe = HubFolder(path_).recipe();
  expect_has(recipe, {"type: bert\n", "hidden_size: 8\n", "head: \"masked_lm\"\n", "hidden_act: \"gelu\"\n", "layer_norm_eps: 1e-12\n"});
  EXPECT_EQ(recipe.find("classifier_dropout"), std::string::npos) << "null keeps the default";
  EXPECT_EQ(recipe.find("weights:"), std::string::npos) << "the folder has none";
  EXPECT_EQ(recipe.find("tokenizer"), std::string::npos) << "the folder has none";
  weights("model.safetensors", {{"a", 1}});
  write_file(file("vocab.txt"), "[PAD]\n");
  const std::string complete = HubFolder(path_).recipe();
  expect_has(complete, {"weights: \"" + path_ + "\"\n", "tokenizer: {type: hub, path: \"" + path_ + "\"}"});
}

TEST_F(Hub, TheArchitectureIsFoundByEitherKey) {
  config_with("\"architectures\": [\"BertForMaskedLM\"], ", "");
  expect_has(HubFolder(path_).recipe(), {"type: bert\n", "head: \"none\"\n"});
  config_with("\"model_type\": \"bert\", ", "");
  expect_has(HubFolder(path_).recipe(), {"type: bert\n", "head: \"masked_lm\"\n"});
}

TEST_F(Hub, BadConfigurations) {
  expect_has(error(), {"has no config.json", "give the folder of a model"});
  config("{\"model_type\": ");
  expect_has(error(), {file("config.json"), "is not valid JSON"});
  config("{\"vocab_size\": 1e999}");
  expect_has(error(), {file("config.json"), "a number that is too large"});
  config("[]");
  expect_has(error(), {"must be an object"});
  config("{}");
  expect_has(error(), {"neither `architectures` nor `model_type`"});
  config_with("BertForMaskedLM", "BertForMaskedLn");
  expect_has(error(), {"BertForMaskedLn is not supported", "BertForSequenceClassification", "did you mean BertForMaskedLM?"});
  config_with("\"model_type\": \"bert\"", "\"model_type\": \"roberta\"");
  expect_has(error(), {file("config.json"), "BertForMaskedLM, which is a model_type \"bert\", but model_type is \"roberta\""});
  config_with("\"hidden_size\": 8", "\"hidden_size\": 9");
  expect_has(error(), {"hidden_size is 9, which is not a multiple of num_attention_heads, 2"});
  config_with("\"hidden_size\": 8, ", "");
  expect_has(error(), {"the key 'hidden_size' is missing"});
  config_with("\"hidden_size\": 8", "\"hidden_size\": \"8\"");
  expect_has(error(), {"hidden_size: must be an integer"});
  config_with("\"dtype\"", "\"position_embedding_type\": \"relative_key\", \"dtype\"");
  expect_has(error(), {"position_embedding_type: is relative_key", "supports only absolute"});
}

TEST_F(Hub, CategoriesAreThoseOfId2label) {
  config(R"({"model_type": "bert", "id2label": {"1": "good", "0": "bad"}})");
  EXPECT_EQ(HubFolder(path_).categories(), (std::vector<std::string>{"bad", "good"}));
  weights("model.safetensors", {{"a", 1}});
  EXPECT_EQ(read_weights_metadata(path_).at("galley.categories"), "[\"bad\",\"good\"]");
  config(R"({"model_type": "bert", "id2label": {"0": "LABEL_0", "1": "LABEL_1"}})");
  EXPECT_TRUE(HubFolder(path_).categories().empty());
  config(R"({"model_type": "bert", "id2label": {"0": "a", "2": "b"}})");
  EXPECT_THROW(static_cast<void>(HubFolder(path_).categories()), Error);
}

const std::vector<ExpectedTensor> kHead{{"bert.a.weight", DType::kF32, {2, 2}},
                                        {"bert.LayerNorm.weight", DType::kF32, {2, 2}},
                                        {"bert.pooler.weight", DType::kF32, {2, 2}},
                                        {"classifier.weight", DType::kF32, {2, 2}}};
const std::vector<ExpectedTensor> kBase{{"a.weight", DType::kF32, {2, 2}}, {"LayerNorm.weight", DType::kF32, {2, 2}}};

TEST_F(Hub, FilesWithAndWithoutPrefixFillModelsWithAndWithout) {
  config(kConfig);
  weights("model.safetensors", {{"bert.a.weight", 1}, {"bert.LayerNorm.gamma", 2}, {"cls.x", 3}, {"bert.embeddings.position_ids", 4}});
  LoadedWeights loaded = load_weights(kHead, std::vector{LoadRule{.from = path_}});
  EXPECT_EQ(loaded.tensors.at("bert.a.weight").at({0, 0}), 1);
  EXPECT_EQ(loaded.tensors.at("bert.LayerNorm.weight").at({0, 0}), 2);
  EXPECT_EQ(loaded.kept, (std::vector<std::string>{"bert.pooler.weight", "classifier.weight"}));
  expect_has(log_, {"2 tensors of the model are not in the folder and start at random: bert.pooler.weight, classifier.weight",
                    "1 tensors of the folder are not used: cls.x"});
  loaded = load_weights(kBase, std::vector{LoadRule{.from = path_}});
  EXPECT_EQ(loaded.tensors.at("a.weight").at({0, 0}), 1);

  weights("model.safetensors", {{"a.weight", 5}, {"LayerNorm.weight", 6}, {"pooler.weight", 7}});
  loaded = load_weights(kBase, std::vector{LoadRule{.from = path_}});
  EXPECT_EQ(loaded.tensors.at("LayerNorm.weight").at({0, 0}), 6);
  loaded = load_weights(kHead, std::vector{LoadRule{.from = path_}});
  EXPECT_EQ(loaded.tensors.at("bert.a.weight").at({0, 0}), 5);
  EXPECT_EQ(loaded.tensors.at("bert.pooler.weight").at({0, 0}), 7);
  EXPECT_EQ(loaded.kept, std::vector<std::string>{"classifier.weight"});
}

TEST_F(Hub, AnAbsentLayerIsAnError) {
  config(kConfig);
  weights("model.safetensors", {{"bert.LayerNorm.weight", 2}});
  expect_has(load_error(kHead), {"missing", "bert.a.weight"});
  weights("model.safetensors", {{"LayerNorm.weight", 2}});
  expect_has(load_error(kBase), {"missing", "a.weight"});
}

TEST_F(Hub, ATiedOutputLayerIsTheEmbedding) {
  config(kConfig);
  const std::string table = "bert.embeddings.word_embeddings.weight", copy = "cls.predictions.decoder.weight";
  const std::vector<ExpectedTensor> model{{table, DType::kF32, {2, 2}}};
  weights("model.safetensors", {{table, 1}, {copy, 1}});
  EXPECT_EQ(load_error(model), "");
  weights("model.safetensors", {{table, 1}, {copy, 2}});
  expect_has(load_error(model), {"m/model.safetensors: error: ", copy + " differs from " + table, "set tie_word_embeddings to false"});
  config_with("BertForMaskedLM", "BertForSequenceClassification");
  EXPECT_EQ(load_error(model), "") << "of a classifier: no output layer";
}

TEST_F(Hub, ShardsAreOneFile) {
  config(kConfig);
  weights("one.safetensors", {{"a.weight", 1}});
  weights("two.safetensors", {{"LayerNorm.weight", 2}});
  const std::string index =
      R"({"metadata": {"total_size": 32}, "weight_map": {"LayerNorm.weight": "two.safetensors", "a.weight": "one.safetensors"}})";
  write_file(file("model.safetensors.index.json"), index);
  const LoadedWeights loaded = load_weights(kBase, std::vector{LoadRule{.from = path_}});
  EXPECT_EQ(loaded.tensors.at("a.weight").at({1, 1}), 1);
  EXPECT_EQ(loaded.tensors.at("LayerNorm.weight").at({1, 1}), 2);
  weights("two.safetensors", {{"other", 2}});
  expect_has(load_error(kBase), {"two.safetensors does not contain the tensor 'LayerNorm.weight'"});
  std::filesystem::remove(file("two.safetensors"));
  expect_has(load_error(kBase), {"two.safetensors is missing", "download the file again"});
  write_file(file("model.safetensors.index.json"), R"({"weight_map": {"a.weight": "../one.safetensors"}})");
  expect_has(load_error(kBase), {"'../one.safetensors' is not the name of a file in this folder"});
}

TEST_F(Hub, WeightsWithoutAConfigurationAndTheReverse) {
  weights("model.safetensors", {{"a.weight", 1}});
  expect_has(load_error(kBase), {"has no config.json"});
  config(kConfig);
  std::filesystem::remove(file("model.safetensors"));
  expect_has(load_error(kBase), {"has a config.json, but no weights"});
}

TEST(HubNames, TransposedMatricesAndCopiesOfTiedWeights) {
  const HubTensors rules{.base = "t", .ignore = {"*.mask", "head.weight"}, .transposed = {"*.c.weight"}};
  const std::vector<HubName> tied = hub_names(rules, {"t.c.weight", "t.mask", "head.weight"}, {"t.c.weight"});
  EXPECT_TRUE(tied[0].transposed && !tied[0].ignored);
  EXPECT_TRUE(tied[1].ignored && tied[2].ignored);
  EXPECT_FALSE(hub_names(rules, {"head.weight"}, {"t.c.weight", "head.weight"})[0].ignored) << "a model whose head has its own weights";
}

}  // namespace
}  // namespace galley
