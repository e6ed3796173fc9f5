#include "libcore/train/capture_training.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "libcore/base/under_key.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/optim/layer_decay.h"
#include "libcore/passes/narrow_buffers.h"

namespace galley {
namespace {

/// The parameters that train.freeze or `lora` excludes from training, and batch norms that keep their statistics.
struct Frozen {
  std::set<std::string> parameters, statistics;
};

Frozen frozen_of(const Session& session, const std::vector<ParameterSpec>& all) {
  const Recipe& recipe = session.recipe();
  Frozen frozen;
  const std::vector<Selectable> items = selectables(all);
  if (session.lora()) {
    std::set<std::string> trained;  // modules that are trained in full
    std::set<int64_t> selected;
    for (const int64_t index : Selector{.match = session.lora()->train, .except = {}}.select(items, "lora.train", /*is_list=*/true)) {
      selected.insert(index);
      trained.insert(all[static_cast<size_t>(index)].module);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].role == ValueRole::kParameter && all[i].module_type != kAdapterType && !selected.contains(static_cast<int64_t>(i)))
        frozen.parameters.insert(all[i].name);
      if (!trained.contains(all[i].module)) frozen.statistics.insert(all[i].module);
    }
  }
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

/// Options with the selected batch norms frozen.
BuilderOptions builder_options(const Session& session, const BatchTypes& types) {
  BuilderOptions options = session.builder_options(Mode::kTraining);
  if (session.recipe().train.freeze.empty() && !session.lora()) return options;
  Graph names;
  TaskCapture capture(names, session.model(), session.info(), types.fields, session.builder_options(Mode::kEvaluation), types.pixels);
  capture.model();
  Frozen frozen = frozen_of(session, capture.take_parameters());
  if (!frozen.statistics.empty()) {
    options.frozen_batch_norm = [modules = std::move(frozen.statistics)](std::string_view path) {
      return modules.count(std::string(path)) != 0;
    };
  }
  return options;
}

/// train.optimizer.layer_decay: multiplies the learning rates of trained parameters, those that groups set included.
void decay_layers(const OptimizerSection& section, const std::vector<ParameterSpec>& parameters,
                  std::map<std::string, ParameterOverride>& overrides) {
  std::vector<std::string> modules;
  for (const ParameterSpec& spec : parameters) modules.push_back(spec.module);
  const std::vector<int> above = layers_above(modules);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].role != ValueRole::kParameter || !parameters[i].trainable || above[i] == 0) continue;
    std::optional<Multiple>& lr = overrides[parameters[i].name].lr;
    const double factor = std::pow(section.layer_decay, above[i]);
    lr = lr ? Multiple(lr->value * factor, lr->relative) : Multiple(factor, true);
  }
}

}  // namespace

ParameterGroups parameter_groups(const OptimizerSection& section, const std::vector<ParameterSpec>& parameters,
                                 const std::vector<std::string>& scales) {
  std::vector<Selectable> items;
  std::set<std::string_view> trained;
  for (const ParameterSpec& spec : parameters) {
    if (spec.role != ValueRole::kParameter) continue;
    items.push_back({spec.name, spec.module_type, spec.type.shape.rank()});
    if (spec.trainable) trained.insert(spec.name);
  }
  std::map<std::string, ParameterOverride> overrides;
  for (size_t i = section.groups.size(); i-- > 0;) {  // reverse order, so that the first group takes precedence
    const auto& group = section.groups.at<OptimizerGroup>(i);
    for (int64_t index : Selector{group.match, group.except}.select(items, cat("train.optimizer.groups.", i))) {
      const std::string& name = items[static_cast<size_t>(index)].path;
      if (!trained.contains(name)) continue;  // a pattern may select frozen parameters only
      ParameterOverride& own = overrides[name];
      if (group.lr) own.lr = group.lr;
      if (group.weight_decay) own.weight_decay = group.weight_decay;
      if (group.momentum) own.momentum = group.momentum;
    }
  }
  if (section.layer_decay != 1) decay_layers(section, parameters, overrides);
  for (const std::string& scale : scales) overrides[scale].weight_decay = Multiple(0, false);
  return under_key("train.optimizer.groups", [&] { return resolve_groups(*section.algorithm.as<Optimizer>(), overrides); });
}

std::optional<LossScaling> loss_scaling(const Recipe& recipe) {
  const std::optional<double>& given = recipe.precision.loss_scale;
  if (given) return LossScaling{.initial = *given, .dynamic = false};
  if (recipe.precision.compute == PrecisionName::kF16) return LossScaling{};
  return std::nullopt;
}

std::optional<DType> narrow_buffer_dtype(const Recipe& recipe) {
  if (recipe.precision.buffers == PrecisionName::kBf16) return DType::kBF16;
  if (recipe.precision.buffers == PrecisionName::kF16) return DType::kF16;
  return std::nullopt;
}

CapturedModel capture_training(const Session& session, const BatchTypes& types) {
  const Recipe& recipe = session.recipe();
  CapturedModel model;
  TaskCapture capture(model.graph, session.model(), session.info(), types.fields, builder_options(session, types), types.pixels);
  under_key("loss", [&] { session.task().capture(TaskMode::kTrain, capture); });
  model.results = capture.finish();
  model.loss = model.graph.find_output("loss");
  GALLEY_ASSERT(model.loss != kNoValue, "the task ", session.task().name(), " has no objective");
  model.parameters = capture.take_parameters();
  const Frozen frozen = recipe.train.freeze.empty() && !session.lora() ? Frozen() : frozen_of(session, model.parameters);
  for (ParameterSpec& spec : model.parameters) spec.trainable = spec.trainable && frozen.parameters.count(spec.name) == 0;
  model.precision = precision_of(recipe, model.parameters);
  if (std::none_of(model.parameters.begin(), model.parameters.end(), [](const ParameterSpec& spec) { return spec.trainable; })) {
    throw Error(ErrorCode::kRecipe, "train.freeze selects all parameters; at least one must remain trainable").key("train.freeze");
  }
  if (const auto plan = stored_plan(recipe)) store_weights(model, *plan, /*training=*/true);
  if (const auto narrow = narrow_buffer_dtype(recipe)) {
    narrow_buffers(model.graph, *narrow);
    model.loss = model.graph.find_output("loss");
    for (ParameterSpec& spec : model.parameters) {
      const ValueId id = model.graph.find_input(spec.name);
      if (spec.role == ValueRole::kBuffer && id != kNoValue) spec.type.dtype = model.graph.type(id).dtype;
    }
  }
  return model;
}

}  // namespace galley
