// A language model with integer weights gives the same logits with its key-value cache as without. Stored tables of embeddings give the
// logits of a float model that has their dequantized values, and a tied head reads the table. Rounded activations of int4 products move
// the logits little.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "libcore/infer/components.h"
#include "libcore/infer/generate.h"
#include "libcore/quant/weights.h"
#include "libcore/quantize/model_quantizer.h"
#include "libcore/quantize/quantize_config.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/quantization_plan.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

constexpr const char* kGpt = "{type: gpt, n_layer: 2, n_head: 2, n_embd: 32, dropout: 0, block_size: 24}";
constexpr const char* kOwnHead = "{type: gpt, n_layer: 2, n_head: 2, n_embd: 32, dropout: 0, block_size: 24, tie_weights: false}";
constexpr const char* kTied = "{type: gpt2, n_layer: 2, n_head: 2, n_embd: 32, n_positions: 24, initializer_range: 0.3}";

LoadedRecipe load(const TemporaryFolder& folder, const std::string& more, const std::string& model = kGpt) {
  std::ofstream(folder / "recipe.yaml") << "recipe: 1\nthreads: 2\ndata: {tokenizer: byte}\nmodel: " << model << "\n" << more << "\n";
  return load_recipe(folder / "recipe.yaml", recipe_components(), {});
}

/// Quantizes the model with its initial weights and writes folder/model.safetensors.
QuantizedModel quantize(const TemporaryFolder& folder, const std::string& section, const std::string& model = kGpt) {
  const LoadedRecipe loaded = load(folder, "quantize: {method: weight_only, " + section + "}", model);
  const Session session(loaded.recipe);
  const ModelQuantizer quantizer(session);
  QuantizedModel made = quantizer.quantize(resolve_quantize(loaded.recipe.quantize, quantizer.graph()), nullptr);
  std::vector<TensorSource> tensors;
  for (const auto& [name, tensor] : made.tensors) tensors.emplace_back(name, tensor);
  write_safetensors(folder / "model.safetensors", tensors, {{std::string(kQuantizationKey), plan_json(*made.plan)}});
  return made;
}

/// Logits of next tokens, with the file `weights` of the folder.
std::vector<double> logits(const TemporaryFolder& folder, const std::string& weights, const std::string& more, const std::string& model) {
  const LoadedRecipe loaded = load(folder, "weights: " + (folder / weights) + "\n" + more, model);
  Session session(loaded.recipe);
  LanguageModel language(session);
  // One token at a time, so that the products are those of decoding.
  language.next_logits({{7}, {200}});
  return language.next_logits({{7, 1}, {200, 54}}).to_doubles();
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

class QuantizedDecoding : public testing::TestWithParam<const char*> {};

TEST_P(QuantizedDecoding, TheCacheGivesTheLogitsOfTheWholeSequence) {
  const TemporaryFolder folder;
  quantize(folder, std::string("weights: {dtype: ") + GetParam() + "}");
  // Programs of many tokens never round activations.
  const LoadedRecipe loaded = load(folder, "weights: " + (folder / "model.safetensors") + "\nprecision: {int4_activations: f32}");
  Session session(loaded.recipe);
  LanguageModel cached(session), whole(session, false);
  std::vector<std::vector<int64_t>> rows{{7}, {200, 1, 54}};
  for (int64_t step = 0; step < 30; ++step) {  // past the context
    const Tensor got = cached.next_logits(rows), expected = whole.next_logits(rows);
    ASSERT_EQ(got.shape(), expected.shape());
    double largest = 0;
    for (const double value : expected.to_doubles()) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 0);
    for (int64_t i = 0; i < expected.elements(); ++i)
      ASSERT_NEAR(got.data_as<float>()[i], expected.data_as<float>()[i], 2e-5 * largest) << "step " << step << ", logit " << i;
    for (auto& row : rows) row.push_back((31 * step + row.front()) % 256);
  }
}
INSTANTIATE_TEST_SUITE_P(Weights, QuantizedDecoding, testing::Values("int8", "int4"),
                         [](const auto& info) { return std::string(info.param); });

// With scales of groups of 32, as most models of 4 bits have.
TEST(Int4Products, RoundedActivationsMoveTheLogitsLittle) {
  const TemporaryFolder folder;
  quantize(folder, "weights: {dtype: int4, group_size: 32}");
  const std::vector<double> exact = logits(folder, "model.safetensors", "precision: {int4_activations: f32}", kGpt),
                            rounded = logits(folder, "model.safetensors", "", kGpt);
  ASSERT_EQ(rounded.size(), exact.size());
  double squares = 0, errors = 0;
  for (size_t i = 0; i < exact.size(); ++i) squares += exact[i] * exact[i], errors += (rounded[i] - exact[i]) * (rounded[i] - exact[i]);
  // Each value of an activation is wrong by up to half of 1/127 of the largest in its group, in eight products one after the other.
  EXPECT_LT(errors, squares * 0.02 * 0.02);
  EXPECT_GT(errors, 0) << "nothing is rounded";
}

class StoredTables : public testing::TestWithParam<const char*> {};

TEST_P(StoredTables, GiveTheLogitsOfTheirValues) {
  const TemporaryFolder folder;
  const std::string model = GetParam();
  const QuantizedModel made = quantize(folder, "overrides: [{match: 'type:embedding', keep: integer}]", model);
  // Every layer in the plan, tables among them, as floats.
  std::vector<TensorSource> floats;
  std::vector<std::string> tables;
  for (const auto& [name, tensor] : made.tensors) {
    if (name.ends_with("_scale") || name.ends_with("_zero_point")) continue;
    if (tensor.dtype() != DType::kI8) {
      floats.emplace_back(name, tensor);
      continue;
    }
    const QuantizedWeight stored{tensor, made.tensors.at(name + "_scale"), made.tensors.at(name + "_zero_point"), tensor.shape(), 8, 0};
    floats.emplace_back(name, dequantize_weight(stored));
    if (made.plan->find(name.substr(0, name.rfind('.')))->type == "embedding") tables.push_back(name);
  }
  write_safetensors(folder / "float.safetensors", floats, {});
  EXPECT_EQ(tables.size(), 1u) << "the positions of whole sequences are a slice of their table, not an embedding";
  const std::vector<double> want = logits(folder, "float.safetensors", "", model), got = logits(folder, "model.safetensors", "", model);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5 * largest_of(want)) << "logit " << i;
}
INSTANTIATE_TEST_SUITE_P(Models, StoredTables, testing::Values(kOwnHead, kTied),
                         [](const auto& info) { return info.param == kTied ? "tied" : "own_head"; });

TEST(StoredTables, ATiedHeadReadsTheTable) {
  const TemporaryFolder folder;
  const QuantizedModel plain = quantize(folder, "embeddings: float", kTied), tied = quantize(folder, "weights: int8", kTied);
  const std::string table = "transformer.wte.weight", head = "lm_head.weight";
  EXPECT_EQ(plain.tensors.at(table).dtype(), DType::kF32);
  EXPECT_TRUE(plain.tensors.contains(head)) << "an array of its own";
  EXPECT_EQ(tied.tensors.at(table).dtype(), DType::kI8);
  EXPECT_FALSE(tied.tensors.contains(head));
  EXPECT_FALSE(tied.tensors.contains(head + "_scale"));
  // Without the table in float: a row has 32 values. The integers, with a scale and a zero point for each row, are there once.
  const int64_t rows = 256;
  EXPECT_EQ(plain.bytes() - tied.bytes(), rows * 4 * 32);
  // In groups, or in 4 bits, the head has an array of its own.
  for (const std::string dtype : {"{dtype: int8, group_size: 16}", "int4"})
    EXPECT_TRUE(quantize(folder, "weights: " + dtype, kTied).tensors.contains(head)) << dtype;
}

TEST(StoredTables, FollowTheKeyAndOverrides) {
  const TemporaryFolder folder;
  const auto stored = [&](const std::string& section, const std::string& model) {
    const QuantizedModel made = quantize(folder, section, model);
    const LayerPlan* table = made.plan->find("transformer.wte");
    if (table != nullptr) {
      EXPECT_EQ(table->scheme, "int8 per row symmetric");
    }
    return table != nullptr;
  };
  EXPECT_TRUE(stored("weights: int8", kTied)) << "shared with the head";
  EXPECT_TRUE(stored("weights: int4", kTied));
  EXPECT_FALSE(stored("weights: int8", kOwnHead)) << "the head has a weight of its own";
  EXPECT_TRUE(stored("embeddings: int8", kOwnHead));
  EXPECT_FALSE(stored("embeddings: float", kTied));
  EXPECT_FALSE(stored("overrides: [{match: 'type:embedding', keep: float}]", kTied));
  EXPECT_TRUE(stored("embeddings: float, overrides: [{match: 'type:embedding', keep: integer}]", kTied));
  // A pattern that selects everything neither selects nor excludes tables.
  for (const std::string all : {"overrides: [{match: '*', weights: {observer: min_max}}]", "overrides: [{match: '*', weights: int4}]"}) {
    EXPECT_TRUE(stored(all, kTied)) << all;
    EXPECT_FALSE(stored(all, kOwnHead)) << all;
  }
}

TEST(StoredTables, AHeadInFloatHasAnArrayOfItsOwn) {
  const TemporaryFolder folder;
  const QuantizedModel made =
      quantize(folder, "overrides: [{match: 'lm_head', keep: float}, {match: 'type:embedding', keep: integer}]", kTied);
  EXPECT_EQ(made.tensors.at("transformer.wte.weight").dtype(), DType::kI8);
  EXPECT_EQ(made.tensors.at("lm_head.weight").dtype(), DType::kF32);
}

}  // namespace
}  // namespace galley
