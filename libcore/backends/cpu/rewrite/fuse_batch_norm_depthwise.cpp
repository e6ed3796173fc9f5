#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"
#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/ops/norm.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

/// The batch norm and the depthwise convolution `node` that reads it as one operator; nothing where the convolution is another one.
std::optional<Node> with_batch_norm(const Graph& graph, const Node& node, const Node& norm) {
  const auto& window = node.attrs<Conv2dAttrs>();
  const Shape &x = graph.type(node.inputs[0]).shape, &weight = graph.type(node.inputs[1]).shape;
  if (window.groups == 1 || window.groups != x[1] || weight[0] != x[1] || pair(window.dilation) != std::array<int64_t, 2>{1, 1})
    return std::nullopt;
  if (!norm.attrs<BatchNormAttrs>().sync.empty()) return std::nullopt;  // it does not sum over ranks
  if (node.input(2) != kNoValue || node.input(3) != kNoValue || norm.input(3) != kNoValue || window.activation != Activation::kNone)
    return std::nullopt;
  auto attrs = std::make_shared<BatchNormDepthwiseAttrs>();
  attrs->eps = norm.attrs<BatchNormAttrs>().eps;
  attrs->activation = norm.attrs<BatchNormAttrs>().activation;
  attrs->stride = window.stride;
  attrs->padding = window.padding;
  Node merged = node;
  merged.op = &batch_norm_depthwise_op();
  merged.attributes = std::move(attrs);
  merged.inputs = {norm.inputs[0], node.inputs[1], norm.input(1), norm.input(2)};
  merged.outputs = {node.outputs[0], norm.outputs[1], norm.outputs[2]};
  return merged;
}

}  // namespace

PassReport fuse_batch_norm_depthwise(Graph& graph, const Target& target) {
  Fuser fuser(graph);
  for (size_t n = 0; n < fuser.size(); ++n) {
    if (!fuser.node(n).is("conv2d")) continue;
    const ValueId between = fuser.node(n).inputs[0];
    const int norm = fuser.producer(between);
    if (norm < 0 || !fuser.node(static_cast<size_t>(norm)).is("batch_norm")) continue;
    const std::optional<Node> merged = with_batch_norm(graph, fuser.node(n), fuser.node(static_cast<size_t>(norm)));
    if (!merged) continue;
    std::string against = fuser.reason_against(between);
    if (against.empty() && !target.has_kernel(graph, *merged, Stage::kForward)) against = "no kernel takes it";
    if (against.empty()) {
      fuser.merge(n, static_cast<size_t>(norm), *merged, "batch_norm + conv2d");
    } else {
      fuser.report.declined.push_back(cat(merged->path, ": batch_norm + conv2d: ", against));
    }
  }
  fuser.finish();
  return std::move(fuser.report);
}

}  // namespace galley
