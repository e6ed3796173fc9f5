#include "libcore/train/step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "libcore/base/log.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/data/loader.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/ops/collective.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/check_model.h"
#include "libcore/train/offload.h"
#include "libcore/train/rank_roles.h"

namespace galley {
namespace {

std::string stage_text(const TrainStage& stage, size_t values) {
  if (!stage.quantized) return "in float";
  return cat("weights and ", values, " values are rounded, ",
             stage.form.observe       ? "ranges are observed"
             : stage.form.learn_scale ? "scales are learned"
                                      : "ranges are frozen",
             stage.form.freeze_batch_norm ? ", batch norms are frozen" : "");
}

/// Floating-point operations by the definitions of the operators, and as executed.
std::pair<double, Arithmetic> flops_of(const Program& program) {
  double flops = 0;
  Arithmetic executed;
  for (const Node& node : program.graph().nodes()) {
    const Cost cost = cost_of(*node.op, context_of(program.graph(), node));
    flops += cost.flops;
    executed.add(cost);
  }
  return {flops, executed};
}

}  // namespace

bool step_due(int64_t step, double every) {
  return std::floor(static_cast<double>(step) / every) > std::floor(static_cast<double>(step - 1) / every);
}

TrainStep::TrainStep(const Session& session, Engine& engine, const BatchTypes& types, const BatchPlan& batch, const RunLength& length,
                     const std::vector<BatchTypes>& shorter, Communicator* ranks, const ReplicaChoice& replicas, DiskDevice* disk,
                     Communicator* tensor)
    : session_(session),
      engine_(engine),
      recipe_(session.recipe()),
      batch_(batch),
      length_(length),
      schedule_run_(schedule_length(recipe_.train.schedule, length)),
      ranks_(ranks != nullptr && ranks->size() > 1 ? ranks : nullptr),
      groups_(shard_groups(recipe_, ranks_)),
      tensor_(tensor != nullptr && tensor->size() > 1 ? tensor : nullptr),
      scaling_(loss_scaling(recipe_)),
      replicas_(replicas),
      offload_(disk != nullptr ? std::make_unique<Offload>(*disk, recipe_.sharding) : nullptr) {
  if (replicas_.count > 0) check_replicas();
  if (ranks_ != nullptr && trains_quantized(recipe_)) {
    throw Error(ErrorCode::kRecipe, cat("quantization-aware training runs on one rank, but there are ", ranks_->size()))
        .key("quantize.method")
        .suggest("start it without mpirun and --simulate-ranks");
  }
  check_durations(recipe_, length);
  schedule_ = Schedule(recipe_.train.schedule, schedule_run_);
  if (!recipe_.train.optimizer.algorithm)
    throw Error(ErrorCode::kRecipe, "the key train.optimizer is missing")
        .key("train.optimizer")
        .suggest("e.g. {type: sgd, lr: 0.1, momentum: 0.9}");
  const std::vector<TrainStage> stages = train_stages(recipe_, length);
  if (replicas_.count > 0) {
    Stage& stage = stages_.emplace_back();
    stage.what = stages.front();
    add_replicas(stage, types, shorter);
    return;
  }
  if (trains_quantized(recipe_)) quantization_ = std::make_unique<QuantizationAware>(session, types);
  for (const TrainStage& stage : stages) {
    add_stage(stage, types);
    if (trains_quantized(recipe_))
      log(LogLevel::kInfo, cat("from step ", stage.first, ": ", stage_text(stage, quantization_->values().size())));
  }
  add_shorter(shorter);
  if (stored_plan(recipe_) != nullptr) {  // zero points of 0 are part of the weights, but programs do not read them
    for (const ParameterSpec& spec : parameters_) {
      if (!engine_.store().has(spec.name)) engine_.store().declare(spec.name, spec.type, spec.role);
    }
  }
  if (!quantization_) return;
  for (const StateSpec& state : quantization_->states()) engine_.store().declare(state.name, state.type, state.role);
  add_states(quantization_->states());
}

/// Gives arrays of the program that the recipe offloads their place, before the store declares them.
void TrainStep::place_offloaded(const Program& program) const {
  if (offload_ != nullptr) offload_->place(program.graph(), engine_.store());
  if (offloads_to_host(recipe_.sharding) && recipe_.device.is_gpu())
    place_on_host(program.graph(), engine_.store(), *recipe_.sharding.offload);
}

void TrainStep::add_stage(const TrainStage& what, const BatchTypes& types) {
  Stage& stage = stages_.emplace_back();
  stage.what = what;
  const bool first = stages_.size() == 1;
  const std::string variant = what.first > 1 ? cat("from step ", what.first) : "";
  const std::string reason = first ? "updates" : cat("another graph from step ", what.first);
  bool captured = false;  // capture also determines parameters, groups and losses
  const auto capture_update = [&] {
    captured = true;
    return capture(stage, types, true);
  };
  stage.update_program = engine_.program({.mode = "train", .variant = variant, .fields = types.fields}, reason, capture_update,
                                         first ? ParameterFormats::kLead : ParameterFormats::kFollow);
  GALLEY_ASSERT(captured, "the engine already has this program; each TrainStep needs its own engine");
  place_offloaded(*stage.update_program);
  engine_.declare(*stage.update_program);
  add_states(stage.states);
  if (batch_.accumulation == 1) return;
  stage.accumulate_program = engine_.program({.mode = "accumulate", .variant = variant, .fields = types.fields},
                                             cat("batches of ", batch_.global, " samples in ", batch_.accumulation, " parts"),
                                             [&] { return capture(stage, types, false); });
}

void TrainStep::add_shorter(const std::vector<BatchTypes>& shorter) {
  if (shorter.empty()) return;
  if (batch_.accumulation > 1 || quantization_) {
    throw Error(ErrorCode::kRecipe, cat("an item `bucket`, or `pad_to` with `sizes`, does not go together with ",
                                        quantization_ ? "quantization-aware training" : "batches that are divided into micro-batches"))
        .key("data.train.pipeline")
        .suggest(cat("use {type: pad, to: N}, or `pad_to` without `sizes`",
                     quantization_ ? "" : ", or set train.batch.micro to train.batch.global"));
  }
  Stage& stage = stages_.front();
  for (const BatchTypes& types : shorter) {
    Shorter next{.types = types, .program = nullptr, .execution = nullptr};
    next.program = engine_.program({.mode = "train", .variant = "", .fields = types.fields}, "shorter batches",
                                   [&] { return capture(stage, types, true); });
    engine_.declare(*next.program);
    stage.shorter.push_back(std::move(next));
  }
}

Execution& TrainStep::update_for(const Stage& stage, const Batch& data) {
  for (const Shorter& shorter : stage.shorter) {
    const bool same = std::all_of(shorter.types.fields.begin(), shorter.types.fields.end(),
                                  [&](const auto& field) { return data.at(field.first).shape() == field.second.shape; });
    if (same) return *shorter.execution;
  }
  return *stage.update;
}

void TrainStep::add_states(const std::vector<StateSpec>& states) {
  for (const StateSpec& state : states) {
    const bool known = std::any_of(states_.begin(), states_.end(), [&](const StateSpec& other) { return other.name == state.name; });
    if (!known) states_.push_back(state);
  }
}

const TrainStep::Stage& TrainStep::stage_at(int64_t step) const {
  size_t at = 0;
  while (at + 1 < stages_.size() && stages_[at + 1].what.first <= step) ++at;
  return stages_[at];
}

int64_t TrainStep::learns_from() const {
  const auto learns = std::find_if(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.what.form.learn_scale; });
  return learns == stages_.end() ? 0 : learns->what.first;
}

void TrainStep::prepare_evaluation(int64_t step) {
  if (quantization_ && quantized_at(step) && !stage_at(step).what.form.learn_scale) quantization_->set_scales(engine_);
}

int64_t TrainStep::replica_bytes() const {
  if (pipeline_) return pipeline_->bytes(stage_sums_);
  return replicas_.count == 0 ? 0 : ReplicaRunner::bytes(program(), replica_buckets_, replica_options());
}

int64_t TrainStep::largest_sum() const {
  int64_t most = 0;
  for (const GradientBucket& bucket : replica_buckets_) most = std::max(most, bucket.layout.padded(groups_.ranks) * 4);
  for (const PipelineRunner::Sums& sums : stage_sums_) most = std::max(most, sums.elements * 4);
  for (const Program* program : programs()) {
    const Graph& graph = program->graph();
    for (const Node& node : graph.nodes()) {
      if (node.op == &all_reduce_start_op() || node.op == &reduce_scatter_start_op())
        most = std::max(most, graph.type(node.inputs[0]).bytes());
    }
  }
  return most;
}

std::vector<const Program*> TrainStep::programs() const {
  std::vector<const Program*> all;
  for (const Stage& stage : stages_) {
    all.push_back(stage.update_program.get());
    if (stage.accumulate_program) all.push_back(stage.accumulate_program.get());
    for (const Shorter& shorter : stage.shorter) all.push_back(shorter.program.get());
  }
  return all;
}

int64_t TrainStep::scratch_bytes() const {
  int64_t most = 0;
  for (const Program* program : programs()) most = std::max(most, program->scratch_bytes());
  return most;
}

std::pair<double, Arithmetic> TrainStep::flops() const {
  if (replicas_.count > 0) {
    auto [flops, executed] = flops_of(program());
    return {flops * replicas_.count, executed * replicas_.count};
  }
  auto [flops, executed] = flops_of(program());
  if (accumulate_program() != nullptr) {
    const auto [more, more_executed] = flops_of(*accumulate_program());
    flops += more * static_cast<double>(batch_.accumulation - 1);
    executed += more_executed * static_cast<double>(batch_.accumulation - 1);
  }
  return {flops, executed};
}

void TrainStep::bind_rates(Stage& stage) const {
  stage.rates.clear();
  for (const ParameterGroup& group : stage.groups.groups) {
    const std::string input = "lr." + group.name;
    if (stage.update->takes(input)) stage.rates.push_back({input, group.optimizer->lr});
  }
}

void TrainStep::bind() {
  fed_.clear();
  if (replicas_.count > 0) return bind_replicas(stages_.front());
  for (Stage& stage : stages_) {
    stage.update = engine_.bind(stage.update_program);
    for (Shorter& shorter : stage.shorter) shorter.execution = engine_.bind(shorter.program);
    bind_rates(stage);
    if (!stage.accumulate_program) continue;
    stage.accumulate = engine_.bind(stage.accumulate_program);
    stage.accumulate->keep_results(batch_.accumulation - 1);
  }
  firsts_.resize(static_cast<size_t>(batch_.accumulation));
}

/// The labels of the batch that the loss does not ignore; -1: its targets are no labels.
int64_t TrainStep::labels_in(const Batch& data) const {
  for (const FieldType& target : session_.task().targets()) {
    const auto found = data.fields.find(target.name);
    if (found == data.fields.end() || target.classes == 0 || found->second.dtype() != DType::kI64) continue;
    const int64_t* labels = found->second.data_as<int64_t>();
    const int64_t count = found->second.elements() / found->second.shape()[0] * data.valid;
    return count - std::count(labels, labels + count, session_.ignored_class());
  }
  return -1;
}

/// The weight of this rank's batch in the mean over ranks: its labels that the loss does not ignore, divided by those of all ranks; without
/// such labels its samples.
double TrainStep::weight_of(const Batch& data) const {
  if (ranks_ == nullptr) return 1;
  const double share = share_ ? share_() : 1.0 / ranks_->size();
  if (RankScope::current() == nullptr) return share;  // repeated by this rank alone
  const int64_t labels = labels_in(data), own = share > 0 ? labels : 0;
  if (labels < 0) return share;
  int64_t all = own;
  ranks_->all_reduce("labels", &all, &all, 1, DType::kI64);
  return all > 0 ? static_cast<double>(own) / static_cast<double>(all) : share;
}

void TrainStep::feed_batch(Execution& execution, const Batch& data, int64_t step, double weight, bool fed) const {
  if (!fed && (!repeats_ || fed_.insert(&execution).second)) feed_fields(execution, data);
  const int64_t key[] = {recipe_.seed, step, data.first};
  if (execution.takes("rng")) execution.set("rng", key);
  if (execution.takes(kRankWeight)) execution.set(kRankWeight, weight);
}

void TrainStep::feed_update(const Stage& stage, Execution& execution, int64_t step) const {
  for (const Rate& rate : stage.rates) execution.set(rate.input, learning_rate(step, rate.lr));
  if (execution.takes("step")) execution.set("step", static_cast<double>(step));
  if (!execution.takes("ema_decay")) return;
  const EmaSection& ema = *recipe_.train.ema;
  const double every = steps_of(ema.every, length_);
  execution.set("ema_decay", step_due(step, every)
                                 ? ema_decay(ema.decay, static_cast<int64_t>(static_cast<double>(step) / every) - 1, ema.warmup)
                                 : 1.0);
}

TrainStep::~TrainStep() = default;

const Batch& TrainStep::fetch(const std::function<const Batch&()>& next, Outcome& outcome, NodeObserver* observer) const {
  const auto asked = std::chrono::steady_clock::now();
  const Batch& data = next();
  const auto given = std::chrono::steady_clock::now();
  outcome.data_s += std::chrono::duration<double>(given - asked).count();
  if (observer != nullptr) {
    const auto ns = [](std::chrono::steady_clock::time_point at) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
    };
    observer->fetched(ns(asked), ns(given));
  }
  return data;
}

/// Feeds the first batch of that step, while the device computes the step before it. An error of its data belongs to that step.
void TrainStep::feed_next(int64_t step, const std::function<const Batch&()>& next, Outcome& outcome, NodeObserver* observer) {
  if (!more_ || repeats_ || on_host() || !more_(step)) return;
  try {
    const Batch& data = fetch(next, outcome, observer);
    feed_fields(execution_of(stage_at(step), 0, data), data);
    ahead_.batch = &data;
  } catch (const std::exception&) {
    ahead_.error = std::current_exception();
  }
}

TrainStep::Outcome TrainStep::run(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer) {
  if (offload_ != nullptr) observer = offload_->watch(observer);
  const Stage& stage = stage_at(step);
  GALLEY_ASSERT(stage.update != nullptr);
  if (replicas_.count > 0) return run_replicas(step, next, observer);
  if (step == learns_from()) quantization_->set_scales(engine_);
  for (Communicator* each : {ranks_, tensor_}) {
    if (each != nullptr) each->set_step(step);
  }
  const RankScope scope(ranks_, tensor_);
  Outcome outcome;
  const Batch* last = nullptr;
  const Ahead ahead = std::exchange(ahead_, {});
  if (ahead.error) std::rethrow_exception(ahead.error);
  for (int64_t k = 0; k < batch_.accumulation; ++k) {
    const bool fed = k == 0 && ahead.batch != nullptr;
    const Batch& data = fed ? *ahead.batch : fetch(next, outcome, observer);
    Execution& execution = execution_of(stage, k, data);
    firsts_[static_cast<size_t>(k)] = data.first;
    last = &data;
    feed_batch(execution, data, step, weight_of(data), fed);
    if (k + 1 == batch_.accumulation) feed_update(stage, execution, step);
    execution.run({.observer = observer});
  }
  feed_next(step + 1, next, outcome, observer);
  read_losses(stage, step, *last, outcome);
  read_update(update_for(stage, *last), step, outcome);
  return outcome;
}

}  // namespace galley
