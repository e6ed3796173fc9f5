#include "libcore/passes/patterns.h"

#include <algorithm>
#include <tuple>

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
  pattern.residual_with_relu_only = true;  // the backward pass gets relu's mask from the output; other activations do not allow this
  return pattern;
}

FusionPattern conv_pattern(std::string_view op) {
  FusionPattern pattern = pattern_of<Conv2dAttrs>(op);
  pattern.residual = 3;
  pattern.batch_norm = true;
  return pattern;
}

FusionPattern linear_pattern() {
  FusionPattern pattern = pattern_of<LinearAttrs>("linear");
  pattern.batch_norm = true;
  pattern.channel_axis = -1;
  return pattern;
}

}  // namespace

std::span<const FusionPattern> training_patterns() {
  static const FusionPattern patterns[] = {batch_norm_pattern()};
  return patterns;
}

std::span<const FusionPattern> inference_patterns() {
  static const FusionPattern patterns[] = {conv_pattern("conv2d"), conv_pattern("conv3d"), linear_pattern(),
                                           pattern_of<BatchNormInferenceAttrs>("batch_norm_inference")};
  return patterns;
}

const FusionPattern* find_pattern(std::span<const FusionPattern> patterns, const Node& node) {
  const auto found = std::find_if(patterns.begin(), patterns.end(), [&](const FusionPattern& pattern) { return node.is(pattern.op); });
  return found == patterns.end() ? nullptr : &*found;
}

BatchNorms::BatchNorms(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (updates(node)) running_[node.inputs[2]] = {node.inputs[0], node.inputs[1]};
  }
}

bool BatchNorms::updates(const Node& node) { return node.is("batch_norm_update"); }

std::optional<BatchNormPattern> BatchNorms::match(const Node& node) const {
  BatchNormPattern found{.x = node.input(0), .gamma = node.input(1), .beta = node.input(2)};
  if (node.is("batch_norm_inference")) {
    const auto& attrs = node.attrs<BatchNormInferenceAttrs>();
    found.mean = node.inputs[3];
    found.var = node.inputs[4];
    found.eps = attrs.eps;
    found.activation = attrs.activation;
    found.frozen = true;
    return found;
  }
  if (!node.is("batch_norm")) return std::nullopt;
  const auto& attrs = node.attrs<BatchNormAttrs>();
  if (const auto statistics = running_.find(node.outputs[1]); statistics != running_.end())
    std::tie(found.mean, found.var) = statistics->second;
  found.eps = attrs.eps;
  found.activation = attrs.activation;
  return found;
}

Node BatchNorms::frozen(const Node& node) const {
  const std::optional<BatchNormPattern> norm = match(node);
  GALLEY_ASSERT(norm && norm->mean != kNoValue && norm->activation == Activation::kNone && node.input(3) == kNoValue,
                "not a batch norm of a captured model");
  auto attrs = std::make_shared<BatchNormInferenceAttrs>();
  attrs->eps = norm->eps;
  Node made = node;
  made.op = &batch_norm_inference_op();
  made.attributes = std::move(attrs);
  made.inputs = {norm->x, norm->gamma, norm->beta, norm->mean, norm->var};
  made.outputs = {node.outputs[0]};
  return made;
}

bool is_residual_sum(const Graph& graph, const Node& node) { return node.is("add") && adds_alike(graph, node); }

}  // namespace galley
