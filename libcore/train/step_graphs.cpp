// The graphs of TrainStep: captured, divided among ranks, differentiated, with their updates.

#include <algorithm>

#include "libcore/base/log.h"
#include "libcore/base/under_key.h"
#include "libcore/passes/gather_stages.h"
#include "libcore/passes/gather_units.h"
#include "libcore/passes/narrow_buffers.h"
#include "libcore/passes/pipelines.h"
#include "libcore/passes/shard.h"
#include "libcore/passes/tensor_parallel.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/rank_roles.h"
#include "libcore/train/step.h"
#include "libcore/train/units.h"

namespace galley {
namespace {

constexpr const char* kGuardStopped = "train.guard.stopped";

RecomputeChoice recompute_choice(const Graph& graph, const RecomputeSection& section) {
  if (section.mode == RecomputeMode::kFull) return recompute_full(graph);
  if (section.mode != RecomputeMode::kMatch) return recompute_selective();
  return [selector = recomputed_modules(graph, section)](const Node& node) {
    return node.phase == Phase::kForward && selector.selects({node.path, std::string(node.op->name), 0});
  };
}

}  // namespace

Selector recomputed_modules(const Graph& graph, const RecomputeSection& section) {
  std::vector<Selectable> modules;
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::kForward) modules.push_back({node.path, std::string(node.op->name), 0});
  }
  const Selector selector{section.match, {}};
  selector.select(modules, "train.recompute");
  return selector;
}

Graph TrainStep::capture(Stage& stage, const BatchTypes& types, bool update) {
  CapturedModel model = capture_training(session_, types);
  losses_ = model.results.losses;
  const std::vector<std::string> scales =
      stage.what.quantized && stage.what.form.learn_scale ? quantization_->scales() : std::vector<std::string>();
  TrainingPasses passes;
  passes.precision = model.precision;
  if (stage.what.quantized) passes.fake_quantize = quantization_->passes(types, stage.what.form);
  for (const ParameterSpec& spec : model.parameters) {
    if (spec.trainable) passes.trained.push_back(spec.name);
  }
  passes.trained.insert(passes.trained.end(), scales.begin(), scales.end());
  divide_matrices(model.graph);
  if (ranks_ != nullptr) weigh_losses(model.graph);
  if (ranks_ != nullptr && recipe_.train.sync_batch_norm) sync_batch_norms(model.graph, ranks_->size());
  if (ranks_ != nullptr) place_samples(model.graph, groups_);
  if (update) {
    parameters_ = model.parameters;
    stage.groups = parameter_groups(recipe_.train.optimizer, parameters_, scales);
    if (ranks_ != nullptr && divides_parameters(recipe_, ranks_) && units_.empty()) units_ = own_units(stage);
    passes.updates = [&](Graph& graph, const GradientMap& gradients) {
      if (ranks_ != nullptr) {
        reduce_losses(graph);
        make_division(stage);
      }
      under_key("train.optimizer", [&] { stage.states = add_updates(graph, gradients, update_options(stage)).states; });
    };
  } else {
    passes.updates = [&](Graph& graph, const GradientMap& gradients) {
      if (ranks_ != nullptr) make_division(stage);
      add_accumulation(graph, gradients, update_options(stage));
    };
  }
  if (scaling_) passes.objective = scaled_loss;
  if (guards() || scaling_) passes.guard = [this](Graph& graph) { gate_updates(graph, gates(graph)); };
  if (recipe_.train.recompute) passes.recompute = [&](const Graph& graph) { return recompute_of(graph); };
  PassReport report = training_passes(model.graph, engine_.backend(), passes);
  if (gathers()) gather_pass()(model.graph);
  check_rank_graph(model.graph, update);
  for (const std::string& line : report.declined) log(LogLevel::kDebug, "not fused: " + line);
  if (&stage == &stages_.front()) {
    fusions_declined_ = std::move(report.declined);
    attention_ = std::move(report.attention);
  }
  return std::move(model.graph);
}

/// `updates`: the graph's results are those of all ranks.
void TrainStep::check_rank_graph(const Graph& graph, bool updates) const {
  if (ranks_ == nullptr && tensor_ == nullptr) return;
  verify(graph);
  if (updates) check_results(graph);
}

/// In a captured graph, where ranks divide matrices.
void TrainStep::divide_matrices(Graph& graph) {
  if (tensor_ == nullptr) return;
  if (divisions_.empty()) {
    under_key("sharding", [&] { divisions_ = tensor_divisions(graph, tensor_->size()); });
  }
  tensor_parallel(graph, divisions_, {.rank = tensor_->rank(), .ranks = tensor_->size(), .scatter = recipe_.sharding.sequence_parallel});
}

/// The gates of a graph that updates, or of one that accumulates.
UpdateGates TrainStep::gates(const Graph& graph) const {
  UpdateGates gates{.stopped = kGuardStopped};
  if (guards()) gates.value = graph.find_output("loss");
  gates.squares = graph.find_output("grad_squares");
  if (gates.squares != kNoValue) gates.scaling = scaling_;
  return gates;
}

/// All graphs of the run have the buckets of the first one, since they share the optimizer's state.
void TrainStep::make_division(Stage& stage) const {
  std::optional<DType> hook;
  if (recipe_.precision.reduce != PrecisionName::kF32) hook = recipe_.precision.reduce == PrecisionName::kBf16 ? DType::kBF16 : DType::kF16;
  std::optional<PowerSgd> power_sgd;
  if (const auto& section = recipe_.sharding.hook; section && section->kind().factors()) {
    power_sgd = PowerSgd{.rank = section->rank,
                         .warm_start = section->warm_start,
                         .error_feedback = section->error_feedback,
                         .seed = recipe_.seed,
                         .ranks = ranks_->size()};
  } else if (section) {
    hook = section->kind().sum_dtype;
  }
  if (gathers()) return stage.divisions.push_back(gathered_updates(units_, groups_, hook));
  const BucketChoice choice{.bytes = recipe_.sharding.bucket.bytes,
                            .like = stage.divisions.empty() ? nullptr : stage.divisions.front().get(),
                            .hook = hook,
                            .power_sgd = power_sgd};
  stage.divisions.push_back(divides_state(recipe_, ranks_) ? sharded_updates(choice, groups_.rank, groups_.ranks)
                                                           : replicated_updates(choice));
}

std::function<void(Graph&)> TrainStep::gather_pass() const {
  if (pipelines()) {
    return [this](Graph& graph) {
      std::map<std::string, int> roots;
      std::map<std::string, bool> held;
      for (const auto& [name, stage] : stage_of_) {
        roots[name] = stage * place_.copies;
        held[name] = stage == place_.stage;
      }
      gather_stages(graph, roots, held);
    };
  }
  if (!gathers()) return nullptr;
  GatherOptions options{.rank = groups_.rank, .ranks = groups_.ranks, .reshard_after_forward = recipe_.sharding.reshard_after_forward};
  if (recipe_.sharding.gather_limit.size) options.limit = recipe_.sharding.gather_limit.size->bytes;
  // Groups that gather for themselves, and replicas, have copies of their own.
  options.common = groups_.copies == 1 && tensor_ == nullptr && replicas_.count == 0 && engine_.backend().device().is_host();
  return [this, options](Graph& graph) { gather_units(graph, units_, options); };
}

std::function<void(Graph&)> TrainStep::captured_pass() const {
  const std::optional<DType> narrow = narrow_buffer_dtype(recipe_);
  if (tensor_ == nullptr && !narrow) return nullptr;
  return [this, narrow](Graph& graph) {
    if (narrow) narrow_buffers(graph, *narrow);
    if (tensor_ != nullptr) tensor_parallel(graph, divisions_, {.rank = tensor_->rank(), .ranks = tensor_->size(), .gradients = false});
  };
}

const std::vector<GradientBucket>* TrainStep::shards() const {
  if (gathers()) return &units_;
  return ranks_ != nullptr && divides_state(recipe_, ranks_) ? &stages_.front().divisions.front()->buckets() : nullptr;
}

ParameterGroups TrainStep::groups_of_parameters(const std::vector<ParameterSpec>& parameters) const {
  return parameter_groups(recipe_.train.optimizer, parameters, {});
}

RecomputeChoice TrainStep::recompute_of(const Graph& graph) const { return recompute_choice(graph, *recipe_.train.recompute); }

std::function<bool(const std::string&)> TrainStep::divided_parameters() const {
  if (tensor_ == nullptr) return nullptr;
  return [this](const std::string& name) { return divisions_.count(name) > 0; };
}

/// The units of the parameters, or of this rank's parts of them.
std::vector<GradientBucket> TrainStep::own_units(const Stage& stage) const {
  std::vector<ParameterSpec> parts = parameters_;
  for (ParameterSpec& spec : parts) {
    const auto division = divisions_.find(spec.name);
    if (division != divisions_.end()) spec.type.shape = division->second.shape(spec.type.shape, tensor_->rank(), tensor_->size());
  }
  return units_of(recipe_, parts, stage.groups, divided_parameters());
}

UpdateOptions TrainStep::update_options(const Stage& stage) const {
  UpdateOptions options;
  options.groups = stage.groups;
  options.accumulation = batch_.accumulation;
  if (recipe_.train.clip) {
    options.clip = recipe_.train.clip->type == ClipType::kNorm ? ClipMode::kNorm : ClipMode::kValue;
    options.clip_max = recipe_.train.clip->max;
  }
  if (ranks_ != nullptr) options.ranks = stage.divisions.back().get();
  options.divided = divided_parameters();
  options.loss_scale = scaling_.has_value();
  if (scaling_) options.first_loss_scale = scaling_->initial;
  options.ema = recipe_.train.ema.has_value();
  options.ema_buffers = !recipe_.train.ema || recipe_.train.ema->buffers;
  return options;
}

}  // namespace galley
