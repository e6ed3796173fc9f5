#include <algorithm>
#include <optional>

#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/backends/cpu/rewrite/rewrites.h"

namespace galley {
namespace {

/// The two nodes that replace a convolution.
struct Pair {
  Node weights, convolution;
};

/// The pair for a convolution of integers, which keeps its attributes.
std::optional<Pair> integer_pair_of(const Graph& graph, const Node& node) {
  const Shape &x = graph.type(node.inputs[0]).shape, &y = graph.type(node.outputs[0]).shape, &weight = graph.type(node.inputs[1]).shape;
  if (!winograd::fits(node.attrs<QuantizedConv2dAttrs>(), weight) || !winograd::worthwhile_whole(x, y)) return std::nullopt;
  Pair made{node, node};
  made.weights.op = &quantized_winograd_weights_op();
  made.weights.attributes = nullptr;
  made.weights.inputs = {node.inputs[1]};
  made.weights.outputs.clear();
  made.convolution.op = &quantized_winograd_conv2d_op();
  return made;
}

std::optional<Pair> pair_of(const Graph& graph, const Node& node, bool fixed) {
  if (node.is("quantized_conv2d")) return integer_pair_of(graph, node);
  const bool backward = node.is("conv2d_backward_data");
  if (!backward && !node.is("conv2d")) return std::nullopt;
  if (backward && node.input(2) != kNoValue) return std::nullopt;  // a residual
  const Shape &x = graph.type(node.inputs[0]).shape, &y = graph.type(node.outputs[0]).shape, &weight = graph.type(node.inputs[1]).shape;
  const Conv2dWindow& window =
      backward ? static_cast<const Conv2dWindow&>(node.attrs<Conv2dBackwardDataAttrs>()) : node.attrs<Conv2dAttrs>();
  if (!winograd::fits(window, weight) || !winograd::worthwhile(x, y, fixed)) return std::nullopt;
  const auto padding = galley::pair(window.padding);
  // The input gradient is a convolution of the results' gradient, padded by what the kernel reaches over what was not padded.
  if (backward && (padding[0] > 2 || padding[1] > 2)) return std::nullopt;

  WinogradWeightsAttrs weights_attrs;
  weights_attrs.backward = backward;
  WinogradConv2dAttrs attrs;
  attrs.padding = backward ? std::vector<int64_t>{2 - padding[0], 2 - padding[1]} : std::vector<int64_t>{padding[0], padding[1]};
  if (!backward) attrs.activation = node.attrs<Conv2dAttrs>().activation;
  Pair made{node, node};
  made.weights.op = &winograd_weights_op();
  made.weights.attributes = std::make_shared<WinogradWeightsAttrs>(weights_attrs);
  made.weights.inputs = {node.inputs[1]};
  made.weights.outputs.clear();
  made.convolution.op = &winograd_conv2d_op();
  made.convolution.attributes = std::make_shared<WinogradConv2dAttrs>(attrs);
  return made;
}

/// A graph of both nodes only, with images in channels_last; the convolution is its last node.
Graph alone(const Graph& graph, const Pair& pair) {
  Graph probe;
  const auto input = [&](ValueId id, ValueRole role) {
    TensorType type = graph.type(id);
    type.format = MemoryFormat::channels_last_for_rank(type.shape.rank());
    if (role == ValueRole::kParameter) type.format = {};
    return probe.add_input(cat("i", probe.inputs().size()), std::move(type), role).id();
  };
  const Value transformed = probe.add_node_like(pair.weights, {input(pair.weights.inputs[0], ValueRole::kParameter)}).front();
  std::vector<ValueId> inputs{input(pair.convolution.inputs[0], ValueRole::kInput), transformed.id()};
  for (size_t i = 2; i < pair.convolution.inputs.size(); ++i) {
    const ValueId id = pair.convolution.inputs[i];
    inputs.push_back(id == kNoValue ? kNoValue : input(id, ValueRole::kInput));
  }
  const Value y = probe.add_node_like(pair.convolution, std::move(inputs)).front();
  probe.value(y.id()).type.format = MemoryFormat::channels_last();
  return probe;
}

/// The weight gradient as a Winograd operator; nothing where the window does not fit or no kernel supports it in channels_last.
std::optional<Node> weight_gradient(const Graph& graph, const Node& node, const Target& target) {
  if (!node.is("conv2d_backward_weights")) return std::nullopt;
  const TensorType &x = graph.type(node.inputs[0]), &grad = graph.type(node.inputs[1]);
  if (!winograd::fits(node.attrs<Conv2dBackwardWeightsAttrs>(), graph.type(node.outputs[0]).shape) ||
      !winograd::worthwhile(x.shape, grad.shape, false))
    return std::nullopt;
  Node made = node;
  made.op = &winograd_conv2d_backward_weights_op();
  Graph probe;
  const auto input = [&](const char* name, TensorType type) {
    type.format = MemoryFormat::channels_last();
    return probe.add_input(name, std::move(type), ValueRole::kInput).id();
  };
  const ValueId image = input("x", x), gradient = input("grad", grad);
  probe.add_node_like(made, {image, gradient});
  if (!target.has_kernel(probe, probe.nodes().back(), Stage::kAfterLayout)) return std::nullopt;
  return made;
}

}  // namespace

PassReport use_winograd(Graph& graph, const Target& target) {
  PassReport report;
  const bool trains =
      std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return node.phase != Phase::kForward; });
  std::deque<Node> nodes;
  for (const Node& node : graph.nodes()) {
    if (std::optional<Node> gradient = weight_gradient(graph, node, target)) {
      report.done.push_back(cat(node.path, ": ", node.op->name));
      nodes.push_back(std::move(*gradient));
      continue;
    }
    std::optional<Pair> pair = pair_of(graph, node, !trains);
    if (pair) {
      const Graph probe = alone(graph, *pair);
      if (!target.has_kernel(probe, probe.nodes().back(), Stage::kAfterLayout)) {
        pair.reset();
      } else {
        const ValueId transformed = graph.new_value(probe.type(probe.nodes().front().outputs[0]));
        pair->weights.outputs = {transformed};
        pair->convolution.inputs[1] = transformed;
      }
    }
    if (!pair) {
      nodes.push_back(node);
      continue;
    }
    report.done.push_back(cat(node.path, ": ", node.op->name));
    nodes.push_back(std::move(pair->weights));
    nodes.push_back(std::move(pair->convolution));
  }
  graph.set_nodes(std::move(nodes));
  return report;
}

}  // namespace galley
