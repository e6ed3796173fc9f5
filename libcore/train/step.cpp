#include "libcore/train/step.h"

#include <chrono>
#include <cmath>

#include "libcore/base/log.h"
#include "libcore/data/loader.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/recompute.h"
#include "libcore/recipe/selector.h"
#include "libcore/runtime/compile.h"

namespace galley {
namespace {

/// The optimizer's settings of each trained parameter: each key from the first group that matches and sets it.
ParameterGroups groups_of(const OptimizerSection& section, const std::vector<ParameterSpec>& parameters) {
  std::vector<Selectable> items;
  for (const ParameterSpec& spec : parameters) {
    if (spec.trainable) items.push_back({spec.name, spec.module_type, spec.type.shape.rank()});
  }
  std::map<std::string, ParameterOverride> overrides;
  for (size_t i = section.groups.size(); i-- > 0;) {  // the first item that sets a key wins
    const auto& group = section.groups.at<OptimizerGroup>(i);
    for (int64_t index : Selector{group.match, group.except}.select(items, cat("train.optimizer.groups.", i))) {
      ParameterOverride& own = overrides[items[static_cast<size_t>(index)].path];
      if (group.lr) own.lr = group.lr;
      if (group.weight_decay) own.weight_decay = group.weight_decay;
      if (group.momentum) own.momentum = group.momentum;
    }
  }
  return resolve_groups(*section.algorithm.as<Optimizer>(), overrides);
}

double flops_of(const Program& program) {
  double flops = 0;
  for (const Node& node : program.graph().nodes()) flops += cost_of(*node.op, context_of(program.graph(), node)).flops;
  return flops;
}

}  // namespace

bool step_due(int64_t step, double every) {
  return std::floor(static_cast<double>(step) / every) > std::floor(static_cast<double>(step - 1) / every);
}

Selector recomputed_modules(const Graph& graph, const RecomputeSection& section) {
  std::vector<Selectable> modules;
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::kForward) modules.push_back({node.path, std::string(node.op->name), 0});
  }
  const Selector selector{section.match, {}};
  selector.select(modules, "train.recompute");
  return selector;
}

TrainStep::TrainStep(const Session& session, const BatchTypes& types, const BatchPlan& batch, const RunLength& length)
    : session_(session), recipe_(session.recipe()), batch_(batch), length_(length), schedule_run_(schedule_length(recipe_.train.schedule, length)) {
  check_durations(recipe_, length);
  schedule_ = Schedule(recipe_.train.schedule, schedule_run_);
  if (!recipe_.train.optimizer.algorithm) throw Error(ErrorCode::kRecipe, "the key train.optimizer is missing").key("train.optimizer").suggest("e.g. {type: sgd, lr: 0.1, momentum: 0.9}");
  CompileOptions how;
  how.threads = static_cast<int>(session.threads());
  how.memory_format = session.layout();
  update_program_ = compile(capture(types, true), how);
  store_.declare(*update_program_);
  if (batch_.accumulation > 1) {
    how.parameter_formats = store_.formats();
    accumulate_program_ = compile(capture(types, false), how);
  }
}

Graph TrainStep::capture(const BatchTypes& types, bool update) {
  CapturedModel model = session_.capture_training(types);
  Graph& graph = model.graph;
  fusions_declined_ = fuse_training(graph).declined;
  for (const std::string& line : fusions_declined_) log(LogLevel::kDebug, "not fused: " + line);
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.parameters) {
    if (spec.trainable) wanted.push_back(graph.find_input(spec.name));
  }
  const ValueId loss = graph.find_output("loss");
  const Gradients gradients = differentiate(graph, loss, wanted);
  if (update) {
    parameters_ = model.parameters;
    groups_ = groups_of(recipe_.train.optimizer, parameters_);
    UpdateOptions how;
    how.groups = groups_;
    how.accumulation = batch_.accumulation;
    if (recipe_.train.clip) {
      how.clip = recipe_.train.clip->type == ClipType::kNorm ? ClipMode::kNorm : ClipMode::kValue;
      how.clip_max = recipe_.train.clip->max;
    }
    how.ema = recipe_.train.ema.has_value();
    how.ema_buffers = !recipe_.train.ema || recipe_.train.ema->buffers;
    updates_ = add_updates(graph, gradients, how);
  } else {
    add_accumulation(graph, gradients);
  }
  if (recipe_.train.recompute) {
    const RecomputeSection& section = *recipe_.train.recompute;
    RecomputeChoice which = recompute_selective();
    if (section.mode == RecomputeMode::kFull) which = recompute_full(graph);
    if (section.mode == RecomputeMode::kMatch) {
      which = [selector = recomputed_modules(graph, section)](const Node& node) {
        return node.phase == Phase::kForward && selector.selects({node.path, std::string(node.op->name), 0});
      };
    }
    recompute(graph, which);
  }
  return std::move(graph);
}

int64_t TrainStep::scratch_bytes() const {
  return std::max(update_program_->scratch_bytes(), accumulate_program_ ? accumulate_program_->scratch_bytes() : 0);
}

double TrainStep::flops() const {
  return flops_of(*update_program_) + (accumulate_program_ ? flops_of(*accumulate_program_) * static_cast<double>(batch_.accumulation - 1) : 0);
}

void TrainStep::initialize() {
  session_.initialize(parameters_, store_);
  for (const StateSpec& state : updates_.states) {
    if (state.starts_as_copy) store_.set(state.name, store_.get(state.of));
  }
}

void TrainStep::bind(std::shared_ptr<Arena> arena) {
  update_ = std::make_unique<Execution>(update_program_, store_, arena);
  if (accumulate_program_) accumulate_ = std::make_unique<Execution>(accumulate_program_, store_, arena);
}

void TrainStep::feed_batch(Execution& execution, const Batch& data, int64_t step) const {
  execution.feed("input", data.input());
  execution.feed("target", session_.classes() > 0 ? data.label() : data.fields.at("target"));
  if (!execution.takes("rng")) return;
  Tensor rng(DType::kI64, {3});
  rng.data_as<int64_t>()[0] = recipe_.seed;
  rng.data_as<int64_t>()[1] = step;
  rng.data_as<int64_t>()[2] = data.first;
  execution.feed("rng", rng);
}

void TrainStep::feed_update(Execution& execution, int64_t step) const {
  for (const ParameterGroup& group : groups_.groups) {
    if (execution.takes("lr." + group.name)) execution.feed("lr." + group.name, learning_rate(step, group.optimizer->lr));
  }
  if (execution.takes("step")) execution.feed("step", static_cast<double>(step));
  if (!execution.takes("ema_decay")) return;
  const EmaSection& ema = *recipe_.train.ema;
  const double every = steps_of(ema.every, length_);
  execution.feed("ema_decay", step_due(step, every) ? ema_decay(ema.decay, static_cast<int64_t>(static_cast<double>(step) / every) - 1, ema.warmup) : 1.0);
}

TrainStep::Outcome TrainStep::run(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer) {
  GALLEY_ASSERT(update_ != nullptr);
  Outcome outcome;
  for (int64_t k = 0; k < batch_.accumulation; ++k) {
    const bool updates = k + 1 == batch_.accumulation;
    Execution& execution = updates ? *update_ : *accumulate_;
    const auto asked = std::chrono::steady_clock::now();
    const Batch& data = next();
    const auto given = std::chrono::steady_clock::now();
    outcome.data_s += std::chrono::duration<double>(given - asked).count();
    if (observer != nullptr) {
      const auto ns = [](std::chrono::steady_clock::time_point at) { return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count(); };
      observer->fetched(ns(asked), ns(given));
    }
    feed_batch(execution, data, step);
    if (updates) feed_update(execution, step);
    RunOptions how;
    how.observer = observer;
    how.before_updates = [&] { return recipe_.train.guard.nan == NanGuard::kIgnore || std::isfinite(execution.scalar("loss")); };
    if (!execution.run(how)) {
      const double bad = execution.scalar("loss");
      const auto culprit = find_non_finite(execution);
      throw Error(ErrorCode::kNumeric, cat("the loss is ", std::isnan(bad) ? "nan" : bad > 0 ? "inf" : "-inf", " at step ", step, culprit ? "; first in " + culprit->text() : ""))
          .key("train.guard.nan")
          .suggest("a lower train.optimizer.lr, train.clip=1.0, or a look at the data; nothing of this step was kept");
    }
    outcome.loss += execution.scalar("loss");
  }
  outcome.loss /= static_cast<double>(batch_.accumulation);
  outcome.grad_norm = update_->scalar("grad_norm");
  return outcome;
}

}  // namespace galley
