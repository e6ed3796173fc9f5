#include "libcore/dist/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "libcore/base/error.h"
#include "libcore/dist/pipeline_run.h"
#include "libcore/dist/step_times.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 3> kLanes{"compute", "communication", "host"};

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
    const double begin = std::max({compute_, communication_, out_});
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

  double shard_bytes(double bytes) const { return job_.optimizer_ranks() > 1 ? bytes / static_cast<double>(job_.mesh.shard) : bytes; }

  /// A transfer between the device and where states are offloaded to, on the queue of its direction. Returns its end.
  double move(StatePlace place, const std::string& name, double bytes, double ready, double& queue) {
    if (place == StatePlace::kDevice) return ready;
    const double begin = std::max(queue, ready);
    queue = begin + offload_seconds(place, bytes, job_, cluster_);
    add(Lane::kHost, name, begin, queue, bytes);
    return queue;
  }

  /// Brings a unit to the device where it is not in memory.
  void gather(int unit) {
    if (unit < 0 || !job_.fetches()) return;
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
    ready = move(job_.parameters, cat("fetch ", model_.units[static_cast<size_t>(unit)].name), job_.gathers() ? shard_bytes(bytes) : bytes,
                 ready, in_);
    for (auto item = gathered_.begin(); item != gathered_.end();)
      item = item->second.free_at <= ready ? gathered_.erase(item) : std::next(item);
    Gathered& entry = gathered_[unit];
    entry.bytes = bytes;
    const auto parts = static_cast<double>(std::max<size_t>(1, model_.units[static_cast<size_t>(unit)].parts.size()));
    communication_ += (parts - 1) * shard_.latency;
    entry.ready_at =
        !job_.gathers() ? ready : collective(CollectiveOp::kAllGather, model_.units[static_cast<size_t>(unit)].name, shard_, bytes, ready);
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
      result_.traffic += tensor_traffic(segments[i], job_);
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

  /// Bytes of gradients that are final after each backward segment: of whole units if ranks hold ranges of them, else of parameters.
  void find_gradients() {
    gradients_.assign(model_.backward.size(), 0);
    for (const PlanParameter& parameter : model_.parameters) {
      if (!parameter.trained) continue;
      const auto last = last_backward_.find(parameter.unit);
      const bool by_unit = job_.gathers() || parameter.final_segment < 0;
      if (by_unit && last == last_backward_.end()) continue;
      const size_t segment = by_unit ? last->second : static_cast<size_t>(parameter.final_segment);
      gradients_[segment] += summed_bytes(model_, parameter, job_);
    }
  }

  /// Gradients that are final after this backward segment: sent when their bucket is full, those of fsdp unit by unit.
  void reduce(size_t segment) {
    if (gradients_[segment] == 0) return;
    if (!job_.gathers() && !last_micro_batch_) {
      move(job_.gradients, cat("gradients of ", model_.backward[segment].name), gradients_[segment], compute_, out_);
      return;
    }
    pending_ += gradients_[segment];
    pending_name_ = model_.backward[segment].name;
    if (!job_.overlap_gradients) return;
    const bool alone = shard_.ranks * data_.ranks == 1;  // no buckets
    if (alone || job_.gathers() || pending_ >= static_cast<double>(job_.bucket_bytes)) send_gradients();
  }

  void send_gradients() {
    if (pending_ == 0) return;
    const double bytes = pending_;
    pending_ = 0;
    const bool ranges = job_.optimizer_ranks() > 1;
    const std::string name = cat("gradients of ", pending_name_);
    double ready = compute_;
    if (ranges) ready = collective(CollectiveOp::kReduceScatter, name, shard_, bytes, ready);
    // Groups that hold the same shards sum them once in a step, after they have accumulated them.
    if (job_.mesh.data > 1 && last_micro_batch_) ready = collective(CollectiveOp::kAllReduce, name, data_, shard_bytes(bytes), ready);
    // An update on the host reads them there.
    const bool on_host = job_.gradients == StatePlace::kDevice && job_.optimizer == StatePlace::kHost;
    move(on_host ? StatePlace::kHost : job_.gradients, name, shard_bytes(bytes), ready, out_);
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
  double compute_ = 0, communication_ = 0, in_ = 0, out_ = 0, busy_ = 0, pending_ = 0;
  std::string pending_name_;
  bool last_micro_batch_ = true;
  Simulation result_;
};

}  // namespace

std::string_view name_of(Lane lane) { return kLanes[static_cast<size_t>(lane)]; }

bool has_stages(const JobPlan& job) { return job.mesh.pipe > 1 || job.strategy == ShardingStrategy::kPipeline; }

Simulation simulate(const PlanModel& model, const JobPlan& job, const Cluster& cluster, std::vector<size_t> cuts) {
  GALLEY_ASSERT(job.micro_batches >= 1);
  if (!has_stages(job)) return DataParallelRun(model, job, cluster).run();
  return simulate_pipeline(model, job, cluster, cuts.empty() ? pipeline_cuts(model, job, cluster) : std::move(cuts));
}

}  // namespace galley
