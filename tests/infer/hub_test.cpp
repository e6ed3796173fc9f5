// Laws: folders that transformers saved (tests/golden/hub, made by make_hub.py there) give the results of transformers, for tensors and for
// texts of any length in any batch; the recipe of a folder, dumped, loads to the same recipe; a recipe may take its model from the folder
// of its weights.

#include "libcore/weights/hub.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/data/source.h"
#include "libcore/infer/components.h"
#include "libcore/infer/predict.h"
#include "libcore/infer/text_predictor.h"
#include "libcore/nn/language_model.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

std::string folder_of(const std::string& name) { return GALLEY_SOURCE_DIR "/tests/golden/hub/" + name; }

Recipe recipe_of(const std::string& recipe, std::vector<std::string> overrides = {}) {
  overrides.emplace_back("threads=2");
  return load_recipe(recipe, recipe_components(), {.overrides = std::move(overrides)}).recipe;
}

/// f32 rounding through two blocks of width 8.
constexpr double kTolerance = 2e-5;

void expect_near(const std::string& what, const Tensor& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.elements(), static_cast<int64_t>(expected.size())) << what;
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs(static_cast<double>(got.data_as<float>()[i]) - expected[i]) <= kTolerance * largest))
      ADD_FAILURE() << what << " element " << i << " is " << got.data_as<float>()[i] << ", of transformers " << expected[i];
  }
}

class HubFolders : public testing::TestWithParam<std::string> {};

TEST_P(HubFolders, GiveTheResultsOfTransformers) {
  const std::string folder = folder_of(GetParam());
  const SafetensorsFile expected(folder + "/expected.safetensors");
  const Recipe recipe = recipe_of(folder);
  Session session(recipe);
  std::map<std::string, Tensor> arrays;
  std::set<std::string> inputs;
  for (const ModelInput& input : session.info().all_inputs()) {
    if (expected.find(input.name) == nullptr) continue;
    arrays.emplace(input.name, expected.read(input.name));
    inputs.insert(input.name);
  }
  EXPECT_TRUE(inputs.contains("input_ids") && inputs.contains("attention_mask"));
  Predictor predictor(session, open_arrays(arrays, "expected"), {}, {.batch = 2});
  session.initialize(predictor.parameters(), predictor.store());
  std::map<std::string, std::vector<double>> results;
  predictor.run([&](const PredictedBatch& batch) {
    for (size_t i = 0; i < batch.outputs.size(); ++i) {
      const std::vector<double> all = batch.outputs[i].to_doubles();
      const size_t row = all.size() / static_cast<size_t>(batch.outputs[i].shape()[0]);
      std::vector<double>& into = results[predictor.outputs()[i]];
      into.insert(into.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(row * batch.indices.size()));
    }
  });
  size_t compared = 0;
  for (const SafetensorsEntry& entry : expected.entries()) {
    if (inputs.contains(entry.name) || entry.name == "token_type_ids") continue;
    ++compared;
    ASSERT_TRUE(results.contains(entry.name)) << entry.name;
    Tensor got(DType::kF32, entry.shape);
    ASSERT_EQ(static_cast<int64_t>(results.at(entry.name).size()), got.elements());
    got.from_doubles(results.at(entry.name));
    expect_near(entry.name, got, expected.read(entry).to_doubles());
  }
  EXPECT_EQ(compared, results.size());
}

TEST_P(HubFolders, TheirRecipeLoadsBack) {
  const LoadedRecipe loaded = load_recipe(folder_of(GetParam()), recipe_components(), {});
  TemporaryFolder folder;
  for (const DumpKind kind : {DumpKind::kMin, DumpKind::kFull}) {
    std::ofstream(folder / "again.yaml") << dump_recipe(loaded, kind);
    EXPECT_EQ(dump_recipe(load_recipe(folder / "again.yaml", recipe_components(), {}), DumpKind::kFull),
              dump_recipe(loaded, DumpKind::kFull));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HubFolders,
                         testing::Values("bert_masked", "bert_old", "bert_base", "bert_classes", "roberta_tokens", "xlm_roberta_masked",
                                         "electra_replaced", "electra_masked", "distilbert_answers", "albert_masked", "bert_next",
                                         "bert_pretraining", "albert_pretraining", "gpt2_classes", "llama_classes"),
                         [](const auto& info) { return info.param; });

void run_texts(TextPredictor& predictor, const std::vector<std::string>& texts,
               const std::function<void(size_t, const TextResult&)>& take) {
  predictor.run(texts.size(), [&](size_t i) { return predictor.row(texts[i], nullptr, cat("text ", i)); }, take);
}

nlohmann::json texts_of(const std::string& name) { return nlohmann::json::parse(std::ifstream(folder_of(name) + "/texts.json")); }

/// The results of texts.json, alone and in batches, where their tokens are padded to others' lengths.
void expect_texts(const std::string& name, const std::vector<std::string>& overrides, const std::string& output) {
  const nlohmann::json expected = texts_of(name);
  for (const int64_t batch : {1, 3, 8}) {
    SCOPED_TRACE(cat(name, ", batch ", batch));
    const Recipe recipe = recipe_of(folder_of(name), overrides);
    Session session(recipe);
    TextPredictor predictor(session, batch);
    std::vector<std::string> texts;
    for (const auto& row : expected) texts.push_back(row["text"]);
    size_t next = 0;
    run_texts(predictor, texts, [&](size_t index, const TextResult& result) {
      EXPECT_EQ(index, next++);
      EXPECT_EQ(nlohmann::json(result.tokens), expected[index]["ids"]);
      EXPECT_FALSE(result.shortened);
      expect_near(texts[index], result.outputs.at(output), expected[index][output].get<std::vector<double>>());
    });
    EXPECT_EQ(next, texts.size());
  }
}

TEST(HubTexts, LogitsAreThoseOfTransformers) {
  expect_texts("bert_classes", {}, "logits");
  expect_texts("gpt2_classes", {}, "logits");  // by the last token
}
TEST(HubTexts, VectorsAreThoseOfTransformers) { expect_texts("bert_base", {"model.head=embedding"}, "embedding"); }

/// Results with a value for each token have as many as the text, without those of padding. Their mean, of length 1, is the vector of
/// transformers.
TEST(HubTexts, ResultsOfTokensEndWithTheText) {
  const nlohmann::json expected = texts_of("bert_base");
  for (const int64_t batch : {1, 3, 8}) {
    SCOPED_TRACE(cat("batch ", batch));
    const Recipe recipe = recipe_of(folder_of("bert_base"), {"model.head=none"});
    Session session(recipe);
    TextPredictor predictor(session, batch);
    std::vector<std::string> texts;
    for (const auto& row : expected) texts.push_back(row["text"]);
    run_texts(predictor, texts, [&](size_t index, const TextResult& result) {
      const Tensor& hidden = result.outputs.at("last_hidden_state");
      const std::vector<double> vector = expected[index]["embedding"];
      const auto tokens = static_cast<int64_t>(expected[index]["ids"].size()), width = static_cast<int64_t>(vector.size());
      ASSERT_EQ(hidden.shape(), (Shape{1, tokens, width})) << texts[index];
      std::vector<double> sums(vector.size());
      for (int64_t i = 0; i < tokens * width; ++i) sums[static_cast<size_t>(i % width)] += static_cast<double>(hidden.data_as<float>()[i]);
      double squares = 0;
      for (const double sum : sums) squares += sum * sum;
      Tensor mean(DType::kF32, {1, width});
      for (int64_t i = 0; i < width; ++i) mean.data_as<float>()[i] = static_cast<float>(sums[static_cast<size_t>(i)] / std::sqrt(squares));
      expect_near(texts[index], mean, vector);
    });
  }
}

// Pairs of texts: ids, types and logits, also where both are cut to 24 tokens. A prediction alone and in a batch are the same.
TEST(HubTexts, PairsAreThoseOfTransformers) {
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(folder_of("bert_classes") + "/pairs.json"));
  ASSERT_GE(expected.size(), 6u);
  const Recipe recipe = recipe_of(folder_of("bert_classes"));
  Session session(recipe);
  TextPredictor predictor(session, 4);
  const auto row = [&](size_t i) {
    const std::string text = expected[i]["text"], pair = expected[i]["pair"];
    TextRow made = predictor.row(text, &pair, "pair");
    EXPECT_EQ(nlohmann::json(made.ids), expected[i]["ids"]) << text;
    EXPECT_EQ(nlohmann::json(made.types), expected[i]["types"]) << text;
    EXPECT_EQ(made.shortened, made.ids.size() == 24) << text;
    return made;
  };
  size_t next = 0;
  predictor.run(expected.size(), row, [&](size_t index, const TextResult& result) {
    EXPECT_EQ(index, next++);
    expect_near(expected[index]["text"], result.outputs.at("logits"), expected[index]["logits"].get<std::vector<double>>());
  });
  EXPECT_EQ(next, expected.size());
}

/// More texts than are sorted by length at a time.
TEST(HubTexts, ManyTextsKeepTheirOrder) {
  const nlohmann::json expected = texts_of("bert_classes");
  const Recipe recipe = recipe_of(folder_of("bert_classes"));
  Session session(recipe);
  TextPredictor predictor(session, 1);
  std::vector<std::string> texts;
  for (size_t i = 0; i < 150; ++i) texts.push_back(expected[i * i % expected.size()]["text"]);
  size_t next = 0;
  run_texts(predictor, texts, [&](size_t index, const TextResult& result) {
    EXPECT_EQ(index, next);
    EXPECT_EQ(nlohmann::json(result.tokens), expected[next * next % expected.size()]["ids"]);
    ++next;
  });
  EXPECT_EQ(next, texts.size());
}

/// The tokenizer of this folder gives its tokens the type 1; the model's results are those of tokens of this type, fed as arrays.
TEST(HubTexts, TokensHaveTheirTypes) {
  TemporaryFolder folder;
  std::filesystem::copy(folder_of("bert_classes"), folder / "m");
  nlohmann::json tokenizer = nlohmann::json::parse(std::ifstream(folder / "m/tokenizer.json"));
  const auto special = [](const char* name) { return nlohmann::json{{"SpecialToken", {{"id", name}, {"type_id", 1}}}}; };
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {special("[CLS]"), {{"Sequence", {{"id", "A"}, {"type_id", 1}}}}, special("[SEP]")}},
      {"pair", nlohmann::json::array({{{"Sequence", {{"id", "A"}, {"type_id", 1}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
      {"special_tokens",
       {{"[CLS]", {{"id", "[CLS]"}, {"ids", {2}}, {"tokens", {"[CLS]"}}}},
        {"[SEP]", {{"id", "[SEP]"}, {"ids", {3}}, {"tokens", {"[SEP]"}}}}}}};
  std::ofstream(folder / "m/tokenizer.json") << tokenizer;
  const nlohmann::json row = texts_of("bert_classes")[0];
  const std::vector<int64_t> ids = row["ids"];
  const Recipe recipe = recipe_of(folder / "m");
  Session session(recipe);
  const auto array = [&](const std::function<int64_t(size_t)>& value) {
    Tensor tensor(DType::kI64, {1, 24});  // the model's length
    for (size_t t = 0; t < 24; ++t) tensor.data_as<int64_t>()[t] = t < ids.size() ? value(t) : 0;
    return tensor;
  };
  std::map<std::string, Tensor> arrays;
  for (const ModelInput& input : session.info().all_inputs()) {
    if (input.name == "input_ids") arrays.emplace(input.name, array([&](size_t t) { return ids[t]; }));
    if (input.name == "attention_mask" || input.name == "token_type_ids") arrays.emplace(input.name, array([](size_t) { return 1; }));
  }
  ASSERT_EQ(arrays.size(), 3u);
  Predictor fed(session, open_arrays(arrays, "arrays"), {}, {.batch = 1});
  session.initialize(fed.parameters(), fed.store());
  std::vector<double> expected;
  fed.run([&](const PredictedBatch& batch) { expected = batch.outputs.at(0).to_doubles(); });
  TextPredictor predictor(session, 1);
  run_texts(predictor, {row["text"]}, [&](size_t, const TextResult& result) {
    EXPECT_EQ(nlohmann::json(result.tokens), row["ids"]);
    expect_near("logits", result.outputs.at("logits"), expected);
  });
  double difference = 0;  // of the usual type 0
  for (size_t i = 0; i < expected.size(); ++i) difference = std::max(difference, std::abs(expected[i] - row["logits"][i].get<double>()));
  EXPECT_GT(difference, 1e-3);
}

TEST(HubTexts, ALongTextIsShortenedAndKeepsItsEnd) {
  const Recipe recipe = recipe_of(folder_of("bert_classes"));
  Session session(recipe);
  EXPECT_EQ(session.prediction_categories(), (std::vector<std::string>{"negative", "neutral", "positive"}));
  TextPredictor predictor(session, 4);
  std::string text;
  for (int i = 0; i < 30; ++i) text += "good ";
  run_texts(predictor, {text}, [](size_t, const TextResult& result) {
    EXPECT_TRUE(result.shortened);
    ASSERT_EQ(result.tokens.size(), 24u);
    EXPECT_EQ(result.tokens.front(), 2);
    EXPECT_EQ(result.tokens.back(), 3) << "[SEP] stays";
  });
}

TEST(HubConfig, ARecipeTakesItsModelFromTheFolder) {
  TemporaryFolder folder;
  std::ofstream(folder / "r.yaml") << "recipe: 1\nmodel: {type: hub, head: sequence_classification, num_labels: 5}\n";
  const Recipe recipe = recipe_of(folder / "r.yaml", {"weights=" + folder_of("bert_base")});
  EXPECT_EQ(recipe.model.type, "bert");
  EXPECT_EQ(recipe.data.tokenizer.type, "hub");
  std::string log;
  set_log_sink([&](LogLevel, const std::string& message) { log += message + "\n"; });
  Session session(recipe);
  EXPECT_EQ(session.target_classes(), 5);
  const CapturedModel model = session.capture_inference(session.usual_types(1, false));
  ParameterStore store(open_backend()->device());
  session.initialize(model.parameters, store);
  set_log_sink({});
  EXPECT_NE(log.find("start at random: classifier.weight, classifier.bias"), std::string::npos) << log;
}

TEST(HubConfig, ARecipeKeepsWhatItSays) {
  TemporaryFolder folder;
  std::ofstream(folder / "r.yaml") << "recipe: 1\nname: mine\nmodel: {type: hub, path: " << folder_of("bert_base") << "}\nweights: null\n";
  const Recipe recipe = recipe_of(folder / "r.yaml");
  EXPECT_EQ(recipe.name, "mine");
  EXPECT_TRUE(recipe.weights.load.empty()) << "from scratch";
  std::ofstream(folder / "none.yaml") << "recipe: 1\nmodel: hub\n";
  const Recipe none = recipe_of(folder / "none.yaml");
  try {
    Session session(none);
    FAIL() << "the folder is missing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.text().find("set weights=DIR or model.path=DIR"), std::string::npos) << error.text();
  }
}

/// A folder's name is not read as a reference of the recipe language; the keys of id2label are the indices of the classes, in any order.
TEST(HubConfig, NamesAreThoseOfTheFolder) {
  TemporaryFolder folder;
  const std::string path = folder / "a$b ${seed}";
  std::filesystem::copy(folder_of("bert_classes"), path);
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(std::ifstream(path + "/config.json"));
  nlohmann::ordered_json many = config;
  std::vector<std::string> names;
  for (size_t i = 0; i < 12; ++i) many["id2label"][std::to_string(i)] = names.emplace_back(cat("class ", i));  // "10" is before "2" as text
  EXPECT_EQ(HubFolder(path, many.dump()).categories(), names);
  config["id2label"] = {{"2", "c"}, {"0", "a"}, {"1", "b"}};
  std::ofstream(path + "/config.json") << config;
  const Recipe recipe = recipe_of(path);
  EXPECT_EQ(recipe.name, "a$b ${seed}");
  Session session(recipe);
  EXPECT_EQ(session.prediction_categories(), (std::vector<std::string>{"a", "b", "c"}));
  TextPredictor predictor(session, 1);
  const nlohmann::json row = texts_of("bert_classes")[0];
  run_texts(predictor, {row["text"]}, [&](size_t, const TextResult& result) {
    expect_near("logits", result.outputs.at("logits"), row["logits"].get<std::vector<double>>());
  });
}

TEST(HubConfig, VocabulariesMustAgree) {
  TemporaryFolder folder;
  std::filesystem::copy(folder_of("bert_classes"), folder / "m");
  std::ifstream in(folder / "m/config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["vocab_size"] = 20;
  std::ofstream(folder / "m/config.json") << config;
  const Recipe recipe = recipe_of(folder / "m");
  try {
    Session session(recipe);
    FAIL() << "the tokenizer has more tokens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.text().find("model.vocab_size is 20, but the tokenizer"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("belongs to another model"), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace galley
