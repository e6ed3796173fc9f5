#include "libcore/dist/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "libcore/base/error.h"
#include "libcore/dist/pipeline.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 3> kLanes{"compute", "communication", "host"};

/// Seconds of the collectives of tensor parallelism in a segment; they are not hidden.
double reduction_seconds(const PlanSegment& segment, const JobPlan& job, const Cluster& cluster) {
  if (segment.reductions == 0 || job.mesh.tensor <= 1) return 0;
  const GroupLinks links = group_links(cluster, job.mesh, MeshAxis::kTensor);
  return segment.reductions * choose_collective(CollectiveOp::kAllReduce, links, segment.reduced_bytes, cluster.shared_memory).seconds;
}

/// Time of a segment without and with the collectives of tensor parallelism.
struct SegmentTime {
  double compute = 0, reductions = 0;
  double sum() const { return compute + reductions; }
};

std::vector<SegmentTime> times_of(const std::vector<PlanSegment>& segments, const JobPlan& job, const Cluster& cluster) {
  std::vector<SegmentTime> times;
  for (const PlanSegment& segment : segments)
    times.push_back({seconds_of(segment.work, cluster), reduction_seconds(segment, job, cluster)});
  return times;
}

/// The part of the update that one rank executes, and what offload adds.
double update_seconds(const PlanModel& model, const JobPlan& job, const Cluster& cluster, double share) {
  const double part = share / static_cast<double>(job.optimizer_ranks());
  const double elements = static_cast<double>(model.trained_elements()) * part;
  const auto per_node = static_cast<double>(std::min(cluster.per_node, job.mesh.ranks()));
  if (job.optimizer == StatePlace::kDevice) return part * seconds_of(model.update, cluster);
  const auto state = static_cast<double>(model.bytes.optimizer);
  if (job.optimizer == StatePlace::kDisk)
    return part * seconds_of(model.update, cluster) + 2 * elements * state / (cluster.disk / per_node);
  // The host reads and writes the state, and sends new parameters to the device; gradients arrive during the backward pass.
  return elements * state / (cluster.host_bandwidth / per_node) + elements * static_cast<double>(model.gather_bytes) / cluster.host_link;
}

/// One step of ranks that divide samples, and perhaps parameters: queues for computation and for collectives.
class DataParallelRun {
 public:
  DataParallelRun(const PlanModel& model, const JobPlan& job, const Cluster& cluster)
      : model_(model),
        job_(job),
        cluster_(cluster),
        shard_(group_links(cluster, job.mesh, MeshAxis::kShard)),
        data_(group_links(cluster, job.mesh, MeshAxis::kData)) {
    const bool communicates = job.mesh.shard > 1 || job.mesh.data > 1;
    rate_ = communicates && cluster.overlaps ? cluster.contention : 1;
    forward_ = times_of(model.forward, job, cluster);
    backward_ = times_of(model.backward, job, cluster);
    find_last_uses();
    find_gradients();
    find_limit();
  }

  Simulation run() {
    for (int64_t m = 0; m < job_.micro_batches; ++m) {
      last_micro_batch_ = m + 1 == job_.micro_batches;
      run_phase(model_.forward, forward_, last_forward_, false);
      run_phase(model_.backward, backward_, last_backward_, true);
    }
    send_gradients();
    const double begin = std::max(compute_, communication_);
    const double seconds = update_seconds(model_, job_, cluster_, 1);
    add(job_.optimizer == StatePlace::kHost ? Lane::kHost : Lane::kCompute, "update", begin, begin + seconds, 0);
    compute_ = communication_ = begin + seconds;
    if (job_.optimizer != StatePlace::kHost) busy_ += seconds;
    if ((job_.strategy == ShardingStrategy::kZero1 || job_.strategy == ShardingStrategy::kZero2) && job_.mesh.shard > 1)
      collective(CollectiveOp::kAllGather, "parameters", shard_, static_cast<double>(model_.trained_elements() * model_.gather_bytes),
                 compute_);
    result_.step_s = std::max(compute_, communication_);
    result_.compute_s = busy_;
    result_.exposed_s = result_.step_s - busy_;
    const auto readers = static_cast<double>(job_.micro_batches * job_.mesh.data * job_.mesh.shard);
    result_.flops = model_.flops * readers * static_cast<double>(job_.mesh.tensor);
    result_.model_flops = model_.model_flops * readers * static_cast<double>(job_.mesh.tensor);
    return std::move(result_);
  }

 private:
  struct Gathered {
    double bytes = 0, free_at = std::numeric_limits<double>::infinity();
    bool ready = false;
    double ready_at = 0;
  };

  void add(Lane lane, const std::string& name, double begin, double end, double bytes) {
    if (end > begin) result_.timeline.push_back({.lane = lane, .name = name, .begin = begin, .end = end, .bytes = bytes});
  }

  void find_last_uses() {
    for (size_t i = 0; i < model_.forward.size(); ++i) last_forward_[model_.forward[i].unit] = i;
    for (size_t i = 0; i < model_.backward.size(); ++i) last_backward_[model_.backward[i].unit] = i;
  }

  double unit_bytes(int unit) const { return static_cast<double>(model_.elements(unit) * model_.gather_bytes); }

  /// The default bound on gathered bytes: the two largest units, and units that stay because they are used in several places.
  void find_limit() {
    double largest = 0, second = 0, held = 0;
    const std::vector<bool> stay = model_.staying_units();
    for (size_t u = 0; u < model_.units.size(); ++u) {
      const double bytes = unit_bytes(static_cast<int>(u));
      if (stay[u]) {
        held += bytes;
      } else {
        second = std::max(second, std::min(bytes, largest));
        largest = std::max(largest, bytes);
      }
    }
    limit_ = job_.gather_limit > 0 ? static_cast<double>(job_.gather_limit) : largest + second + held;
  }

  /// A collective that may start at `ready`: on the queue of collectives, or, where they are computation, on that of the rank.
  double collective(CollectiveOp op, const std::string& name, const GroupLinks& links, double bytes, double ready) {
    const double seconds = choose_collective(op, links, bytes, cluster_.shared_memory).seconds;
    double begin = std::max(communication_, ready);
    if (!cluster_.overlaps) begin = std::max(begin, compute_);
    const double end = begin + seconds, part = static_cast<double>(links.ranks - 1) / static_cast<double>(links.ranks);
    add(Lane::kCommunication, cat(name_of(op), " ", name), begin, end, bytes);
    communication_ = end;
    if (!cluster_.overlaps) compute_ = end;
    result_.communication_s += seconds;
    if (op == CollectiveOp::kAllReduce) result_.traffic.all_reduce += 2 * part * bytes;
    if (op == CollectiveOp::kReduceScatter) result_.traffic.reduce_scatter += part * bytes;
    if (op == CollectiveOp::kAllGather) result_.traffic.all_gather += part * bytes;
    return end;
  }

  /// The earliest time at which so many more bytes fit under the bound.
  double room_for(double bytes) const {
    std::vector<std::pair<double, double>> frees;  // (time, bytes)
    double held = 0;
    for (const auto& item : gathered_) {
      held += item.second.bytes;
      frees.emplace_back(item.second.free_at, item.second.bytes);
    }
    std::sort(frees.begin(), frees.end());
    double at = 0;
    for (const auto& [time, freed] : frees) {
      if (held + bytes <= limit_ || time == std::numeric_limits<double>::infinity()) break;
      held -= freed;
      at = std::max(at, time);
    }
    return at;
  }

  /// Gathers a unit where it is not in memory.
  void gather(int unit) {
    if (unit < 0 || !job_.gathers()) return;
    const auto found = gathered_.find(unit);
    if (found != gathered_.end() && found->second.free_at == std::numeric_limits<double>::infinity()) return;
    const double bytes = unit_bytes(unit);
    if (bytes == 0) return;
    double ready = room_for(bytes);
    if (found != gathered_.end()) {
      ready = std::max(ready, found->second.free_at);
      gathered_.erase(found);
    }
    if (cluster_.allocator == Allocator::kSerialises) ready = std::max(ready, compute_);
    if (job_.parameters == StatePlace::kHost) ready += bytes / static_cast<double>(job_.mesh.shard) / cluster_.host_link;
    if (job_.parameters == StatePlace::kDisk)
      ready += bytes / static_cast<double>(job_.mesh.shard) / (cluster_.disk / static_cast<double>(cluster_.per_node));
    for (auto item = gathered_.begin(); item != gathered_.end();)
      item = item->second.free_at <= ready ? gathered_.erase(item) : std::next(item);
    Gathered& entry = gathered_[unit];
    entry.bytes = bytes;
    const auto parts = static_cast<double>(std::max<size_t>(1, model_.units[static_cast<size_t>(unit)].parts.size()));
    communication_ += (parts - 1) * shard_.latency;
    entry.ready_at = collective(CollectiveOp::kAllGather, model_.units[static_cast<size_t>(unit)].name, shard_, bytes, ready);
  }

  void run_phase(const std::vector<PlanSegment>& segments, const std::vector<SegmentTime>& times, const std::map<int, size_t>& last,
                 bool backward) {
    for (size_t i = 0; i < segments.size(); ++i) {
      const int unit = segments[i].unit;
      gather(unit);
      const auto in_memory = gathered_.find(unit);
      const double begin = std::max(compute_, in_memory != gathered_.end() ? in_memory->second.ready_at : 0);
      const double seconds = times[i].sum() / rate_;
      add(Lane::kCompute, cat(backward ? "backward " : "forward ", segments[i].name), begin, begin + seconds, 0);
      compute_ = begin + seconds;
      busy_ += times[i].compute / rate_;
      count_reductions(segments[i]);
      const bool last_use = last.at(unit) == i;
      const bool keep = !backward && !job_.reshard_after_forward;
      if (last_use && in_memory != gathered_.end() && !keep && !(backward ? false : next_phase_uses(unit)))
        in_memory->second.free_at = compute_;
      if (cluster_.allocator == Allocator::kStatic && cluster_.overlaps && i + 1 < segments.size()) gather(segments[i + 1].unit);
      if (backward) reduce(i);
    }
    if (!backward) return;
    for (auto& item : gathered_) item.second.free_at = std::min(item.second.free_at, compute_);
  }

  /// The last unit of the forward pass stays for the backward pass, which begins with it.
  bool next_phase_uses(int unit) const { return !model_.backward.empty() && model_.backward.front().unit == unit; }

  void count_reductions(const PlanSegment& segment) {
    if (segment.reductions == 0 || job_.mesh.tensor <= 1) return;
    const auto t = static_cast<double>(job_.mesh.tensor);
    result_.traffic.all_reduce += segment.reductions * 2 * (t - 1) / t * segment.reduced_bytes;
  }

  /// Bytes of gradients that are final after each backward segment: of whole units if ranks hold ranges of them, else of parameters.
  void find_gradients() {
    gradients_.assign(model_.backward.size(), 0);
    for (const PlanParameter& parameter : model_.parameters) {
      if (!parameter.trained) continue;
      const auto last = last_backward_.find(parameter.unit);
      const bool by_unit = job_.gathers() || parameter.final_segment < 0;
      if (by_unit && last == last_backward_.end()) continue;
      const size_t segment = by_unit ? last->second : static_cast<size_t>(parameter.final_segment);
      gradients_[segment] += static_cast<double>(parameter.elements * model_.reduce_bytes) * job_.hook_factor;
    }
  }

  /// Gradients that are final after this backward segment: sent when their bucket is full, those of fsdp unit by unit.
  void reduce(size_t segment) {
    if (gradients_[segment] == 0) return;
    const bool each = job_.gathers() || (job_.strategy == ShardingStrategy::kZero2 && job_.reduce_each);
    if (!each && !last_micro_batch_) return;
    pending_ += gradients_[segment];
    pending_name_ = model_.backward[segment].name;
    if (!job_.overlap_gradients) return;
    if (job_.gathers() || pending_ >= static_cast<double>(job_.bucket_bytes)) send_gradients();
  }

  void send_gradients() {
    if (pending_ == 0) return;
    const double bytes = pending_;
    pending_ = 0;
    const bool ranges = job_.optimizer_ranks() > 1;
    const std::string name = cat("gradients of ", pending_name_);
    if (ranges) {
      collective(CollectiveOp::kReduceScatter, name, shard_, bytes, compute_);
      if (job_.mesh.data > 1) collective(CollectiveOp::kAllReduce, name, data_, bytes / static_cast<double>(job_.mesh.shard), compute_);
    } else if (job_.mesh.data > 1) {
      collective(CollectiveOp::kAllReduce, name, data_, bytes, compute_);
    }
  }

  const PlanModel& model_;
  const JobPlan& job_;
  const Cluster& cluster_;
  GroupLinks shard_, data_;
  double rate_ = 1, limit_ = 0;
  std::vector<SegmentTime> forward_, backward_;
  std::map<int, size_t> last_forward_, last_backward_;
  std::map<int, Gathered> gathered_;
  std::vector<double> gradients_;
  double compute_ = 0, communication_ = 0, busy_ = 0, pending_ = 0;
  std::string pending_name_;
  bool last_micro_batch_ = true;
  Simulation result_;
};

/// Forward and backward time of each part of a pipeline, and its share of the parameters.
struct PipelineParts {
  std::vector<size_t> cuts;
  StageTimes times;
  std::vector<double> compute;     // forward and backward, without tensor-parallel collectives
  std::vector<double> parameters;  // elements
  double reductions = 0;           // bytes of all-reduces of a micro-batch, of the part that has most
};

PipelineParts pipeline_parts(const PlanModel& model, const JobPlan& job, const Cluster& cluster) {
  PipelineParts parts;
  parts.cuts = pipeline_cuts(model, job, cluster);
  const size_t count = parts.cuts.size();
  const std::vector<SegmentTime> forward = times_of(model.forward, job, cluster), backward = times_of(model.backward, job, cluster);
  parts.times.forward.assign(count, 0);
  parts.times.backward.assign(count, 0);
  parts.compute.assign(count, 0);
  parts.parameters.assign(count, 0);
  const auto part_of = [&](size_t segment) {
    return static_cast<size_t>(std::upper_bound(parts.cuts.begin(), parts.cuts.end(), segment) - parts.cuts.begin()) - 1;
  };
  std::vector<std::map<int, bool>> units(count);
  double transfer = 0;
  for (size_t i = 0; i < model.forward.size(); ++i) {
    const size_t part = part_of(i);
    parts.times.forward[part] += forward[i].sum();
    parts.compute[part] += forward[i].compute;
    if (model.forward[i].unit >= 0) units[part][model.forward[i].unit] = true;
    if (i + 1 < model.forward.size() && part_of(i + 1) != part) transfer = std::max(transfer, model.forward[i].output_bytes);
  }
  for (size_t i = 0; i < model.backward.size(); ++i) {
    const size_t part = part_of(static_cast<size_t>(std::max(0, model.backward[i].forward)));
    parts.times.backward[part] += backward[i].sum();
    parts.compute[part] += backward[i].compute;
  }
  for (const PlanParameter& parameter : model.parameters) {
    for (size_t part = 0; part < count; ++part) {
      const bool here = parameter.forward_segment >= 0 ? part_of(static_cast<size_t>(parameter.forward_segment)) == part
                                                       : units[part].contains(parameter.unit);
      if (here && parameter.trained) parts.parameters[part] += static_cast<double>(parameter.elements);
    }
  }
  const GroupLinks links = group_links(cluster, job.mesh, MeshAxis::kPipe);
  const double rate = links.nodes > 1 ? links.between : links.inside;
  // Ranks of a tensor-parallel group send a part each, and gather it inside the node.
  parts.times.transfer = rate > 0 ? transfer / static_cast<double>(job.mesh.tensor) / rate : 0;
  return parts;
}

Simulation simulate_pipeline(const PlanModel& model, const JobPlan& job, const Cluster& cluster) {
  const PipelineParts parts = pipeline_parts(model, job, cluster);
  const auto stages = pipeline_schedule(job.schedule, job.mesh.pipe, job.micro_batches, job.chunks);
  const std::vector<std::vector<TimedPass>> timed = time_schedule(stages, parts.times);
  Simulation result;
  result.cuts = parts.cuts;
  const Mesh replicas{.data = job.mesh.data * job.mesh.shard, .tensor = job.mesh.tensor, .pipe = job.mesh.pipe};
  const GroupLinks links = group_links(cluster, replicas, MeshAxis::kData);
  double busiest = 0;
  for (size_t s = 0; s < timed.size(); ++s) {
    double busy = 0, elements = 0;
    for (const TimedPass& pass : timed[s]) {
      busy += pass.end - pass.begin;
      result.timeline.push_back({.stage = static_cast<int64_t>(s),
                                 .lane = Lane::kCompute,
                                 .name = cat(pass.pass.backward ? "backward " : "forward ", pass.pass.micro_batch,
                                             job.chunks > 1 ? cat(" of part ", pass.pass.chunk) : ""),
                                 .begin = pass.begin,
                                 .end = pass.end});
    }
    double computed = 0;
    for (int64_t c = 0; c < job.chunks; ++c) {
      const auto part = static_cast<size_t>(c * job.mesh.pipe) + s;
      elements += parts.parameters[part];
      computed += parts.compute[part] * static_cast<double>(job.micro_batches);
    }
    const double passes_end = timed[s].back().end;
    const double bytes = elements * static_cast<double>(model.reduce_bytes) * job.hook_factor;
    const double reduce = links.ranks > 1 ? choose_collective(CollectiveOp::kAllReduce, links, bytes, cluster.shared_memory).seconds : 0;
    const double share = static_cast<double>(elements) / std::max(1.0, static_cast<double>(model.trained_elements()));
    const double update = update_seconds(model, job, cluster, share);
    if (reduce > 0)
      result.timeline.push_back(
          {static_cast<int64_t>(s), Lane::kCommunication, "all_reduce gradients", passes_end, passes_end + reduce, bytes});
    result.timeline.push_back({static_cast<int64_t>(s), Lane::kCompute, "update", passes_end + reduce, passes_end + reduce + update, 0});
    result.step_s = std::max(result.step_s, passes_end + reduce + update);
    result.communication_s = std::max(result.communication_s, reduce);
    result.compute_s = std::max(result.compute_s, computed + update);
    if (busy > busiest) {
      busiest = busy;
      result.bubble_s = passes_end - busy;
    }
    const auto n = static_cast<double>(links.ranks);
    result.traffic.all_reduce = std::max(result.traffic.all_reduce, 2 * (n - 1) / n * bytes);
  }
  const bool several = job.mesh.pipe > 1;
  double boundary = 0;
  for (size_t c = 1; c < parts.cuts.size(); ++c) boundary = std::max(boundary, model.forward[parts.cuts[c] - 1].output_bytes);
  if (several)
    result.traffic.send = 2 * boundary / static_cast<double>(job.mesh.tensor) * static_cast<double>(job.micro_batches * job.chunks);
  result.exposed_s = result.step_s - result.compute_s;
  const auto pipelines = static_cast<double>(job.micro_batches * job.mesh.data * job.mesh.shard * job.mesh.tensor);
  result.flops = model.flops * pipelines;
  result.model_flops = model.model_flops * pipelines;
  return result;
}

}  // namespace

std::string_view name_of(Lane lane) { return kLanes[static_cast<size_t>(lane)]; }

std::vector<size_t> pipeline_cuts(const PlanModel& model, const JobPlan& job, const Cluster& cluster) {
  const int64_t parts = job.mesh.pipe * job.chunks;
  const std::vector<SegmentTime> forward = times_of(model.forward, job, cluster), backward = times_of(model.backward, job, cluster);
  std::vector<double> costs;
  for (const SegmentTime& time : forward) costs.push_back(time.sum());
  for (size_t i = 0; i < model.backward.size(); ++i) {
    if (model.backward[i].forward >= 0) costs[static_cast<size_t>(model.backward[i].forward)] += backward[i].sum();
  }
  std::vector<bool> may_cut(model.forward.size(), true);
  for (size_t i = 1; i < model.forward.size(); ++i) may_cut[i] = model.forward[i - 1].output_bytes > 0;
  std::vector<size_t> cuts = balanced_cuts(costs, may_cut, parts);
  if (cuts.empty()) {
    throw Error(ErrorCode::kRecipe, cat("the model has ", std::count(may_cut.begin(), may_cut.end(), true),
                                        " places at which a stage can begin, too few for ", parts, " parts"))
        .key("sharding.stages")
        .suggest("use fewer stages");
  }
  return cuts;
}

Simulation simulate(const PlanModel& model, const JobPlan& job, const Cluster& cluster) {
  GALLEY_ASSERT(job.micro_batches >= 1);
  return job.mesh.pipe > 1 || job.strategy == ShardingStrategy::kPipeline ? simulate_pipeline(model, job, cluster)
                                                                          : DataParallelRun(model, job, cluster).run();
}

std::vector<FlatBucket> gradient_buckets(const PlanModel& model, const JobPlan& job) {
  std::vector<BucketItem> items;  // the backward pass finishes the last parameter's gradient first
  for (size_t i = model.parameters.size(); i-- > 0;) {
    const PlanParameter& parameter = model.parameters[i];
    if (parameter.trained) items.push_back({.elements = parameter.elements, .unit = parameter.unit});
  }
  return make_buckets(
      items,
      {.bytes = job.bucket_bytes, .first_bytes = int64_t{1} << 20, .element_bytes = model.bytes.gradient, .within_units = job.gathers()});
}

}  // namespace galley
