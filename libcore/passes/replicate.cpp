#include "libcore/passes/replicate.h"

#include <cmath>
#include <utility>

#include "libcore/ops/binary.h"
#include "libcore/ops/shape.h"
#include "libcore/passes/apply_extents.h"

namespace galley {
namespace {

std::string output_of(size_t update, const char* what) { return cat(kStatistics, ".", update, ".", what); }

TensorType f32_type(Shape shape) {
  TensorType type;
  type.dtype = DType::kF32;
  type.shape = std::move(shape);
  return type;
}

}  // namespace

std::string gradient_output(const GradientBucket& bucket, size_t member) { return cat(bucket.name, ".", bucket.parameters[member]); }

void sync_batch_norms(Graph& graph, double factor) {
  refuse_norms_inside_extents(graph, "which cannot be summed over ranks or replicas", "train.sync_batch_norm: false, on several ranks");
  for (Node& node : graph.nodes()) {
    if (node.op == &batch_norm_op()) {
      auto attrs = std::make_shared<BatchNormAttrs>(node.attrs<BatchNormAttrs>());
      attrs->sync = node.path.empty() ? "batch_norm" : node.path;
      node.attributes = std::move(attrs);
    } else if (node.op == &batch_norm_update_op()) {
      auto attrs = std::make_shared<BatchNormUpdateAttrs>(node.attrs<BatchNormUpdateAttrs>());
      attrs->count = std::llround(static_cast<double>(attrs->count) * factor);
      node.attributes = std::move(attrs);
    }
  }
}

void ReplicaStatistics::take(Graph& graph) {
  updates_.clear();
  std::deque<Node> kept;
  for (Node& node : graph.nodes()) {
    if (node.op != &batch_norm_update_op()) {
      kept.push_back(std::move(node));
      continue;
    }
    const size_t index = updates_.size();
    StatisticsUpdate& update = updates_.emplace_back();
    update.path = node.path;
    for (const auto& [place, input] : {std::pair<size_t, size_t>{0, 0}, {1, 1}, {2, 4}}) {
      if (node.input(input) != kNoValue) update.buffers[place] = graph.value(node.input(input)).name;
    }
    update.channels = graph.type(node.inputs[2]).elements();
    update.attrs = node.attrs<BatchNormUpdateAttrs>();
    graph.add_output(output_of(index, "mean"), node.inputs[2]);
    graph.add_output(output_of(index, "var"), node.inputs[3]);
  }
  graph.set_nodes(std::move(kept));
}

namespace {

void remove_outputs(Graph& graph) {
  const std::string prefix = cat(kStatistics, ".");
  std::erase_if(graph.outputs(), [&](const auto& output) { return output.first.starts_with(prefix); });
}

/// Mean and variance of a batch norm.
std::vector<Value> statistics_of(Graph& graph, size_t norm) {
  return {graph.at(graph.find_output(output_of(norm, "mean"))), graph.at(graph.find_output(output_of(norm, "var")))};
}

Value weighted(Graph& graph, const std::vector<Value>& parts) {
  ConcatAttrs attrs;
  attrs.axis = 0;
  const ValueId found = graph.find_input(kReplicaShare);
  const Value joined = concat(parts, attrs);
  TensorType type = f32_type({});
  type.placement = joined.type().placement;
  const Value share = found != kNoValue ? graph.at(found) : graph.add_input(std::string(kReplicaShare), type, ValueRole::kInput);
  return mul(joined, share);
}

/// Updates the running statistics by mean and variance, which are in an array from `at` on.
void add_update_of(Graph& graph, const StatisticsUpdate& update, Value array, int64_t at) {
  const std::string path = graph.path();
  graph.set_path(update.path);
  const auto buffer = [&](size_t i) { return update.buffers[i].empty() ? Value() : graph.at(graph.find_input(update.buffers[i])); };
  const Value mean = slice(array, 0, at, at + update.channels);
  const Value var = slice(array, 0, at + update.channels, at + 2 * update.channels);
  batch_norm_update(buffer(0), buffer(1), mean, var, buffer(2), update.attrs);
  graph.set_path(path);
}

}  // namespace

void ReplicaStatistics::join(Graph& graph) const {
  if (updates_.empty()) return;
  std::vector<Value> parts;
  for (size_t i = 0; i < updates_.size(); ++i) {
    for (const Value& part : statistics_of(graph, i)) parts.push_back(part);
  }
  remove_outputs(graph);
  graph.set_phase(Phase::kBackward);
  graph.add_output(std::string(kStatistics), weighted(graph, parts));
}

void ReplicaStatistics::join_each(Graph& graph) const {
  std::vector<std::vector<Value>> parts;
  for (size_t i = 0; i < updates_.size(); ++i) parts.push_back(statistics_of(graph, i));
  remove_outputs(graph);
  graph.set_phase(Phase::kBackward);
  for (size_t i = 0; i < updates_.size(); ++i) graph.add_output(output(i), weighted(graph, parts[i]));
}

std::string ReplicaStatistics::output(size_t norm) { return cat(kStatistics, ".", norm); }

void ReplicaStatistics::add_updates(Graph& graph) const {
  if (updates_.empty()) return;
  const Value all = graph.add_input(std::string(kStatistics), f32_type(Shape{elements()}), ValueRole::kInput);
  int64_t at = 0;
  for (const StatisticsUpdate& update : updates_) {
    add_update_of(graph, update, all, at);
    at += 2 * update.channels;
  }
}

void ReplicaStatistics::add_update(Graph& graph, size_t norm) const {
  const StatisticsUpdate& update = updates_[norm];
  add_update_of(graph, update, graph.add_input(output(norm), f32_type(Shape{2 * update.channels}), ValueRole::kInput), 0);
}

int64_t ReplicaStatistics::elements() const {
  int64_t count = 0;
  for (const StatisticsUpdate& update : updates_) count += 2 * update.channels;
  return count;
}

}  // namespace galley
