#include "libcore/dist/rank_memory.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "libcore/base/error.h"
#include "libcore/dist/simulate.h"

namespace galley {
namespace {

/// What a stage holds: its units, and activations of a micro-batch.
struct StageModel {
  std::set<int> units, segments;               // that it uses; its forward segments
  double kept = 0;                             // by all of its segments for their backward passes
  double forward_peak = 0, backward_peak = 0;  // largest sums of live bytes, without fed data
  double boundary = 0;
};

/// The stage of each forward segment.
std::vector<int64_t> stages_of(const PlanModel& model, const JobPlan& job, const std::vector<size_t>& cuts) {
  std::vector<int64_t> stages(model.forward.size(), 0);
  for (size_t i = 0; i < stages.size() && !cuts.empty(); ++i) {
    const auto part = static_cast<int64_t>(std::upper_bound(cuts.begin(), cuts.end(), i) - cuts.begin()) - 1;
    stages[i] = part % job.mesh.pipe;
  }
  return stages;
}

std::vector<StageModel> stage_models(const PlanModel& model, const JobPlan& job, const std::vector<size_t>& cuts) {
  const std::vector<int64_t> stages = stages_of(model, job, cuts);
  std::vector<StageModel> result(static_cast<size_t>(std::max<int64_t>(1, cuts.empty() ? 1 : job.mesh.pipe)));
  // What the segments up to this one keep that are not of its stage: counted in its live bytes, which are those of one rank with all
  // stages.
  std::vector<double> elsewhere(model.forward.size(), 0);
  double kept = model.input_bytes;
  for (size_t i = 0; i < model.forward.size(); ++i) {
    const PlanSegment& segment = model.forward[i];
    StageModel& stage = result[static_cast<size_t>(stages[i])];
    if (segment.unit >= 0) stage.units.insert(segment.unit);
    stage.segments.insert(static_cast<int>(i));
    stage.kept += segment.kept_bytes;
    kept += segment.kept_bytes;
    elsewhere[i] = kept - stage.kept;
    stage.forward_peak = std::max(stage.forward_peak, segment.live_bytes - elsewhere[i]);
    stage.boundary = std::max(stage.boundary, segment.output_bytes);
  }
  for (const PlanSegment& segment : model.backward) {
    const auto of = static_cast<size_t>(std::max(0, segment.forward));
    StageModel& stage = result[static_cast<size_t>(stages[of])];
    if (segment.unit >= 0) stage.units.insert(segment.unit);
    stage.backward_peak = std::max(stage.backward_peak, segment.live_bytes - elsewhere[of]);
  }
  return result;
}

/// Bytes of gathered units at once, and of the whole gradient of the unit in work.
struct GatheredBytes {
  double parameters = 0, gradient = 0;
};
GatheredBytes gathered_bytes(const PlanModel& model, const JobPlan& job, const Cluster& cluster, const std::set<int>& units) {
  if (!job.fetches()) return {};
  double largest = 0, second = 0, all = 0, held = 0;
  const std::vector<bool> stay = model.staying_units();
  for (const int unit : units) {
    const auto bytes = static_cast<double>(model.largest_part(unit) * model.gather_bytes);
    all += static_cast<double>(model.elements(unit) * model.gather_bytes);
    if (stay[static_cast<size_t>(unit)]) {
      held += static_cast<double>(model.elements(unit) * model.gather_bytes);
      continue;
    }
    second = std::max(second, std::min(bytes, largest));
    // Parts of one unit follow each other, so that two of the same size may be gathered at once.
    if (!model.units[static_cast<size_t>(unit)].parts.empty()) second = std::max(second, bytes);
    largest = std::max(largest, bytes);
  }
  const bool whole_gradient = job.gathers() || job.gradients != StatePlace::kDevice;
  const double gradient = !whole_gradient ? 0
                                          : largest / static_cast<double>(model.gather_bytes) *
                                                static_cast<double>(std::min(model.bytes.gradient, model.gather_bytes));
  const bool prefetches = cluster.overlaps && cluster.allocator == Allocator::kStatic;
  double parameters = !job.reshard_after_forward ? all : prefetches ? held + largest + second : held + largest;
  if (job.reshard_after_forward && job.gather_limit > 0)
    parameters = std::min(parameters, std::max(held + largest, static_cast<double>(job.gather_limit)));
  // Ranks of a node that share memory read one copy.
  if (cluster.shared_memory && job.gathers()) parameters /= static_cast<double>(job.mesh.shard);
  return {parameters, gradient};
}

/// The trained or frozen parameters of a stage in the order in which buckets take them: fsdp in the order of the model, others in that in
/// which gradients become final.
std::vector<const PlanParameter*> bucket_order(const PlanModel& model, const JobPlan& job, const StageModel& stage, bool all,
                                               bool trained) {
  std::vector<std::pair<int64_t, const PlanParameter*>> order;
  const auto count = static_cast<int64_t>(model.parameters.size());
  for (int64_t i = 0; i < count; ++i) {
    const PlanParameter& parameter = model.parameters[static_cast<size_t>(i)];
    const bool here =
        parameter.forward_segment >= 0 ? stage.segments.contains(parameter.forward_segment) : stage.units.contains(parameter.unit);
    if (parameter.trained != trained || (!all && !here)) continue;
    order.emplace_back(job.gathers() ? i : parameter.order >= 0 ? parameter.order : count - i, &parameter);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const PlanParameter*> parameters;
  for (const auto& [place, parameter] : order) parameters.push_back(parameter);
  return parameters;
}

int64_t elements_of(const std::vector<const PlanParameter*>& parameters) {
  int64_t elements = 0;
  for (const PlanParameter* parameter : parameters) elements += parameter->elements;
  return elements;
}

/// As training divides them (passes/shard.h, train/units.h): fsdp has one array for each unit and group.
std::vector<BucketLayout> buckets_of(const std::vector<const PlanParameter*>& parameters, const JobPlan& job, int64_t element_bytes) {
  constexpr int64_t kFirstBytes = int64_t{1} << 20;
  std::vector<BucketMember> members;
  for (const PlanParameter* parameter : parameters) {
    const int64_t unit = job.gathers() ? parameter->unit : 0;
    members.push_back({.elements = parameter->elements, .element_bytes = element_bytes, .key = (unit << 32) + parameter->group});
  }
  return divide_into_buckets(members, job.gathers() ? INT64_MAX : job.bucket_bytes, job.gathers() ? INT64_MAX : kFirstBytes);
}

/// Bytes of the model states of a stage: the formulas over its buckets, and parameters that are not trained.
ModelBytes stage_bytes(const PlanModel& model, const JobPlan& job, const StageModel& stage, bool all) {
  const std::vector<const PlanParameter*> trained = bucket_order(model, job, stage, all, true);
  const std::vector<const PlanParameter*> frozen = bucket_order(model, job, stage, all, false);
  const int64_t elements = elements_of(trained);
  ModelBytes bytes;
  if (job.mesh.shard == 1 && job.mesh.data == 1) {  // no collectives: no buckets, no padding
    bytes = model_bytes(ShardingStrategy::kNone, static_cast<double>(elements), 1, model.bytes);
  } else {
    const bool ranges = job.optimizer_ranks() > 1;
    // A summed bucket is freed at its update: zero1 keeps no more of gradients than zero2.
    const ShardingStrategy strategy = !ranges                                    ? ShardingStrategy::kDdp
                                      : job.strategy == ShardingStrategy::kZero1 ? ShardingStrategy::kZero2
                                                                                 : job.strategy;
    const std::vector<BucketLayout> buckets = buckets_of(trained, job, model.bytes.gradient);
    bytes = model_bytes(strategy, buckets, elements, ranges ? job.mesh.shard : job.mesh.data, model.bytes);
  }
  const int64_t kept = job.gathers() && job.mesh.shard > 1
                           ? shard_elements(buckets_of(frozen, job, model.bytes.parameter), static_cast<int>(job.mesh.shard))
                           : elements_of(frozen);
  bytes.parameters += static_cast<double>(kept * model.bytes.parameter);
  if (all || job.gathers()) return bytes;
  for (const PlanParameter& parameter : model.parameters) {  // copies of what another stage updates: tied weights
    const auto here = [&](int segment) { return stage.segments.contains(segment); };
    if (parameter.forward_segment >= 0 && !here(parameter.forward_segment) &&
        std::any_of(parameter.read_by.begin(), parameter.read_by.end(), here))
      bytes.parameters += static_cast<double>(parameter.elements * model.bytes.parameter);
  }
  return bytes;
}

/// Buckets that are sent while the next ones fill.
double communication_bytes(const PlanModel& model, const JobPlan& job) {
  if (job.mesh.shard * job.mesh.data == 1) return 0;
  const double bucket =
      std::min(static_cast<double>(job.bucket_bytes), static_cast<double>(model.trained_elements() * model.bytes.gradient));
  double bytes = 0;
  if (job.strategy == ShardingStrategy::kZero1 || job.strategy == ShardingStrategy::kZero2)
    bytes += 2 * bucket;  // whole gradients until they are reduced
  if (job.hook_factor < 1 || model.reduce_bytes != model.bytes.gradient)
    bytes += 2 * bucket * job.hook_factor * static_cast<double>(model.reduce_bytes) / static_cast<double>(model.bytes.gradient);
  return bytes;
}

/// What the communication hook keeps between steps for the parameters of a stage.
double hook_bytes(const PlanModel& model, const JobPlan& job, const StageModel& stage, bool all) {
  if (job.power_sgd_rank == 0) return 0;
  double bytes = 0;
  for (const PlanParameter& parameter : model.parameters) {
    const bool here =
        all || (parameter.forward_segment >= 0 ? stage.segments.contains(parameter.forward_segment) : stage.units.contains(parameter.unit));
    if (!here || !parameter.trained || parameter.rows == 0) continue;
    const double factors = summed_bytes(model, parameter, job);
    if (factors >= static_cast<double>(parameter.elements * model.reduce_bytes)) continue;  // it is summed as it is
    bytes += factors;
    if (job.error_feedback) bytes += static_cast<double>(parameter.elements * model.bytes.gradient);
  }
  return bytes;
}

RankMemory memory_of_stage(const PlanModel& model, const JobPlan& job, const Cluster& cluster, const StageModel& stage, int64_t index,
                           bool pipelined) {
  RankMemory memory;
  memory.stage = index;
  memory.model = stage_bytes(model, job, stage, !pipelined);
  const double held = pipelined ? held_micro_batches(job.schedule, index, job.mesh.pipe, job.micro_batches, job.chunks) : 1;
  memory.kept_bytes = held * stage.kept;
  const GatheredBytes gathered = gathered_bytes(model, job, cluster, stage.units);
  const auto on_device = [](StatePlace place, double bytes) { return place == StatePlace::kDevice ? bytes : 0; };
  const bool accumulates = job.micro_batches > 1;
  // zero1, zero2, and stages whose units stay gathered, keep whole gradients of accumulated micro-batches.
  const bool zero = job.strategy == ShardingStrategy::kZero1 || job.strategy == ShardingStrategy::kZero2;
  const bool whole = (zero || (pipelined && job.gathers() && !job.reshard_after_forward)) && accumulates;
  const double gradients = whole ? memory.model.gradients * static_cast<double>(job.mesh.shard) : memory.model.gradients;
  const auto on_host = [](StatePlace place, double bytes) { return place == StatePlace::kHost ? bytes : 0; };
  memory.host =
      on_host(job.parameters, memory.model.parameters) + on_host(job.gradients, gradients) + on_host(job.optimizer, memory.model.optimizer);
  PhaseMemory base;
  base.parameters = on_device(job.parameters, memory.model.parameters);
  base.optimizer = on_device(job.optimizer, memory.model.optimizer);
  base.other = model.other_bytes;
  base.communication = hook_bytes(model, job, stage, !pipelined);
  if (!job.gathers()) base.gathered = model.copy_bytes * (pipelined ? 1.0 / static_cast<double>(job.mesh.pipe) : 1);
  PhaseMemory forward = base, backward = base, update = base;
  forward.phase = "forward";
  forward.gradients = accumulates ? on_device(job.gradients, gradients) : 0;
  forward.gathered += gathered.parameters;
  const double inputs = pipelined && index > 0 ? held * stage.boundary : model.input_bytes;
  forward.activations = memory.kept_bytes - stage.kept + stage.forward_peak + inputs;
  backward.phase = "backward";
  backward.gradients = on_device(job.gradients, gradients);
  backward.gathered += gathered.parameters + gathered.gradient;
  backward.activations = memory.kept_bytes - stage.kept + stage.backward_peak + inputs;
  backward.communication += communication_bytes(model, job);
  update.phase = "update";
  update.gradients = backward.gradients;
  memory.phases = {forward, backward, update};
  return memory;
}

}  // namespace

const PhaseMemory& RankMemory::largest() const {
  GALLEY_ASSERT(!phases.empty());
  return *std::max_element(phases.begin(), phases.end(), [](const PhaseMemory& a, const PhaseMemory& b) { return a.sum() < b.sum(); });
}

std::vector<RankMemory> rank_memory(const PlanModel& model, const JobPlan& job, const Cluster& cluster, const std::vector<size_t>& cuts) {
  const bool pipelined = !cuts.empty() && job.mesh.pipe > 1;
  std::vector<RankMemory> result;
  const std::vector<StageModel> stages = stage_models(model, job, pipelined ? cuts : std::vector<size_t>());
  for (size_t s = 0; s < stages.size(); ++s)
    result.push_back(memory_of_stage(model, job, cluster, stages[s], static_cast<int64_t>(s), pipelined));
  return result;
}

double peak_bytes(const std::vector<RankMemory>& stages) {
  double peak = 0;
  for (const RankMemory& stage : stages) peak = std::max(peak, stage.peak());
  return peak;
}

}  // namespace galley
