// TrainStep with logical replicas (deterministic). Each replica runs a program of its own part of the batch, on one thread; the gradients,
// losses and statistics of batch norms are added in the order of one tree over all replicas; then each rank runs the update once. Bits
// depend on the number of replicas and their parts, on nothing else.

#include <algorithm>
#include <chrono>
#include <cmath>

#include "libcore/base/under_key.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/data/loader.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/passes/gather_units.h"
#include "libcore/passes/pipelines.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/rank_values.h"
#include "libcore/train/step.h"
#include "libcore/train/units.h"

namespace galley {
namespace {

/// Throws if the graph of a replica changes state, or has gradients that are not added in f32.
void check_replica_graph(const Graph& graph, const std::vector<GradientBucket>& buckets) {
  for (const Node& node : graph.nodes()) {
    if (node.op->updates.empty()) continue;
    throw Error(ErrorCode::kRecipe, cat("deterministic does not go with the operator ", node.op->name, " at ", node.path,
                                        ", which changes state in the forward pass"))
        .key("deterministic")
        .suggest("remove it");
  }
  for (const GradientBucket& bucket : buckets) {
    if (bucket.dtype == DType::kF32) continue;
    throw Error(ErrorCode::kRecipe,
                cat("deterministic adds gradients in f32, but those of ", bucket.parameters.front(), " are ", dtype_name(bucket.dtype)))
        .key("precision.master")
        .suggest("write precision.master: f32, or deterministic: false");
  }
}

constexpr int64_t kCopiedBytes = 64;  // of Execution::feed

/// Where parts 2, 3, ... of a pipeline begin: at modules, or so that all have about the same work.
std::vector<size_t> positions_of_parts(const Graph& graph, int64_t parts, const std::vector<std::string>& names) {
  const StagePositions positions = stage_positions(graph);
  const auto refuse = [](const char* key, const std::string& message, const std::string& suggestion) {
    throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
  };
  std::vector<size_t> cuts;
  if (names.empty() || names.front() == "auto") {
    cuts = balanced_cuts(positions.costs, positions.may_begin, parts);
    if (cuts.empty())
      refuse("sharding.stages", cat("the model cannot be cut into ", parts, " parts between which one value crosses"), "use fewer stages");
    cuts.erase(cuts.begin());
    return cuts;
  }
  if (std::ssize(names) + 1 != parts)
    refuse("sharding.split", cat("sharding.split names ", names.size(), " modules, but ", parts, " parts need ", parts - 1),
           "name one for each part after the first");
  for (const std::string& name : names) {
    size_t at = 0;
    const auto begins = [&](const std::string& path) { return path == name || path.starts_with(name + "."); };
    while (at < positions.paths.size() && !begins(positions.paths[at])) ++at;
    if (at == 0 || at == positions.paths.size() || (!cuts.empty() && at <= cuts.back()))
      refuse("sharding.split", cat("a stage cannot begin at ", name, ": the forward pass has no such module after the one before"),
             "name modules in the order of the forward pass");
    if (!positions.may_begin[at])
      refuse("sharding.split", cat("more than one value would cross to the stage at ", name), "name the beginning of a block");
    cuts.push_back(at);
  }
  return cuts;
}

}  // namespace

void TrainStep::check_replicas() {
  const auto refuse = [](const char* key, const std::string& message, const char* suggestion) {
    throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
  };
  if (trains_quantized(recipe_) || stored_plan(recipe_) != nullptr)
    refuse("deterministic", "deterministic trains in float, but the recipe has quantized weights", "write deterministic: false");
  if (!engine_.backend().device().is_host())
    refuse("deterministic", cat("deterministic divides the batch among threads, but the device is ", recipe_.device.str()),
           "write device: cpu");
  if (recipe_.sharding.hook && pipelines()) refuse("sharding.hook", "pipelines do not round gradients", "write sharding.hook: null");
  if (recipe_.sharding.hook && ranks_ != nullptr)
    refuse("sharding.hook",
           "sharding.hook rounds the sums of ranks, which depend on the number of ranks, so it does not go with deterministic",
           "write sharding.hook: null, or deterministic: false");
  if (recipe_.precision.reduce != PrecisionName::kF32 && ranks_ != nullptr)
    refuse("precision.reduce",
           "precision.reduce rounds the sums of ranks, which depend on the number of ranks, so it does not go with deterministic",
           "write reduce: f32, or deterministic: false");
  if (ranks_ == nullptr) return;
  auto fewest = static_cast<int64_t>(-replicas_.threads);  // all ranks gather units equally often
  ranks_->all_reduce("threads", &fewest, &fewest, 1, DType::kI64, ReduceOp::kMax);
  replicas_.threads = static_cast<int>(-fewest);
}

ReplicaRunner::Options TrainStep::replica_options() const {
  return {.ranks = ranks_, .shards = groups_, .choice = replicas_, .sums = replicas_sum_, .gathers = gathers()};
}

void TrainStep::add_replicas(Stage& stage, const BatchTypes& types, const std::vector<BatchTypes>& shorter) {
  if (pipelines()) {
    add_pipeline(stage, types);
    return add_update(stage);
  }
  std::vector<BatchTypes> all{types};
  all.insert(all.end(), shorter.begin(), shorter.end());
  for (const BatchTypes& each : all) {
    const bool first = replica_forms_.empty();
    replica_forms_.push_back(
        {each, engine_.program(
                   {.mode = "replica", .variant = "", .fields = each.fields},
                   first ? cat(replicas_.count, " replicas") : "replicas with other shapes", [&] { return capture_replica(stage, each); },
                   first ? ParameterFormats::kLead : ParameterFormats::kFollow)});
    engine_.declare(*replica_forms_.back().program);
  }
  add_update(stage);
}

void TrainStep::add_update(Stage& stage) {
  stage.update_program = engine_.program(
      {.mode = "train", .variant = "sums of replicas", .fields = {}}, "updates", [&] { return capture_replica_update(stage); },
      ParameterFormats::kFollow, session_.backend(replicas_.threads));
  engine_.declare(*stage.update_program);
  add_states(stage.states);
}

Graph TrainStep::capture_replica(Stage& stage, const BatchTypes& types) {
  CapturedModel model = capture_training(session_, types);
  const bool first = replica_division_ == nullptr;
  losses_ = model.results.losses;
  TrainingPasses passes;
  passes.precision = model.precision;
  for (const ParameterSpec& spec : model.parameters) {
    if (spec.trainable) passes.trained.push_back(spec.name);
  }
  weigh_losses(model.graph);
  if (recipe_.train.sync_batch_norm) {
    const auto rows = static_cast<double>(types.input().shape[0]);
    sync_batch_norms(model.graph, static_cast<double>(batch_.global) / rows);
  }
  ReplicaStatistics statistics;
  statistics.take(model.graph);
  if (first) {
    parameters_ = model.parameters;
    statistics_ = statistics;
    replicas_sum_ = recipe_.train.sync_batch_norm && statistics.elements() > 0;
    stage.groups = groups_of_parameters(parameters_);
    if (ranks_ != nullptr && divides_parameters(recipe_, ranks_)) units_ = units_of(recipe_, parameters_, stage.groups);
  }
  passes.updates = [&](Graph& graph, const GradientMap& gradients) {
    statistics.join(graph);
    const BucketChoice choice{.bytes = pipelines() ? 1 : recipe_.sharding.bucket.bytes, .like = replica_division_.get()};
    std::unique_ptr<RankUpdates> division = replica_gradients(choice, units_);
    division->reduce(graph, gradient_pieces(graph, gradients, stage.groups));
    if (first) {
      replica_buckets_ = division->buckets();
      replica_division_ = std::move(division);
    }
  };
  if (scaling_) passes.objective = scaled_loss;
  if (recipe_.train.recompute) passes.recompute = [&](const Graph& graph) { return recompute_of(graph); };
  PassReport report = training_passes(model.graph, engine_.backend(), passes);
  check_replica_graph(model.graph, replica_buckets_);
  if (gathers()) gather_pass()(model.graph);
  if (first) {
    fusions_declined_ = std::move(report.declined);
    attention_ = std::move(report.attention);
  }
  return std::move(model.graph);
}

/// The parts of the model that this rank computes.
void TrainStep::add_pipeline(Stage& stage, const BatchTypes& types) {
  const int64_t stages = ranks_->size();
  const int64_t chunks = recipe_.sharding.schedule == PipelineSchedule::kInterleaved ? 2 : 1, parts = stages * chunks;
  const Graph graph = capture_replica(stage, types);
  if (statistics_.elements() > 0)
    throw Error(ErrorCode::kRecipe, "pipelines do not train batch norms yet").key("sharding.strategy").suggest("write sharding: ddp");
  std::vector<StageGraphs> split = split_stages(graph, positions_of_parts(graph, parts, recipe_.sharding.split));
  const auto owner_of = [&](const std::string& output) {
    const auto made = std::find_if(split.begin(), split.end(), [&](const StageGraphs& part) {
      return part.backward.find_output(output) != kNoValue || part.forward.find_output(output) != kNoValue;
    });
    GALLEY_ASSERT(made != split.end(), output);
    return static_cast<int>((made - split.begin()) % stages);
  };
  for (const GradientBucket& bucket : replica_buckets_) gradient_owners_.push_back(owner_of(gradient_output(bucket, 0)));
  loss_owner_ = owner_of("loss");
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t number = chunk * stages + ranks_->rank();
    StageGraphs& own = split[static_cast<size_t>(number)];
    PipelineRunner::Part& part = parts_.emplace_back();
    const auto compiled = [&](const char* pass, Graph& of) {
      const bool first = parts_.size() == 1 && part.forward == nullptr;
      return engine_.program(
          {.mode = "stage", .variant = cat(pass, " ", number), .fields = types.fields}, cat("part ", number, " of ", parts),
          [&] { return std::move(of); }, first ? ParameterFormats::kLead : ParameterFormats::kFollow);
    };
    part.forward = compiled("forward", own.forward);
    part.backward = compiled("backward", own.backward);
    part.messages = std::move(own);
    engine_.declare(*part.forward);
    engine_.declare(*part.backward);
  }
  replica_forms_.push_back({types, parts_.front().forward});
  std::vector<StageActions> actions =
      pipeline_actions(pipeline_schedule(recipe_.sharding.schedule, stages, replicas_.count, chunks), chunks);
  constexpr int64_t kMessages = 2;
  const std::string fault = check_actions(actions, replicas_.count, chunks, kMessages);
  GALLEY_ASSERT(fault.empty(), fault);
  pipeline_ = std::make_unique<PipelineRunner>(*ranks_, replicas_.count, std::move(actions), parts_);
}

Graph TrainStep::capture_replica_update(Stage& stage) {
  Graph graph;
  Gradients gradients;  // of the right types: RankUpdates replaces them by sums
  for (const ParameterSpec& spec : parameters_) {
    if (spec.role == ValueRole::kBuffer) {
      graph.add_input(spec.name, spec.type, spec.role);
    } else if (spec.trainable) {
      const ValueId id = graph.add_input(spec.name, spec.type, spec.role).id();
      gradients[id] = id;
    }
  }
  graph.set_phase(Phase::kUpdate);
  statistics_.add_updates(graph);
  const BucketChoice choice{.like = replica_division_.get(), .summed = true};
  if (gathers()) {
    stage.divisions.push_back(gathered_updates(units_, groups_, {}, true));
  } else if (ranks_ != nullptr && divides_state(recipe_, ranks_)) {
    stage.divisions.push_back(sharded_updates(choice, groups_.rank, groups_.ranks));
  } else {
    stage.divisions.push_back(replicated_updates(choice));
  }
  UpdateOptions options = update_options(stage);
  options.given_squares = true;
  options.ranks = stage.divisions.back().get();
  under_key("train.optimizer", [&] { stage.states = add_updates(graph, gradients, options).states; });
  if (scaling_) gate_updates(graph, gates(graph));
  if (gathers()) gather_pass()(graph);
  return graph;
}

void TrainStep::bind_replicas(Stage& stage) {
  stage.update = engine_.bind(stage.update_program);
  bind_rates(stage);
  std::vector<std::string> losses{"loss"};
  for (const std::string& name : losses_) losses.push_back("loss." + name);
  if (pipelines()) {
    pipeline_->bind(engine_, replica_buckets_, gradient_owners_, std::move(losses), loss_owner_);
    for (size_t b = 0; b < replica_buckets_.size(); ++b) stage.update->feed(replica_buckets_[b].name, pipeline_->sum(b));
    return;
  }
  const bool scattered = ranks_ != nullptr && divides_state(recipe_, ranks_);
  runner_ = std::make_unique<ReplicaRunner>(replica_options());
  runner_->bind(engine_, replica_forms_, replica_buckets_, scattered, statistics_.elements(), std::move(losses));
  for (size_t b = 0; b < replica_buckets_.size(); ++b) stage.update->feed(replica_buckets_[b].name, runner_->sum(b));
  if (statistics_.elements() > 0) stage.update->feed(kStatistics, runner_->statistics());
}

/// The batches of this rank's replicas, with their weights in the loss: labels that the loss does not ignore, divided by those of all
/// replicas; without such labels their samples.
std::vector<ReplicaInput> TrainStep::replica_inputs(const std::function<const Batch&()>& next, Outcome& outcome, NodeObserver* observer) {
  std::vector<ReplicaInput> inputs;
  std::vector<int64_t> labels;
  const auto ns = [](std::chrono::steady_clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  };
  const auto asked = std::chrono::steady_clock::now();
  bool counted = true;
  int64_t all = 0;
  const int count = pipeline_ ? replicas_.count : runner_->count();
  for (int i = 0; i < count; ++i) {
    const Batch& data = next();
    const double share = share_ ? share_() : 1.0 / replicas_.count;
    inputs.push_back({.batch = &data, .weight = share, .share = share});
    labels.push_back(labels_in(data));
    counted = counted && labels.back() >= 0;
    if (share == 0) labels.back() = 0;
    all += labels.back();
  }
  const auto given = std::chrono::steady_clock::now();
  outcome.data_s = std::chrono::duration<double>(given - asked).count();
  if (observer != nullptr) observer->fetched(ns(asked), ns(given));
  if (!counted) return inputs;
  if (ranks_ != nullptr && !pipeline_) ranks_->all_reduce("labels", &all, &all, 1, DType::kI64);
  for (size_t i = 0; all > 0 && i < inputs.size(); ++i) inputs[i].weight = static_cast<double>(labels[i]) / static_cast<double>(all);
  return inputs;
}

TrainStep::Outcome TrainStep::run_replicas(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer) {
  const Stage& stage = stages_.front();
  if (ranks_ != nullptr) ranks_->set_step(step);
  const RankScope scope(ranks_);
  Outcome outcome;
  const std::vector<ReplicaInput> inputs = replica_inputs(next, outcome, observer);
  const auto feed = [&](Execution& execution, const ReplicaInput& input) {
    feed_batch(execution, *input.batch, step, input.weight);
    if (execution.takes(kReplicaShare)) execution.set(kReplicaShare, input.share);
  };
  const auto compute = [&](auto& runner) {
    runner.run(inputs, feed, observer);
    runner.reduce();
    outcome.loss = runner.loss(0);
    for (size_t i = 0; i < losses_.size(); ++i) outcome.losses.emplace_back(losses_[i], runner.loss(1 + i));
  };
  pipeline_ ? compute(*pipeline_) : compute(*runner_);
  if (guards() && !std::isfinite(outcome.loss)) {
    const RankScope alone(nullptr);  // each rank repeats its own part
    for (int i = 0; !pipeline_ && i < runner_->count(); ++i) {
      const ReplicaInput& input = inputs[static_cast<size_t>(i)];
      if (std::isfinite(runner_->loss_of(i))) continue;
      Execution& execution = runner_->execution_for(*input.batch);
      feed(execution, input);
      stop_with(step, outcome.loss, execution, input.batch);
    }
    stop_with(step, outcome.loss, *stage.update, nullptr);
  }
  Execution& update = *stage.update;
  feed_update(stage, update, step);
  for (size_t b = 0; b < replica_buckets_.size(); ++b) {  // Execution::feed copies small arrays
    const GradientBucket& bucket = replica_buckets_[b];
    if (bucket.layout.shard(groups_.ranks) * 4 <= kCopiedBytes) update.feed(bucket.name, pipeline_ ? pipeline_->sum(b) : runner_->sum(b));
  }
  if (statistics_.elements() > 0 && statistics_.elements() * 4 <= kCopiedBytes) update.feed(kStatistics, runner_->statistics());
  if (update.takes("grad_squares")) update.set("grad_squares", pipeline_ ? pipeline_->squares() : runner_->squares());
  update.run({.observer = observer});
  read_update(update, step, outcome);
  return outcome;
}

}  // namespace galley
