#include <algorithm>

#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/passes/fuser.h"

namespace galley {

PassReport fuse_gradient_sums(Graph& graph, const Target& target) {
  Fuser fuser(graph);
  const auto residual_input = [](const Node& node) {
    return node.is("conv2d_backward_data") ? 2u : node.is("pointwise_batch_norm_depthwise_backward") ? 8u : 0u;
  };
  for (size_t n = 0; n < fuser.size(); ++n) {
    const Node sum = fuser.node(n);
    if (!sum.is("add") || sum.phase != Phase::kBackward || !adds_alike(graph, sum) || sum.inputs[0] == sum.inputs[1]) continue;
    // The later of two takes the other, which exists by then. It stays at its place: its weight may be updated before the sum.
    const size_t side = fuser.producer(sum.inputs[0]) < fuser.producer(sum.inputs[1]) ? 1 : 0;
    const ValueId gradient = sum.inputs[side];
    const int made = fuser.producer(gradient);
    if (made < 0) continue;
    Node merged = fuser.node(static_cast<size_t>(made));
    const size_t at = residual_input(merged);
    if (at == 0 || merged.outputs[0] != gradient || merged.input(at) != kNoValue || !fuser.reason_against(gradient).empty()) continue;
    merged.inputs.resize(std::max(merged.inputs.size(), at + 1), kNoValue);
    merged.inputs[at] = sum.inputs[1 - side];
    if (!target.has_kernel(graph, merged, Stage::kAfterLayout)) continue;
    const std::string what = cat(merged.op->name, " + add");
    fuser.merge_into(static_cast<size_t>(made), n, std::move(merged), what);
  }
  fuser.finish();
  return std::move(fuser.report);
}

}  // namespace galley
