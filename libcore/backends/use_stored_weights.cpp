#include <algorithm>

#include "libcore/backends/weight_only.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

/// Are all inputs parameters or buffers, so that the weight does not change from run to run?
bool is_stored(const Graph& graph, const Node& dequantize) {
  return std::all_of(dequantize.inputs.begin(), dequantize.inputs.end(), [&](ValueId id) {
    return id == kNoValue || graph.value(id).role == ValueRole::kParameter || graph.value(id).role == ValueRole::kBuffer;
  });
}

}  // namespace

PassReport use_stored_weights(Graph& graph, const Target& target, bool round_for_int4, bool round_for_int8) {
  // In training, the gradients are those of products in float.
  const auto& nodes = graph.nodes();
  const bool infers = std::none_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.phase == Phase::kBackward; });
  Fuser fuser(graph);
  for (size_t n = 0; n < fuser.size(); ++n) {
    if (fuser.gone(n) || !fuser.node(n).is("linear")) continue;
    const Node& linear = fuser.node(n);
    const int producer = fuser.producer(linear.inputs[1]);
    if (producer < 0 || !fuser.node(static_cast<size_t>(producer)).is("dequantize_weight")) continue;
    const Node& dequantize = fuser.node(static_cast<size_t>(producer));
    if (graph.type(dequantize.inputs[0]).dtype == DType::kF8E4M3) continue;  // weight_only_linear has integers
    if (!is_stored(graph, dequantize) || !fuser.reason_against(linear.inputs[1]).empty()) continue;
    const auto& stored = dequantize.attrs<DequantizeWeightAttrs>();
    WeightOnlyLinearAttrs attrs;
    attrs.bits = stored.bits;
    attrs.group_size = stored.group_size;
    attrs.activation = linear.attrs<LinearAttrs>().activation;
    const bool may_round = infers && (stored.bits == 4 ? round_for_int4 : round_for_int8);
    for (const bool rounded : {true, false}) {
      if (rounded && !(may_round && can_round(attrs, dequantize.input(2) != kNoValue))) continue;
      attrs.rounded = rounded;
      Node merged = linear;
      merged.op = &weight_only_linear_op();
      merged.attributes = std::make_shared<WeightOnlyLinearAttrs>(attrs);
      merged.inputs = {linear.inputs[0], dequantize.inputs[0], dequantize.inputs[1], dequantize.input(2), linear.input(2)};
      if (!target.has_kernel(graph, merged, Stage::kBeforeLayout)) continue;
      fuser.merge(n, static_cast<size_t>(producer), std::move(merged), "dequantize_weight + linear");
      break;
    }
  }
  fuser.finish();
  return std::move(fuser.report);
}

}  // namespace galley
