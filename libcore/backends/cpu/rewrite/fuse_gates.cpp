#include "libcore/backends/cpu/rewrite/gates.h"
#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

/// How the gradient of a gated array comes: grad gate + the gradient of its mean, spread over the pixels.
struct Gated {
  ValueId grad, gate, spread;
  std::array<size_t, 3> nodes;  // that make it
};

/// Is this value an average over the pixels of each channel, or one such for each?
bool is_one_each(const Graph& graph, ValueId id, const Shape& image) {
  const Shape& shape = graph.type(id).shape;
  return shape.rank() == 4 && image.rank() == 4 && shape == Shape{image[0], image[1], 1, 1};
}

std::optional<Gated> gated(const Graph& graph, Fuser& fuser, ValueId gradient) {
  const auto maker = [&](ValueId id, std::string_view op) -> std::optional<size_t> {
    const int n = fuser.producer(id);
    if (n < 0 || fuser.gone(static_cast<size_t>(n)) || !fuser.node(static_cast<size_t>(n)).is(op) || !fuser.reason_against(id).empty())
      return std::nullopt;
    return static_cast<size_t>(n);
  };
  const std::optional<size_t> sum = maker(gradient, "add");
  if (!sum || !adds_alike(graph, fuser.node(*sum))) return std::nullopt;
  for (size_t side : {0u, 1u}) {
    const std::vector<ValueId>& sides = fuser.node(*sum).inputs;
    const std::optional<size_t> product = maker(sides[side], "mul"), mean = maker(sides[1 - side], "adaptive_avg_pool2d_backward");
    if (!product || !mean) continue;
    const std::vector<ValueId>& factors = fuser.node(*product).inputs;
    const ValueId spread = fuser.node(*mean).inputs[0];
    const Shape& image = graph.type(gradient).shape;
    for (size_t i : {0u, 1u}) {
      if (is_one_each(graph, factors[i], image) && graph.type(factors[1 - i]).shape == image && is_one_each(graph, spread, image)) {
        return Gated{factors[1 - i], factors[i], spread, {*sum, *product, *mean}};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

PassReport fuse_gates(Graph& graph, const Target& target) {
  Fuser fuser(graph);
  for (size_t n = 0; n < fuser.size(); ++n) {
    Node merged = fuser.node(n);
    if (merged.is("sum_to")) {
      const int product = fuser.producer(merged.inputs[0]);
      if (product < 0 || !fuser.node(static_cast<size_t>(product)).is("mul") || !fuser.reason_against(merged.inputs[0]).empty()) continue;
      if (!adds_alike(graph, fuser.node(static_cast<size_t>(product)))) continue;
      merged.op = &sum_products_op();
      merged.inputs = fuser.node(static_cast<size_t>(product)).inputs;
      if (target.has_kernel(graph, merged, Stage::kBeforeLayout)) fuser.merge(n, static_cast<size_t>(product), merged, "mul + sum_to");
    } else if (merged.is("batch_norm_backward") && merged.input(6) == kNoValue && !merged.attrs<BatchNormBackwardAttrs>().residual) {
      const std::optional<Gated> gradient = gated(graph, fuser, merged.inputs[0]);
      if (!gradient) continue;
      merged.op = &gated_batch_norm_backward_op();
      merged.inputs.resize(6, kNoValue);
      merged.inputs[0] = gradient->grad;
      merged.inputs.insert(merged.inputs.end(), {gradient->gate, gradient->spread});
      if (!target.has_kernel(graph, merged, Stage::kBeforeLayout)) continue;
      fuser.merge(n, gradient->nodes[0], merged, "batch_norm_backward + add + mul + adaptive_avg_pool2d_backward");
      for (size_t inner : {gradient->nodes[1], gradient->nodes[2]}) fuser.absorb(n, inner);
    }
  }
  fuser.finish();
  return std::move(fuser.report);
}

}  // namespace galley
