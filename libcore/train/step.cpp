#include "libcore/train/step.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "libcore/base/log.h"
#include "libcore/base/under_key.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/data/bad_row.h"
#include "libcore/data/loader.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/passes/gate_updates.h"
#include "libcore/passes/gather_stages.h"
#include "libcore/passes/gather_units.h"
#include "libcore/passes/narrow_buffers.h"
#include "libcore/passes/pipelines.h"
#include "libcore/passes/shard.h"
#include "libcore/passes/tensor_parallel.h"
#include "libcore/recipe/selector.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/check_model.h"
#include "libcore/train/offload.h"
#include "libcore/train/rank_values.h"
#include "libcore/train/units.h"

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

RecomputeChoice recompute_choice(const Graph& graph, const RecomputeSection& section) {
  if (section.mode == RecomputeMode::kFull) return recompute_full(graph);
  if (section.mode != RecomputeMode::kMatch) return recompute_selective();
  return [selector = recomputed_modules(graph, section)](const Node& node) {
    return node.phase == Phase::kForward && selector.selects({node.path, std::string(node.op->name), 0});
  };
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

constexpr const char* kGuardStopped = "train.guard.stopped";

/// Numbers that are equal on all ranks; what else is fed is of the rank's samples.
bool is_fed_by_updates(const std::string& name) { return name == "step" || name == "ema_decay" || name.starts_with("lr."); }

constexpr double kSmallestLossScale = 1.0 / 1024;  // gradients that overflow with it are no rounding matter

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
  if (offload_ != nullptr) offload_->place(stage.update_program->graph(), engine_.store());
  if (offloads_to_host(recipe_.sharding) && recipe_.device.is_gpu())
    place_on_host(stage.update_program->graph(), engine_.store(), *recipe_.sharding.offload);
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

/// What this rank holds of an input of its graph, which updates or accumulates.
Placement TrainStep::placement_of(const ValueInfo& input, bool updates) const {
  Placement place;
  const auto of_samples = [&] {
    if (groups_.copies > 1) place[PlacementAxis::kData] = Held::kOwn;
    if (groups_.ranks > 1) place[PlacementAxis::kShard] = Held::kOwn;
  };
  const std::string& name = input.name;
  if (input.role == ValueRole::kInput) {
    if (!is_fed_by_updates(name)) of_samples();
    return place;
  }
  if (input.role == ValueRole::kBuffer || is_own_state(name) || (!updates && name == kGuardStopped)) {
    of_samples();
    return place;
  }
  const std::string of = input.role == ValueRole::kState ? name.substr(0, name.rfind('.')) : name;
  const bool sums = input.role == ValueRole::kState && name.ends_with(".grad");
  bool divided = divisions_.count(of) > 0;
  const std::vector<GradientBucket>* buckets = shards();
  const auto range = buckets == nullptr
                         ? std::vector<GradientBucket>::const_iterator()
                         : std::find_if(buckets->begin(), buckets->end(), [&](const auto& each) { return each.state == of; });
  if (buckets != nullptr && range != buckets->end()) {
    place[PlacementAxis::kShard] = Held::kRange;
    divided = range->divided;
    if (sums && groups_.copies > 1) place[PlacementAxis::kData] = Held::kOwn;  // summed over them once in a step
  } else if (sums) {
    of_samples();
  }
  if (divided) place[PlacementAxis::kTensor] = Held::kOwn;
  return place;
}

/// Buffers are statistics of the rank's samples.
bool TrainStep::is_own_state(const std::string& name) const {
  const auto of_buffer = [&](const ParameterSpec& spec) { return spec.role == ValueRole::kBuffer && name == spec.name + ".ema"; };
  return name.ends_with(kPowerSgdError) || std::any_of(parameters_.begin(), parameters_.end(), of_buffer);
}

void TrainStep::check_rank_graph(const Graph& graph, bool updates) const {
  if (ranks_ == nullptr && tensor_ == nullptr) return;
  verify_placements(graph, [&](const ValueInfo& input) { return placement_of(input, updates); }, updates);
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
  if (const auto& section = recipe_.sharding.hook; section && section->type == HookType::kPowerSgd) {
    power_sgd = PowerSgd{.rank = section->rank,
                         .warm_start = section->warm_start,
                         .error_feedback = section->error_feedback,
                         .seed = recipe_.seed,
                         .ranks = ranks_->size()};
  } else if (section) {
    hook = section->type == HookType::kBf16 ? DType::kBF16 : DType::kF16;
  }
  if (gathers()) return stage.divisions.push_back(gathered_updates(units_, groups_, hook));
  const BucketChoice choice{.bytes = recipe_.sharding.bucket.bytes,
                            .like = stage.divisions.empty() ? nullptr : stage.divisions.front().get(),
                            .hook = hook,
                            .power_sgd = power_sgd};
  stage.divisions.push_back(divides_state(recipe_, ranks_) ? sharded_updates(choice, groups_.rank, groups_.ranks)
                                                           : replicated_updates(choice));
}

int64_t TrainStep::replica_bytes() const {
  if (pipeline_) return pipeline_->bytes(stage_sums_);
  return replicas_.count == 0 ? 0 : ReplicaRunner::bytes(program(), replica_buckets_, replica_options());
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

void TrainStep::feed_batch(Execution& execution, const Batch& data, int64_t step, double weight) const {
  feed_fields(execution, data);
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

/// Describes a fault in the data of a batch: the first sample with a value that is not finite, or labels that are all ignored; "" without
/// fault.
std::string TrainStep::fault_of_data(const Execution& execution, const Batch& batch) const {
  if (const auto bad = first_bad_row(batch, [&](const std::string& field) { return execution.takes(field); })) {
    const auto row = static_cast<size_t>(bad->row);
    const std::string sample = row >= batch.indices.size() ? cat("row ", row, " of the batch")
                               : sample_name_              ? sample_name_(batch.indices[row])
                                                           : cat("sample ", batch.indices[row]);
    return cat("the field `", bad->field, "` of ", sample, " contains ", bad->value);
  }
  const int64_t ignored = session_.ignored_class();
  for (const FieldType& target : session_.task().targets()) {
    const auto found = batch.fields.find(target.name);
    if (found == batch.fields.end() || target.classes == 0 || found->second.dtype() != DType::kI64) continue;
    const int64_t *labels = found->second.data_as<int64_t>(), count = found->second.elements();
    if (std::all_of(labels, labels + count, [&](int64_t label) { return label == ignored; }))
      return cat("all labels of the batch are ", ignored, ", the value of loss.ignore_index, so the loss has no terms");
  }
  return "";
}

/// The update was skipped: parameters and state are those before the step, so repeating the forward and backward pass gives the same
/// numbers.
void TrainStep::stop(const Stage& stage, int64_t step, int64_t micro_batch, double loss, const Batch& last_batch) const {
  const RankScope alone(nullptr);                            // each rank repeats its own part
  const bool last = micro_batch + 1 == batch_.accumulation;  // its inputs are still set
  Execution& execution = last ? update_for(stage, last_batch) : *stage.accumulate;
  const Batch* batch = last ? &last_batch : reload_ ? &reload_(firsts_[static_cast<size_t>(micro_batch)]) : nullptr;
  if (!last && batch != nullptr) feed_batch(execution, *batch, step, weight_of(*batch));
  stop_with(step, loss, execution, batch);
}

/// `batch`: nullptr: not known any more.
void TrainStep::stop_with(int64_t step, double loss, Execution& execution, const Batch* batch) const {
  // A rank alone cannot gather units, and has parts of matrices.
  const auto culprit = batch != nullptr && !gathers() && tensor_ == nullptr ? find_non_finite(execution) : std::nullopt;
  std::string where = culprit ? "; first in " + culprit->text() : "";
  std::string fault = batch != nullptr ? fault_of_data(execution, *batch) : "";
  if (ranks_ != nullptr) {
    // The first rank with a culprit speaks for all.
    const std::string own = where.empty() && fault.empty() ? "" : cat(where, " (rank ", ranks_->rank(), ")\n", fault);
    const std::string first = first_text(*ranks_, own);
    const size_t end = std::min(first.find('\n'), first.size());
    where = first.substr(0, end);
    fault = first.substr(std::min(end + 1, first.size()));
  }
  throw Error(ErrorCode::kNumeric, cat("the loss is ",
                                       std::isnan(loss) ? "nan"
                                       : loss > 0       ? "inf"
                                                        : "-inf",
                                       " at step ", step, where, fault.empty() ? "" : "; " + fault))
      .key("train.guard.nan")
      .suggest(cat(fault.empty() ? "lower train.optimizer.lr, set train.clip=1.0, or check the data" : "correct or remove such samples",
                   "; this step changed no parameters"));
}

void TrainStep::read_losses(const Stage& stage, int64_t step, const Batch& last_batch, Outcome& outcome) const {
  const Execution& update = update_for(stage, last_batch);
  for (const std::string& name : losses_) outcome.losses.emplace_back(name, 0);
  // The update's losses are sums over ranks already; those of earlier micro-batches are this rank's parts.
  earlier_.clear();
  for (int64_t k = 0; k + 1 < batch_.accumulation; ++k) {
    earlier_.push_back(stage.accumulate->scalar("loss", batch_.accumulation - 2 - k));
    for (const std::string& name : losses_) earlier_.push_back(stage.accumulate->scalar("loss." + name, batch_.accumulation - 2 - k));
  }
  if (ranks_ != nullptr && !earlier_.empty())
    ranks_->all_reduce("losses", earlier_.data(), earlier_.data(), static_cast<int64_t>(earlier_.size()), DType::kF64);
  for (int64_t k = 0; k < batch_.accumulation; ++k) {
    const bool last = k + 1 == batch_.accumulation;
    const auto read = [&](const std::string& output, size_t place) {
      return last ? update.scalar(output) : earlier_[static_cast<size_t>(k) * (1 + losses_.size()) + place];
    };
    const double loss = read("loss", 0);
    if (guards() && !std::isfinite(loss)) stop(stage, step, k, loss, last_batch);
    outcome.loss += loss;
    for (size_t i = 0; i < outcome.losses.size(); ++i)
      outcome.losses[i].second += read("loss." + outcome.losses[i].first, 1 + i) / static_cast<double>(batch_.accumulation);
  }
  outcome.loss /= static_cast<double>(batch_.accumulation);
}

void TrainStep::read_update(const Execution& update, int64_t step, Outcome& outcome) {
  outcome.grad_norm = update.scalar("grad_norm");
  if (!scaling_) return;
  outcome.loss_scale = engine_.store().get(kLossScale).to_doubles().front();
  if (std::isfinite(outcome.grad_norm) || !scaling_->dynamic || *outcome.loss_scale >= kSmallestLossScale) return;
  throw Error(ErrorCode::kNumeric,
              cat("the gradients are not finite at step ", step, ", with any loss scale down to ", *outcome.loss_scale))
      .key("precision.compute")
      .suggest("write precision: bf16, or keep the modules with the largest values in f32 (precision.keep_f32)");
}

TrainStep::~TrainStep() = default;

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
  for (int64_t k = 0; k < batch_.accumulation; ++k) {
    const bool updates = k + 1 == batch_.accumulation;
    const auto asked = std::chrono::steady_clock::now();
    const Batch& data = next();
    Execution& execution = updates ? update_for(stage, data) : *stage.accumulate;
    const auto given = std::chrono::steady_clock::now();
    outcome.data_s += std::chrono::duration<double>(given - asked).count();
    if (observer != nullptr) {
      const auto ns = [](std::chrono::steady_clock::time_point at) {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
      };
      observer->fetched(ns(asked), ns(given));
    }
    firsts_[static_cast<size_t>(k)] = data.first;
    last = &data;
    feed_batch(execution, data, step, weight_of(data));
    if (updates) feed_update(stage, execution, step);
    execution.run({.observer = observer});
  }
  read_losses(stage, step, *last, outcome);
  read_update(update_for(stage, *last), step, outcome);
  return outcome;
}

}  // namespace galley
