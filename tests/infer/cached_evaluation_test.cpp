// evaluate.cache: the loss of a language model whose keys and values are read from a key-value cache is that of generation token by token
// with such a cache. In f32 it is the loss without a cache.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "libcore/base/philox.h"
#include "libcore/infer/components.h"
#include "libcore/infer/evaluate.h"
#include "libcore/infer/generate.h"
#include "libcore/infer/inference.h"
#include "libcore/recipe/recipe.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

constexpr int64_t kTokens = 24, kSamples = 5;  // two batches of 4, the last with one sample
constexpr const char* kSizes =
    "num_hidden_layers: 2, hidden_size: 32, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, intermediate_size: 48, "
    "initializer_range: 0.3";

struct Case {
  std::string name, model;
};
std::vector<Case> cases() {
  const std::string sizes = kSizes;
  return {{"gpt2", "{type: gpt2, n_layer: 2, n_head: 2, n_embd: 32, n_positions: 24, initializer_range: 0.3}"},
          {"mistral_window", "{type: mistral, sliding_window: 6, max_position_embeddings: 24, " + sizes + "}"},
          {"qwen3_longrope", "{type: qwen3, max_position_embeddings: 24, " + sizes +
                                 ", rope_parameters: {rope_type: longrope, original_max_position_embeddings: 8, short_factor: [1, 1, 1, 1, "
                                 "2, 2, 2, 2], long_factor: [1, 2, 3, 4, 5, 6, 7, 8]}}"},
          {"llama_dynamic",
           "{type: llama, max_position_embeddings: 12, block_size: 24, " + sizes + ", rope_parameters: {rope_type: dynamic, factor: 2}}"}};
}

class CachedEvaluation : public testing::TestWithParam<Case> {
 protected:
  CachedEvaluation() {
    RandomStream random(3, "text");
    for (int64_t i = 0; i <= kTokens * kSamples; ++i) tokens_.push_back(static_cast<int64_t>('a' + random.below(26)));
    std::ofstream text(folder_ / "text.txt");
    for (const int64_t token : tokens_) text << static_cast<char>(token);
  }
  LoadedRecipe load(const std::string& model, const std::string& more) const {
    std::ofstream(folder_ / "recipe.yaml") << "recipe: 1\nthreads: 2\ndata:\n  tokenizer: byte\n  val: {source: {type: text, path: "
                                           << (folder_ / "text.txt") << "}, batch: 4}\nmodel: " << model << "\n"
                                           << more << "\n";
    return load_recipe(folder_ / "recipe.yaml", recipe_components(), {});
  }
  double evaluated(const std::string& model, std::optional<CacheStorage> cache) const {
    const LoadedRecipe loaded = load(model, "");
    Session session(loaded.recipe);
    Engine engine(session.backend());
    Evaluator evaluator(session, engine, nullptr, "val", 4, 0, nullptr, cache);
    engine.declare(evaluator.program());
    session.initialize(evaluator.parameters(), engine.store());
    evaluator.bind();
    const MetricValues values = evaluator.run();
    EXPECT_EQ(evaluator.samples(), kSamples);
    return find_metric(values, "loss");
  }
  /// The mean loss of next tokens; each sample is read token by token.
  double generated(const std::string& model, const std::string& cache) const {
    const LoadedRecipe loaded = load(model, "predict: {generate: {cache: " + cache + "}}");
    Session session(loaded.recipe);
    LanguageModel language(session);
    double loss = 0;
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      std::vector<int64_t> row;
      for (int64_t t = 0; t < kTokens; ++t) {
        row.push_back(tokens_[static_cast<size_t>(sample * kTokens + t)]);
        const std::vector<double> logits = language.next_logits({row}).to_doubles();
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit);
        loss += std::log(sum) - logits[static_cast<size_t>(tokens_[static_cast<size_t>(sample * kTokens + t + 1)])];
      }
    }
    return loss / static_cast<double>(kTokens * kSamples);
  }

  const TemporaryFolder folder_;
  std::vector<int64_t> tokens_;
};

TEST_P(CachedEvaluation, GivesTheLossOfGeneration) {
  const std::string& model = GetParam().model;
  const double plain = evaluated(model, {});
  EXPECT_NEAR(evaluated(model, CacheStorage::kF32), plain, 1e-5 * plain);
  for (const auto& [cache, name] : {std::pair{CacheStorage::kBF16, "bf16"}, {CacheStorage::kInt8, "int8"}}) {
    const double loss = evaluated(model, cache);
    EXPECT_NE(loss, plain) << name;
    EXPECT_NEAR(loss, plain, 0.02 * plain) << name;  // keys and values are wrong by up to 1/254 of the largest
    // Where frequencies depend on the length, a token of generation has those of its own length.
    if (GetParam().name.find("_long") == std::string::npos && GetParam().name != "llama_dynamic") {
      EXPECT_NEAR(loss, generated(model, name), 1e-5 * plain) << name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, CachedEvaluation, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

using CachedEvaluationErrors = CachedEvaluation;
TEST_P(CachedEvaluationErrors, ModelsWithoutACacheAreRefused) {
  try {
    evaluated(GetParam().model, CacheStorage::kInt8);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(std::string(error.what()).find("keeps no keys and values"), std::string::npos) << error.what();
  }
}
INSTANTIATE_TEST_SUITE_P(Models, CachedEvaluationErrors,
                         testing::Values(Case{
                             "lstm", "{type: rnn_lm, cell: lstm, hidden_size: 16, embedding_dim: 16, num_layers: 1, sequence_length: 24}"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace galley
