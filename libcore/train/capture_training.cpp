#include "libcore/train/capture_training.h"

#include <algorithm>
#include <set>

#include "libcore/base/under_key.h"

namespace galley {
namespace {

/// The selection of train.freeze: parameters that are not trained, and batch norms that keep their statistics.
struct Frozen {
  std::set<std::string> parameters, statistics;
};

Frozen frozen_of(const Recipe& recipe, const std::vector<ParameterSpec>& all) {
  Frozen frozen;
  const std::vector<Selectable> items = selectables(all);
  for (size_t i = 0; i < recipe.train.freeze.size(); ++i) {
    const auto& item = recipe.train.freeze.at<FreezeItem>(i);
    const Selector selector{item.match, item.except};
    for (int64_t index : selector.select(items, cat("train.freeze.", i))) {
      const ParameterSpec& spec = all[static_cast<size_t>(index)];
      if (spec.role == ValueRole::kParameter) frozen.parameters.insert(spec.name);
      if (item.batch_norm == FrozenBatchNorm::kFrozen) frozen.statistics.insert(spec.module);
    }
  }
  return frozen;
}

/// Options with the batch norms that train.freeze selects frozen.
BuilderOptions builder_options(const Session& session, const BatchTypes& types) {
  BuilderOptions options{.mode = Mode::kTraining};
  if (session.recipe().train.freeze.empty()) return options;
  Graph names;
  TaskCapture capture(names, session.model(), session.info(), types.fields, {.mode = Mode::kEvaluation});
  capture.model();
  Frozen frozen = frozen_of(session.recipe(), capture.take_parameters());
  if (!frozen.statistics.empty()) {
    options.frozen_batch_norm = [modules = std::move(frozen.statistics)](std::string_view path) {
      return modules.count(std::string(path)) != 0;
    };
  }
  return options;
}

}  // namespace

CapturedModel capture_training(const Session& session, const BatchTypes& types) {
  const Recipe& recipe = session.recipe();
  CapturedModel model;
  TaskCapture capture(model.graph, session.model(), session.info(), types.fields, builder_options(session, types));
  under_key("loss", [&] { session.task().capture(TaskMode::kTrain, capture); });
  model.results = capture.finish();
  model.loss = model.graph.find_output("loss");
  GALLEY_ASSERT(model.loss != kNoValue, "the task ", session.task().name(), " has no objective");
  model.parameters = capture.take_parameters();
  const Frozen frozen = recipe.train.freeze.empty() ? Frozen() : frozen_of(recipe, model.parameters);
  for (ParameterSpec& spec : model.parameters)
    spec.trainable = spec.role == ValueRole::kParameter && frozen.parameters.count(spec.name) == 0;
  model.precision = precision_of(recipe, model.parameters);
  if (std::none_of(model.parameters.begin(), model.parameters.end(), [](const ParameterSpec& spec) { return spec.trainable; })) {
    throw Error(ErrorCode::kRecipe, "train.freeze selects all parameters; at least one must remain trainable").key("train.freeze");
  }
  return model;
}

}  // namespace galley
