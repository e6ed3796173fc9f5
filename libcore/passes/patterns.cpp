#include "libcore/passes/patterns.h"

#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

template <class Attrs>
Activation activation_in(const Node& node) {
  return node.attrs<Attrs>().activation;
}

template <class Attrs>
Node with_activation(const Node& node, Activation activation) {
  auto attrs = std::make_shared<Attrs>(node.attrs<Attrs>());
  attrs->activation = activation;
  Node copy = node;
  copy.attributes = std::move(attrs);
  return copy;
}

template <class Attrs>
FusionPattern pattern_of(std::string_view op) {
  return {.op = op, .activation = activation_in<Attrs>, .with_activation = with_activation<Attrs>};
}

FusionPattern batch_norm_pattern() {
  FusionPattern pattern = pattern_of<BatchNormAttrs>("batch_norm");
  pattern.residual = 3;
  pattern.takes = batch_norm_takes;
  pattern.residual_with_relu_only = true;  // its backward pass reads the mask of relu from the output, and of no other activation
  return pattern;
}

FusionPattern conv2d_pattern() {
  FusionPattern pattern = pattern_of<Conv2dAttrs>("conv2d");
  pattern.residual = 3;
  return pattern;
}

}  // namespace

std::span<const FusionPattern> training_patterns() {
  static const FusionPattern patterns[] = {batch_norm_pattern()};
  return patterns;
}

std::span<const FusionPattern> inference_patterns() {
  static const FusionPattern patterns[] = {conv2d_pattern(), pattern_of<LinearAttrs>("linear"), pattern_of<BatchNormInferenceAttrs>("batch_norm_inference")};
  return patterns;
}

bool is_residual_sum(const Graph& graph, const Node& node) { return node.is("add") && adds_alike(graph, node); }

}  // namespace galley
