#include <algorithm>
#include <set>

#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

bool is_pointwise(const Graph& graph, const Node& weights) {
  const auto& window = weights.attrs<Conv2dBackwardWeightsAttrs>();
  constexpr std::array<int64_t, 2> kOne{1, 1}, kZero{0, 0};
  return pair(window.kernel_size) == kOne && pair(window.stride) == kOne && pair(window.padding) == kZero && window.groups == 1 &&
         graph.type(weights.inputs[0]).shape.rank() == 4;
}

/// `depthwise`, a batch_norm_depthwise, fused with the convolution that produces its input; nothing where that is not a plain 1x1
/// convolution.
std::optional<Node> with_convolution(const Graph& graph, const Node& depthwise, const Node& convolution) {
  const auto& window = convolution.attrs<Conv2dAttrs>();
  constexpr std::array<int64_t, 2> kOne{1, 1}, kZero{0, 0};
  const Shape& weight = graph.type(convolution.inputs[1]).shape;
  if (weight[2] * weight[3] != 1 || pair(window.stride) != kOne || pair(window.padding) != kZero || window.groups != 1) return std::nullopt;
  if (convolution.input(2) != kNoValue || convolution.input(3) != kNoValue || window.activation != Activation::kNone) return std::nullopt;
  Node merged = depthwise;
  merged.op = &pointwise_batch_norm_depthwise_op();
  merged.inputs = {convolution.inputs[0], convolution.inputs[1], depthwise.inputs[1], depthwise.input(2), depthwise.input(3)};
  return merged;
}

/// The two gradients of a 1x1 convolution and that of the batch norm that reads it, or of a batch_norm_depthwise, as one operator.
Node with_gradients(const Node& norm, const Node& data, const Node& weights) {
  Node merged = norm;
  merged.path = data.path;
  merged.inputs.resize(7, kNoValue);
  if (norm.is("batch_norm_backward")) {
    merged.op = &pointwise_batch_norm_backward_op();
  } else {
    merged.op = &pointwise_batch_norm_depthwise_backward_op();
    merged.inputs.erase(merged.inputs.begin() + 2);  // the output of the convolution: computed again
  }
  merged.inputs.insert(merged.inputs.end(), {weights.inputs[0], data.inputs[1]});
  merged.outputs = {data.outputs[0], weights.outputs[0]};
  merged.outputs.insert(merged.outputs.end(), norm.outputs.begin() + 1, norm.outputs.end());
  return merged;
}

class PointwiseFuser {
 public:
  PointwiseFuser(Graph& graph, const Target& target) : graph_(graph), target_(target), fuser_(graph) {}

  PassReport run() {
    for (size_t n = 0; n < fuser_.size(); ++n) {
      if (fuser_.gone(n)) continue;
      const Node& node = fuser_.node(n);
      if (node.is("batch_norm_backward")) {
        if (const std::optional<Gradients> gradients = gradients_of(n)) take_or_decline(n, *gradients);
      } else if (node.is("batch_norm_depthwise") || node.is("batch_norm_depthwise_backward")) {
        take_convolution(node.inputs[node.is("batch_norm_depthwise") ? 0 : 2]);
      }
    }
    fuser_.finish();
    return std::move(fuser_.report);
  }

 private:
  /// The node that stands for the gradients of a norm and of the 1x1 convolution before it, and where those of the convolution are.
  struct Gradients {
    Node merged;
    size_t data, weights;
  };

  /// Nothing where the gradient between has other readers.
  std::optional<Gradients> gradients_of(size_t n) {
    const Node& norm = fuser_.node(n);
    const ValueId between = norm.outputs[0];
    int data = -1, weights = -1;
    for (int user : fuser_.users(between)) {
      const Node& reader = fuser_.node(static_cast<size_t>(user));
      if (reader.is("conv2d_backward_data") && reader.inputs[0] == between) data = user;
      if (reader.is("conv2d_backward_weights") && reader.inputs[1] == between) weights = user;
    }
    if (data < 0 || weights < 0 || fuser_.users(between).size() != 2 || fuser_.is_output(between)) return std::nullopt;
    if (!is_pointwise(graph_, fuser_.node(static_cast<size_t>(weights)))) return std::nullopt;
    return Gradients{with_gradients(norm, fuser_.node(static_cast<size_t>(data)), fuser_.node(static_cast<size_t>(weights))),
                     static_cast<size_t>(data), static_cast<size_t>(weights)};
  }

  static std::string what_of(const Node& norm) { return cat(norm.op->name, " + conv2d_backward_data + conv2d_backward_weights"); }
  void take(size_t n, const Gradients& gradients) {
    fuser_.remove(gradients.weights);
    fuser_.merge(gradients.data, n, gradients.merged, what_of(fuser_.node(n)));
  }
  void take_or_decline(size_t n, const Gradients& gradients) {
    if (target_.has_kernel(graph_, gradients.merged, Stage::kAfterLayout)) {
      take(n, gradients);
    } else {
      fuser_.report.declined.push_back(cat(gradients.merged.path, ": ", what_of(fuser_.node(n)), ": no kernel takes it"));
    }
  }

  /// Fuses the convolution that produces `between` into all its readers (a batch_norm_depthwise and its gradients), or into none.
  void take_convolution(ValueId between) {
    const int convolution = fuser_.producer(between);
    if (convolution < 0 || !fuser_.node(static_cast<size_t>(convolution)).is("conv2d") || !seen_.insert(between).second ||
        fuser_.is_output(between))
      return;
    const Node made = fuser_.node(static_cast<size_t>(convolution));
    std::vector<std::pair<size_t, Node>> forward;
    std::vector<std::pair<size_t, Gradients>> backward;
    for (int user : fuser_.users(between)) {
      const auto n = static_cast<size_t>(user);
      const Node& reader = fuser_.node(n);
      if (reader.is("batch_norm_depthwise") && reader.inputs[0] == between) {
        std::optional<Node> merged = with_convolution(graph_, reader, made);
        if (!merged) return;
        forward.emplace_back(n, std::move(*merged));
      } else if (reader.is("batch_norm_depthwise_backward") && reader.inputs[2] == between) {
        std::optional<Gradients> gradients = gradients_of(n);
        if (!gradients) return;
        backward.emplace_back(n, std::move(*gradients));
      } else {
        return;
      }
    }
    // The gradients read the moments of x that the forward pass has summed.
    for (size_t i = 0; i < forward.size(); ++i) {
      Node& merged = forward[i].second;
      TensorType moments = moments_type(graph_.type(merged.inputs[0]));
      moments.placement = graph_.type(merged.outputs[0]).placement;
      merged.outputs.push_back(fuser_.new_value(std::move(moments)));
      if (i > 0) continue;
      for (auto& [n, gradients] : backward) {
        gradients.merged.inputs.resize(9, kNoValue);
        gradients.merged.inputs.push_back(merged.outputs[3]);
      }
    }
    const auto missing = [&](const Node& merged) { return !target_.has_kernel(graph_, merged, Stage::kAfterLayout); };
    if (std::any_of(forward.begin(), forward.end(), [&](const auto& one) { return missing(one.second); }) ||
        std::any_of(backward.begin(), backward.end(), [&](const auto& one) { return missing(one.second.merged); })) {
      fuser_.report.declined.push_back(cat(made.path, ": conv2d + batch_norm_depthwise: no kernel takes it"));
      return;
    }
    for (auto& [n, merged] : forward) fuser_.merge(n, static_cast<size_t>(convolution), std::move(merged), "conv2d + batch_norm_depthwise");
    for (const auto& [n, gradients] : backward) take(n, gradients);
    fuser_.remove(static_cast<size_t>(convolution));
  }

  Graph& graph_;
  const Target& target_;
  Fuser fuser_;
  std::set<ValueId> seen_;
};

}  // namespace

PassReport fuse_pointwise(Graph& graph, const Target& target) { return PointwiseFuser(graph, target).run(); }

}  // namespace galley
