#include "libcore/dist/job.h"

#include <algorithm>

#include "libcore/dist/plan_model.h"

namespace galley {

int64_t size_of(const Mesh& mesh, MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kTensor: return mesh.tensor;
    case MeshAxis::kShard: return mesh.shard;
    case MeshAxis::kData: return mesh.data;
    case MeshAxis::kPipe: return mesh.pipe;
  }
  return 1;
}

GroupLinks group_links(const Cluster& cluster, const Mesh& mesh, MeshAxis axis) {
  int64_t stride = 1;
  if (axis != MeshAxis::kTensor) stride *= mesh.tensor;
  if (axis == MeshAxis::kData || axis == MeshAxis::kPipe) stride *= mesh.shard;
  if (axis == MeshAxis::kPipe) stride *= mesh.data;
  const int64_t n = size_of(mesh, axis), in_node = std::clamp<int64_t>(cluster.per_node / stride, 1, n);
  GroupLinks links{.ranks = n, .nodes = (n + in_node - 1) / in_node, .latency = cluster.latency};
  links.inside = cluster.link * (axis == MeshAxis::kTensor ? cluster.tensor_share : 1);
  // Groups of the same axis share a node's network.
  const double part = std::min(1.0, static_cast<double>(in_node) / static_cast<double>(cluster.per_node));
  links.between = cluster.network * cluster.network_share * part;
  return links;
}

double summed_bytes(const PlanModel& model, const PlanParameter& parameter, const JobPlan& job) {
  if (!parameter.trained) return 0;
  int64_t elements = parameter.elements;
  if (job.power_sgd_rank > 0 && parameter.rows > 0) {
    // Factors P [rows, rank] and Q [columns, rank] take the place of a matrix, where they are smaller (Vogels et al. 2019).
    const int64_t columns = elements / parameter.rows;
    elements = std::min(elements, job.power_sgd_rank * (parameter.rows + columns));
  }
  return static_cast<double>(elements * model.reduce_bytes) * job.hook_factor;
}

}  // namespace galley
