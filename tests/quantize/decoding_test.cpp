// A language model with integer weights gives the same logits with its key-value cache as without.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "libcore/infer/components.h"
#include "libcore/infer/generate.h"
#include "libcore/quantize/model_quantizer.h"
#include "libcore/quantize/quantize_config.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/quantization_plan.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

LoadedRecipe load(const TemporaryFolder& folder, const std::string& more) {
  std::ofstream(folder / "recipe.yaml") << "recipe: 1\nthreads: 2\ndata: {tokenizer: byte}\n"
                                           "model: {type: gpt, n_layer: 2, n_head: 2, n_embd: 32, dropout: 0, block_size: 24}\n"
                                        << more << "\n";
  return load_recipe(folder / "recipe.yaml", recipe_components(), {});
}

class QuantizedDecoding : public testing::TestWithParam<const char*> {};

TEST_P(QuantizedDecoding, TheCacheGivesTheLogitsOfTheWholeSequence) {
  const TemporaryFolder folder;
  {
    const LoadedRecipe loaded = load(folder, std::string("quantize: {method: weight_only, weights: {dtype: ") + GetParam() + "}}");
    const Session session(loaded.recipe);
    const ModelQuantizer quantizer(session);
    const QuantizedModel model = quantizer.quantize(resolve_quantize(loaded.recipe.quantize, quantizer.graph()), nullptr);
    std::vector<TensorSource> tensors;
    for (const auto& [name, tensor] : model.tensors) tensors.emplace_back(name, tensor);
    write_safetensors(folder / "model.safetensors", tensors, {{std::string(kQuantizationKey), plan_json(*model.plan)}});
  }
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

}  // namespace
}  // namespace galley
