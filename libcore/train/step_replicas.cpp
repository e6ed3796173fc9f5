// TrainStep with logical replicas (deterministic). Each replica runs a program of its own part of the batch, on one thread or, on a GPU, on
// its stream. The gradients, losses and statistics of batch norms are added in the order of one tree over all replicas; then each rank runs
// the update once. Bits depend on the number of replicas and their parts, on nothing else.

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
#include "libcore/train/offload.h"
#include "libcore/train/rank_roles.h"
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

}  // namespace

void TrainStep::check_replicas() {
  const auto refuse = [](const char* key, const std::string& message, const char* suggestion) {
    throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
  };
  if (trains_quantized(recipe_) || stored_plan(recipe_) != nullptr)
    refuse("deterministic", "deterministic trains in float, but the recipe has quantized weights", "write deterministic: false");
  if (recipe_.train.sync_batch_norm && !pipelines() && !on_host())
    refuse("train.sync_batch_norm",
           cat("with deterministic, device: ", recipe_.device.str(),
               " computes the replicas of a batch one after the other, so that batch norms cannot normalize by the whole batch"),
           "write train.sync_batch_norm: false, or deterministic: false");
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
  return {.ranks = ranks_,
          .shards = groups_,
          .choice = replicas_,
          .sums = replicas_sum_,
          .gathers = gathers(),
          .tensor = tensor_,
          .host = on_host(),
          .others = offload_ != nullptr ? offload_->pages() : nullptr};
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
    place_offloaded(*replica_forms_.back().program);
    engine_.declare(*replica_forms_.back().program);
  }
  add_update(stage);
}

void TrainStep::add_update(Stage& stage) {
  stage.update_program = engine_.program(
      {.mode = "train", .variant = "sums of replicas", .fields = {}}, "updates", [&] { return capture_replica_update(stage); },
      ParameterFormats::kFollow, on_host() ? session_.backend(replicas_.threads) : nullptr);
  place_offloaded(*stage.update_program);
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
  divide_matrices(model.graph);
  weigh_losses(model.graph);
  if (recipe_.train.sync_batch_norm) {
    const auto rows = static_cast<double>(types.input().shape[0]);
    sync_batch_norms(model.graph, static_cast<double>(batch_.global) / rows);
  }
  if (ranks_ != nullptr) place_samples(model.graph, pipelines() ? ShardGroups{.copies = place_.copies} : groups_);
  ReplicaStatistics statistics;
  statistics.take(model.graph);
  if (first) {
    parameters_ = model.parameters;
    statistics_ = statistics;
    replicas_sum_ = recipe_.train.sync_batch_norm && statistics.elements() > 0;
    stage.groups = groups_of_parameters(parameters_);
    if (ranks_ != nullptr && divides_parameters(recipe_, ranks_)) units_ = own_units(stage);
  }
  passes.updates = [&](Graph& graph, const GradientMap& gradients) {
    pipelines() ? statistics.join_each(graph) : statistics.join(graph);
    const BucketChoice choice{.bytes = pipelines() ? 1 : recipe_.sharding.bucket.bytes, .like = replica_division_.get()};
    std::unique_ptr<RankUpdates> division = replica_gradients(choice, units_);
    UpdateOptions options;
    options.groups = stage.groups;
    options.divided = divided_parameters();
    division->reduce(graph, gradient_pieces(graph, gradients, options));
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
  check_rank_graph(model.graph, false);
  if (first) {
    fusions_declined_ = std::move(report.declined);
    attention_ = std::move(report.attention);
  }
  return std::move(model.graph);
}

Graph TrainStep::capture_replica_update(Stage& stage) {
  Graph graph;
  Gradients gradients;  // of the right types: RankUpdates replaces them by sums
  for (const ParameterSpec& spec : parameters_) {
    if (!owns(spec.name)) continue;
    if (spec.role == ValueRole::kBuffer) {
      graph.add_input(spec.name, spec.type, spec.role);
    } else if (spec.trainable) {
      TensorType type = spec.type;
      const auto division = divisions_.find(spec.name);
      if (division != divisions_.end()) {
        type.shape = division->second.shape(type.shape, tensor_->rank(), tensor_->size());
        type.placement[PlacementAxis::kTensor] = Held::kOwn;
      }
      const ValueId id = graph.add_input(spec.name, type, spec.role).id();
      gradients[id] = id;
    }
  }
  graph.set_phase(Phase::kUpdate);
  if (pipelines()) {
    for (const size_t norm : own_norms_) statistics_.add_update(graph, norm);
  } else {
    statistics_.add_updates(graph);
  }
  const BucketChoice choice{.like = replica_division_.get(), .summed = true};
  if (pipelines()) {
    stage.divisions.push_back(replicated_updates({.bytes = 1, .summed = true}));
  } else if (gathers()) {
    stage.divisions.push_back(gathered_updates(units_, groups_, {}, true));
  } else if (ranks_ != nullptr && divides_state(recipe_, ranks_)) {
    stage.divisions.push_back(sharded_updates(choice, groups_.rank, groups_.ranks));
  } else {
    stage.divisions.push_back(replicated_updates(choice));
  }
  UpdateOptions options = update_options(stage);
  options.given_squares = true;
  std::erase_if(options.groups.group_of, [&](const auto& parameter) { return !owns(parameter.first); });
  options.ranks = stage.divisions.back().get();
  under_key("train.optimizer", [&] { stage.states = add_updates(graph, gradients, options).states; });
  if (scaling_) gate_updates(graph, gates(graph));
  if (gathers()) gather_pass()(graph);
  check_rank_graph(graph, true);
  return graph;
}

void TrainStep::bind_replicas(Stage& stage) {
  stage.update = engine_.bind(stage.update_program);
  bind_rates(stage);
  std::vector<std::string> losses{"loss"};
  for (const std::string& name : losses_) losses.push_back("loss." + name);
  if (pipelines()) return bind_pipeline(stage, std::move(losses));
  const bool scattered = ranks_ != nullptr && divides_state(recipe_, ranks_);
  runner_ = std::make_unique<ReplicaRunner>(replica_options());
  runner_->bind(engine_, replica_forms_, replica_buckets_, scattered, statistics_.elements(), std::move(losses));
  feed_sums(stage, INT64_MAX);
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
  const int count = pipeline_ ? pipeline_->own().end - pipeline_->own().begin : runner_->count();
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
  if (ranks_ != nullptr && place_.copies * place_.stages == 1) ranks_->all_reduce("labels", &all, &all, 1, DType::kI64);
  if (place_.copies > 1) {
    ranks_->run({.kind = CollectiveKind::kAllReduce,
                 .dtype = DType::kI64,
                 .name = "labels",
                 .input = &all,
                 .output = &all,
                 .count = 1,
                 .group = {1, place_.copies}});
  }
  for (size_t i = 0; all > 0 && i < inputs.size(); ++i) inputs[i].weight = static_cast<double>(labels[i]) / static_cast<double>(all);
  return inputs;
}

/// Feeds the sums of at most `most` bytes to the update.
void TrainStep::feed_sums(const Stage& stage, int64_t most) const {
  const auto feed = [&](const std::string& name, int64_t elements, const auto& sum) {
    if (elements * 4 <= most) stage.update->feed(name, sum());
  };
  if (pipeline_) return feed_stage_sums(stage, most);
  for (size_t b = 0; b < replica_buckets_.size(); ++b)
    feed(replica_buckets_[b].name, replica_buckets_[b].layout.shard(groups_.ranks), [&] { return runner_->sum(b); });
  if (statistics_.elements() > 0) feed(std::string(kStatistics), statistics_.elements(), [&] { return runner_->statistics(); });
}

TrainStep::Outcome TrainStep::run_replicas(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer) {
  const Stage& stage = stages_.front();
  for (Communicator* each : {ranks_, tensor_}) {
    if (each != nullptr) each->set_step(step);
  }
  const RankScope scope(ranks_, tensor_);
  Outcome outcome;
  const std::vector<ReplicaInput> inputs = replica_inputs(next, outcome, observer);
  const auto feed = [&](Execution& execution, const ReplicaInput& input) {
    feed_batch(execution, *input.batch, step, input.weight);
    if (execution.takes(kReplicaShare)) execution.set(kReplicaShare, input.share);
  };
  const auto compute = [&](auto& runner) {
    runner.run(inputs, feed, observer);
    runner.reduce(observer);
    outcome.loss = runner.loss(0);
    for (size_t i = 0; i < losses_.size(); ++i) outcome.losses.emplace_back(losses_[i], runner.loss(1 + i));
  };
  pipeline_ ? compute(*pipeline_) : compute(*runner_);
  if (guards() && !std::isfinite(outcome.loss)) {
    const RankScope alone(nullptr);  // each rank repeats its own part
    for (int i = 0; !pipeline_ && tensor_ == nullptr && i < runner_->count(); ++i) {
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
  feed_sums(stage, on_host() ? kCopiedBytes : INT64_MAX);  // larger arrays of the host are read where they are
  const double squares = pipeline_ ? pipeline_->squares(own_gradients()) : runner_->squares();
  if (update.takes("grad_squares")) update.set("grad_squares", squares);
  update.run({.observer = observer});
  if (pipeline_ && own_gradients().empty()) {  // the stage trains nothing
    outcome.grad_norm = static_cast<double>(std::sqrt(static_cast<float>(squares))) / (scaling_ ? scaling_->initial : 1);
  } else {
    read_update(update, step, outcome);
  }
  if (pipeline_) share_parameters();
  return outcome;
}

}  // namespace galley
