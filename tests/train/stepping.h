#pragma once
// Training steps of small recipes on random batches.

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/infer/components.h"
#include "libcore/infer/random_batch.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/engine.h"
#include "libcore/tensor/batch.h"
#include "libcore/train/step.h"
#include "tests/support/temporary_folder.h"

namespace galley::test {

inline LoadedRecipe load_named(const std::string& recipe, std::vector<std::string> overrides) {
  LoadOptions options;
  options.recipes_folder = GALLEY_SOURCE_DIR "/recipes";
  options.overrides = std::move(overrides);
  return load_recipe(recipe, recipe_components(), options);
}
/// The text of a recipe.
inline LoadedRecipe load_text(std::string_view text, std::vector<std::string> overrides) {
  const TemporaryFolder folder;
  std::ofstream(folder / "recipe.yaml") << text;
  return load_named(folder / "recipe.yaml", std::move(overrides));
}

/// A TrainStep with micro-batches of `micro` samples, initialized and bound. `backend` replaces that of the recipe.
struct Stepping {
  Stepping(const Session& session, int64_t micro, int64_t accumulation, std::shared_ptr<const Backend> backend = nullptr)
      : engine(backend != nullptr ? std::move(backend) : session.backend()),
        types(session.usual_types(micro, true)),
        training(session, engine, types, {.global = micro * accumulation, .micro = micro, .accumulation = accumulation},
                 {.total_steps = 10, .steps_per_epoch = 5, .samples_per_step = static_cast<double>(micro * accumulation)}),
        batch(random_batch(session, types)) {
    training.initialize();
    training.bind();
  }
  /// All state that persists between steps, except the sums of micro-batches.
  std::map<std::string, Tensor> values() {
    std::map<std::string, Tensor> values;
    for (const std::string& name : training.store().names()) {
      if (!name.ends_with(".grad")) values[name] = training.store().get(name);
    }
    return values;
  }

  Engine engine;
  BatchTypes types;
  TrainStep training;
  Batch batch;
};

}  // namespace galley::test
