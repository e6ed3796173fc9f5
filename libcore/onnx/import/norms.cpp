// Imports normalization operators.

#include <algorithm>
#include <array>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kMaxNeighbors = 1024;  // terms of LRN's sum over neighboring channels

/// Batch norm with training_mode=1: uses the statistics of the batch, also in inference, and outputs the updated running statistics.
void batch_statistics(Call& c, double eps, double momentum) {
  if (c.to.builder().training()) c.refuse("it is exported in training mode (training_mode=1)", "export the model in evaluation mode");
  BatchNormAttrs attrs;
  attrs.eps = eps;
  const BatchNorm made = batch_norm(c.x(0), c.x(1), c.x(2), attrs);
  c.set(0, made.y);
  const auto running = [&](Value before, Value now) { return add(affine(before, momentum), affine(now, 1 - momentum)); };
  if (c.needs_output(1)) c.set(1, running(c.x(3), made.mean));
  if (c.needs_output(2)) c.set(2, running(c.x(4), made.var));
}

void batch_normalization(Call& c) {
  const double eps = c.real("epsilon", 1e-5), momentum = c.real("momentum", 0.9);
  if (c.integer("spatial", 1) != 1) c.refuse("per-pixel statistics (spatial=0) are not supported");
  if (c.integer("training_mode", 0) != 0) return batch_statistics(c, eps, momentum);
  for (size_t i = 1; i < c.node.outputs.size(); ++i) {
    if (c.needs_output(i)) c.refuse("its statistics outputs are read by other nodes", "export the model in evaluation mode");
  }
  const Value x = c.x(0);
  constexpr std::array<std::string_view, 4> kLeaves{"weight", "bias", "running_mean", "running_var"};
  const int64_t channels = x.shape().rank() >= 2 ? x.channels() : -1;
  bool known = true;
  std::string module;
  bool same_module = true;
  for (size_t i = 0; i < 4; ++i) {
    const Item& item = c.item(i + 1);
    known = known && item.constant.defined() && !item.value && !item.transposed && item.constant.dtype() == DType::kF32;
    if (item.constant.defined())
      GALLEY_CHECK_INPUT(item.constant.shape() == Shape({channels}), "its ", kLeaves[i], " is ", item.constant.str(),
                         ", but the input has ", channels, " channels");
    const std::string of = c.to.module_of(item, kLeaves[i]);
    if (i == 0) module = of;
    same_module = same_module && !of.empty() && of == module;
  }
  if (!known) {
    BatchNormInferenceAttrs attrs;
    attrs.eps = eps;
    return c.set(batch_norm_inference(x, c.x(1), c.x(2), c.x(3), c.x(4), attrs));
  }
  if (!same_module || c.to.declared(module + ".weight")) module = c.to.path();
  std::string unique = module;
  for (int turn = 2; c.to.declared(unique + ".weight"); ++turn) unique = cat(module, "_", turn);
  BatchNormOptions options;
  options.eps = eps;
  options.momentum = 1 - momentum;
  options.weight_init = Init::given(c.item(1).constant);
  options.bias_init = Init::given(c.item(2).constant);
  options.mean_init = Init::given(c.item(3).constant);
  options.var_init = Init::given(c.item(4).constant);
  c.set(c.to.in_module("", [&] { return c.to.builder().batch_norm(unique, x, options); }));
}

/// Sets an output with one number per leading index, with size 1 for the normalized axes.
void set_statistic(Call& c, size_t output, Value statistic, Value x, int64_t dims) {
  if (!c.needs_output(output)) return;
  Shape shape(x.shape().sizes().first(static_cast<size_t>(x.shape().rank() - dims)));
  for (int64_t i = 0; i < dims; ++i) shape.push_back(1);
  c.set(output, reshape(statistic, shape));
}

void layer_normalization(Call& c) {
  const Value x = c.x(0);
  const int64_t rank = x.shape().rank(), axis = axis_in(c.integer("axis", -1), rank);
  if (c.integer("stash_type", 1) != 1) c.refuse("stash_type must be 1 (float32 statistics)");
  LayerNormAttrs attrs;
  attrs.eps = c.real("epsilon", 1e-5);
  attrs.dims = rank - axis;
  const LayerNorm made = layer_norm(x, weight_of(c, 1, "weight", "layer_norm"), weight_of(c, 2, "bias", "layer_norm"), attrs);
  c.set(0, made.y);
  set_statistic(c, 1, made.mean, x, attrs.dims);
  set_statistic(c, 2, made.rstd, x, attrs.dims);
}

void instance_normalization(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 3, "its input is ", x.type(), ", but must have dimensions [N,C,...]");
  GroupNormAttrs attrs;
  attrs.groups = x.channels();
  attrs.eps = c.real("epsilon", 1e-5);
  c.set(group_norm(x, weight_of(c, 1, "weight", "group_norm"), weight_of(c, 2, "bias", "group_norm"), attrs).y);
}

/// Before opset 21, scale and bias have one number per group.
void group_normalization(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 3, "its input is ", x.type(), ", but must have dimensions [N,C,...]");
  GroupNormAttrs attrs;
  attrs.groups = c.integer("num_groups", 1);
  attrs.eps = c.real("epsilon", 1e-5);
  if (c.integer("stash_type", 1) != 1) c.refuse("stash_type must be 1 (float32 statistics)");
  GALLEY_CHECK_INPUT(attrs.groups >= 1 && x.channels() % attrs.groups == 0, "num_groups is ", attrs.groups, ", but must divide the ",
                     x.channels(), " channels of the input");
  const auto of_channels = [&](size_t i, std::string_view leaf) {
    if (c.opset() >= 21) return weight_of(c, i, leaf, "group_norm");
    const Value each = c.x(i);
    GALLEY_CHECK_INPUT(each.shape() == Shape({attrs.groups}), "its ", leaf, " is ", each.type(), ", but must have one number per group");
    return reshape(broadcast_to(reshape(each, {attrs.groups, 1}), Shape({attrs.groups, x.channels() / attrs.groups})), {x.channels()});
  };
  const Value weight = of_channels(1, "weight"), bias = of_channels(2, "bias");
  c.set(group_norm(x, weight, bias, attrs).y);
}

/// Reduction over these axes, which are kept with size 1.
ReduceAttrs reduce_keeping(std::vector<int64_t> axes) {
  ReduceAttrs attrs;
  attrs.axes = std::move(axes);
  attrs.keepdim = true;
  return attrs;
}

/// (x - mean) / sqrt(variance) over `axes`.
void mean_variance(Call& c) {
  const Value x = c.x(0);
  const ReduceAttrs attrs = reduce_keeping(c.ints("axes", {0, 2, 3}));
  const Value centered = sub(x, mean(x, attrs));
  c.set(div(centered,
            affine(sqrt(mean(square(centered), attrs)), 1, 1e-9)));  // 1e-9 is the epsilon in the operator's definition as a function
}

/// Local response normalization across channels (Krizhevsky et al. 2012).
void local_response(Call& c) {
  const Value x = c.x(0);
  const double alpha = c.real("alpha", 1e-4), beta = c.real("beta", 0.75), bias = c.real("bias", 1);
  const int64_t size = c.integer("size", 1), channels = x.shape().rank() >= 2 ? x.channels() : 0;
  GALLEY_CHECK_INPUT(channels >= 1 && size >= 1 && size <= kMaxNeighbors, "size is ", size, ", but must be between 1 and ", kMaxNeighbors,
                     "; the input is ", x.type());
  std::vector<int64_t> padding(static_cast<size_t>(2 * x.shape().rank()), 0);
  padding[2] = (size - 1) / 2;
  padding[3] = size - 1 - padding[2];
  const Value squares = pad(square(x), padding);
  Value sum;
  for (int64_t i = 0; i < size; ++i) {
    const Value part = slice(squares, 1, i, i + channels);
    sum = sum ? add(sum, part) : part;
  }
  c.set(div(x, pow(affine(sum, alpha / static_cast<double>(size), bias), beta)));
}

/// x / (sum of |x|^p)^(1/p) along an axis, p = 1 or 2; 0 if the sum is 0.
void lp_normalization(Call& c) {
  const Value x = c.x(0);
  const ReduceAttrs attrs = reduce_keeping({axis_in(c.integer("axis", -1), x.shape().rank())});
  const int64_t p = c.integer("p", 2);
  if (p != 1 && p != 2) c.refuse(cat("p is ", p, ", but must be 1 or 2"));
  const Value norm = p == 1 ? sum(abs(x), attrs) : sqrt(sum(square(x), attrs));
  const Value zero = c.scalar_value(x.dtype(), 0);
  c.set(where(equal(norm, zero), zero, div(x, norm)));
}

}  // namespace

MakeTable norm_rows() {
  return {{"BatchNormalization", batch_normalization},
          {"LayerNormalization", layer_normalization},
          {"InstanceNormalization", instance_normalization},
          {"GroupNormalization", group_normalization},
          {"MeanVarianceNormalization", mean_variance},
          {"LpNormalization", lp_normalization},
          {"LRN", local_response}};
}

}  // namespace galley::onnx_import
