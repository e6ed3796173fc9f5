#include "libcore/dist/step_times.h"

#include <algorithm>

namespace galley {
namespace {

double reduction_seconds(const PlanSegment& segment, const JobPlan& job, const Cluster& cluster) {
  if (job.mesh.tensor <= 1) return 0;
  const GroupLinks links = group_links(cluster, job.mesh, MeshAxis::kTensor);
  const auto seconds = [&](CollectiveOp op, double bytes) { return choose_collective(op, links, bytes, cluster.shared_memory).seconds; };
  double sum = 0;
  if (segment.reductions > 0) sum += segment.reductions * seconds(CollectiveOp::kAllReduce, segment.reduced_bytes);
  const auto add = [&](CollectiveOp op, const TensorCollectives& all) {
    if (all.count > 0) sum += all.count * seconds(op, all.bytes / all.count);
  };
  add(CollectiveOp::kAllGather, segment.gathers);
  add(CollectiveOp::kReduceScatter, segment.scatters);
  return sum;
}

}  // namespace

std::vector<SegmentTime> times_of(const std::vector<PlanSegment>& segments, const JobPlan& job, const Cluster& cluster) {
  std::vector<SegmentTime> times;
  for (const PlanSegment& segment : segments)
    times.push_back({seconds_of(segment.work, cluster), reduction_seconds(segment, job, cluster)});
  return times;
}

double offload_seconds(StatePlace place, double bytes, const JobPlan& job, const Cluster& cluster) {
  switch (place) {
    case StatePlace::kDevice: return 0;
    case StatePlace::kHost: return bytes / cluster.host_link;
    case StatePlace::kDisk: return bytes / (cluster.disk / static_cast<double>(std::min(cluster.per_node, job.mesh.ranks())));
  }
  return 0;
}

double update_seconds(const PlanModel& model, const JobPlan& job, const Cluster& cluster, double share) {
  const double part = share / static_cast<double>(job.optimizer_ranks());
  const double elements = static_cast<double>(model.trained_elements()) * part;
  const auto per_node = static_cast<double>(std::min(cluster.per_node, job.mesh.ranks()));
  const double state = elements * static_cast<double>(model.bytes.optimizer);
  if (job.optimizer == StatePlace::kHost) {
    // The host reads and writes the state, and sends new parameters to the device; gradients arrive during the backward pass.
    const double written = job.parameters == StatePlace::kDevice ? elements * static_cast<double>(model.gather_bytes) : 0;
    return state / (cluster.host_bandwidth / per_node) + written / cluster.host_link;
  }
  // The device computes: state, and gradients and parameters that are elsewhere, pass by.
  const double gradients = offload_seconds(job.gradients, elements * static_cast<double>(model.bytes.gradient), job, cluster);
  const double parameters = offload_seconds(job.parameters, 2 * elements * static_cast<double>(model.bytes.parameter), job, cluster);
  return part * seconds_of(model.update, cluster) + offload_seconds(job.optimizer, 2 * state, job, cluster) + gradients + parameters;
}

StepTraffic tensor_traffic(const PlanSegment& segment, const JobPlan& job) {
  StepTraffic traffic;
  if (job.mesh.tensor <= 1) return traffic;
  const auto t = static_cast<double>(job.mesh.tensor);
  traffic.all_reduce = segment.reductions * 2 * (t - 1) / t * segment.reduced_bytes;
  traffic.all_gather = (t - 1) / t * segment.gathers.bytes;
  traffic.reduce_scatter = (t - 1) / t * segment.scatters.bytes;
  return traffic;
}

GradientSum sum_gradients(const JobPlan& job, const Cluster& cluster, double gradient_bytes, double parameter_bytes) {
  GradientSum sum;
  const GroupLinks shard = group_links(cluster, job.mesh, MeshAxis::kShard), data = group_links(cluster, job.mesh, MeshAxis::kData);
  const auto others = [](const GroupLinks& links) { return static_cast<double>(links.ranks - 1) / static_cast<double>(links.ranks); };
  const auto run = [&](CollectiveOp op, const GroupLinks& links, double bytes) {
    return links.ranks > 1 ? choose_collective(op, links, bytes, cluster.shared_memory).seconds : 0;
  };
  double bytes = gradient_bytes;
  if (job.optimizer_ranks() > 1) {
    sum.reduce_s += run(CollectiveOp::kReduceScatter, shard, bytes);
    sum.sent.reduce_scatter += others(shard) * bytes;
    bytes /= static_cast<double>(shard.ranks);
    if (!job.gathers()) {
      sum.gather_s = run(CollectiveOp::kAllGather, shard, parameter_bytes);
      sum.sent.all_gather += others(shard) * parameter_bytes;
    }
  }
  sum.reduce_s += run(CollectiveOp::kAllReduce, data, bytes);
  sum.sent.all_reduce += 2 * others(data) * bytes;
  return sum;
}

}  // namespace galley
