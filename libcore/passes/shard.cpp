#include "libcore/passes/shard.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

constexpr int64_t kFirstBucketBytes = 1 << 20;
constexpr const char* kPath = "ranks";

/// Sets path and phase of the nodes that are added, until the end of the scope.
class CollectiveScope {
 public:
  CollectiveScope(Graph& graph, Phase phase) : graph_(graph), path_(graph.path()), phase_(graph.phase()) {
    graph.set_path(kPath);
    graph.set_phase(phase);
  }
  ~CollectiveScope() {
    graph_.set_path(std::move(path_));
    graph_.set_phase(phase_);
  }
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  Graph& graph_;
  std::string path_;
  Phase phase_;
};

bool is_loss(const std::string& output) { return output == "loss" || output.starts_with("loss."); }

/// Moves the nodes from `first` on to directly after node `after`. They read nothing that is made later.
void move_nodes(Graph& graph, size_t first, int after) {
  std::deque<Node>& nodes = graph.nodes();
  const auto to = nodes.begin() + after + 1;
  std::rotate(to, nodes.begin() + static_cast<std::ptrdiff_t>(first), nodes.end());
}

/// One bucket: its gradients side by side, and the start of their sum. Returns the started sum.
Value start_bucket(const std::vector<Value>& gradients, const std::string& name) {
  std::vector<Value> flat;
  for (const Value& gradient : gradients) flat.push_back(reshape(gradient, Shape{gradient.shape().elements()}));
  ConcatAttrs attrs;
  attrs.axis = 0;
  return all_reduce_start(flat.size() == 1 ? flat.front() : concat(flat, attrs), name);
}

/// The gradients in order of the nodes that make them, divided into buckets.
std::vector<std::vector<size_t>> divide(const Graph& graph, const std::vector<Value>& gradients, int64_t bucket_bytes) {
  const std::vector<int> made_by = graph.producers();
  std::vector<size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return made_by[static_cast<size_t>(gradients[a].id())] < made_by[static_cast<size_t>(gradients[b].id())];
  });
  std::vector<std::vector<size_t>> buckets;
  std::map<DType, size_t> open;  // the last bucket of each dtype
  std::map<DType, int64_t> bytes;
  for (const size_t i : order) {
    const DType dtype = gradients[i].dtype();
    if (open.count(dtype) == 0) {
      open[dtype] = buckets.size();
      bytes[dtype] = 0;
      buckets.emplace_back();
    }
    buckets[open[dtype]].push_back(i);
    bytes[dtype] += gradients[i].type().elements() * dtype_size(dtype);
    const int64_t limit = buckets.size() == 1 ? std::min(bucket_bytes, kFirstBucketBytes) : bucket_bytes;
    if (bytes[dtype] >= limit) open.erase(dtype);
  }
  return buckets;
}

}  // namespace

void weigh_losses(Graph& graph) {
  TensorType type;
  type.dtype = DType::kF32;
  const CollectiveScope scope(graph, Phase::kForward);
  const Value weight = graph.add_input(std::string(kRankWeight), type, ValueRole::kInput);
  for (auto& [name, id] : graph.outputs()) {
    if (is_loss(name)) id = mul(graph.at(id), weight).id();
  }
}

void reduce_losses(Graph& graph) {
  std::vector<size_t> places;
  std::vector<Value> losses;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    if (!is_loss(graph.outputs()[i].first)) continue;
    places.push_back(i);
    losses.push_back(graph.at(graph.outputs()[i].second));
  }
  const std::vector<int> made_by = graph.producers();
  int last = -1;
  for (const Value& loss : losses) last = std::max(last, made_by[static_cast<size_t>(loss.id())]);
  const CollectiveScope scope(graph, Phase::kBackward);
  const size_t first = graph.nodes().size();
  const Value started = start_bucket(losses, "loss");
  move_nodes(graph, first, last);
  const Value sums = all_reduce_wait(started, "loss");
  for (size_t i = 0; i < places.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const Value own = losses.size() == 1 ? sums : slice(sums, 0, at, at + 1);
    graph.outputs()[places[i]].second = reshape(own, Shape{}).id();
  }
}

std::vector<GradientBucket> reduce_gradients(Graph& graph, std::vector<Value>& gradients, const std::vector<std::string>& names,
                                             int64_t bucket_bytes) {
  GALLEY_ASSERT(gradients.size() == names.size());
  std::vector<GradientBucket> report;
  struct Started {
    std::vector<size_t> members;
    Value sum;
  };
  std::vector<Started> started;
  for (const std::vector<size_t>& members : divide(graph, gradients, bucket_bytes)) {
    GradientBucket& bucket = report.emplace_back();
    bucket.name = cat("grads.bucket", report.size());
    std::vector<Value> own;
    for (const size_t i : members) {
      own.push_back(gradients[i]);
      bucket.parameters.push_back(names[i]);
      bucket.elements += gradients[i].type().elements();
    }
    const std::vector<int> made_by = graph.producers();
    int last = -1;
    for (const Value& gradient : own) last = std::max(last, made_by[static_cast<size_t>(gradient.id())]);
    const CollectiveScope scope(graph, Phase::kBackward);
    const size_t first = graph.nodes().size();
    const Value sum = start_bucket(own, bucket.name);
    move_nodes(graph, first, last);
    started.push_back({members, sum});
  }
  for (size_t b = 0; b < started.size(); ++b) {
    Value sum;
    {
      const CollectiveScope scope(graph, Phase::kBackward);
      sum = all_reduce_wait(started[b].sum, report[b].name);
    }
    // As updates, they stand before the updates of their parameters, after the wait.
    const CollectiveScope scope(graph, Phase::kUpdate);
    int64_t at = 0;
    for (const size_t i : started[b].members) {
      const Shape shape = gradients[i].shape();
      const Value own = started[b].members.size() == 1 ? sum : slice(sum, 0, at, at + shape.elements());
      at += shape.elements();
      gradients[i] = reshape(own, shape);
    }
  }
  return report;
}

void remove_collectives(Graph& graph) {
  const auto is_collective = [](const Node& node) { return node.op == &all_reduce_start_op() || node.op == &all_reduce_wait_op(); };
  for (const Node& node : graph.nodes()) {  // in order, so that the input of a wait is replaced before the wait's output
    if (is_collective(node)) graph.replace_uses(node.outputs[0], node.inputs[0]);
  }
  std::deque<Node> kept;
  for (const Node& node : graph.nodes()) {
    if (!is_collective(node)) kept.push_back(node);
  }
  graph.set_nodes(std::move(kept));
}

}  // namespace galley
