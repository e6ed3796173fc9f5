// Convolutions, matrix products, norms, tables.

#include <algorithm>
#include <array>

#include "libcore/onnx/import/import.h"
#include "libcore/onnx/import/window.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

/// Input i, a parameter of the layer where the file holds it; absent where it is.
Value weight_of(Call& c, size_t i, std::string_view leaf, std::string_view type) {
  if (!c.has(i)) return {};
  Item& item = c.to.item(c.node.inputs[i]);
  return item.value || item.transposed ? c.to.value(item) : c.to.parameter(item, leaf, type);
}

void conv(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 4, "Galley convolves images [N,C,H,W]; the input is ", x.type());
  const Value w = weight_of(c, 1, "weight", "conv2d");
  GALLEY_CHECK_INPUT(w.shape().rank() == 4, "the weight wants 4 dimensions, has ", w.type());
  const Window window = window_of(c, x, {w.shape()[2], w.shape()[3]});
  GALLEY_CHECK_INPUT(window.kernel[0] == w.shape()[2] && window.kernel[1] == w.shape()[3], "kernel_shape is ", window.kernel[0], "x", window.kernel[1], ", the weight ", w.shape());
  Conv2dAttrs attrs;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.groups = c.integer("group", 1);
  GALLEY_CHECK_INPUT(attrs.groups >= 1 && attrs.groups <= w.shape()[0], "group is ", attrs.groups);
  const Value padded = pad_window(x, window, 0, attrs.padding);
  c.set(conv2d(padded, w, weight_of(c, 2, "bias", "conv2d"), attrs));
}

/// The bias that the next node adds to a product's output: a vector, one number a feature.
const OnnxNode* bias_after(const Call& c, int64_t features, std::string& bias) {
  const OnnxNode* sum = c.to.only_reader(c.node.outputs.at(0));
  if (sum == nullptr || sum->op_type != "Add" || !sum->domain.empty() || sum->inputs.size() != 2 || sum->outputs.size() != 1) return nullptr;
  bias = sum->inputs[0] == c.node.outputs[0] ? sum->inputs[1] : sum->inputs[0];
  if (bias == c.node.outputs[0] || bias.empty() || c.to.maker(bias) != nullptr) return nullptr;
  const Item& item = c.to.item(bias);
  return item.is_weight && item.constant.shape() == Shape({features}) ? sum : nullptr;
}

/// A weight [O,I] where input i is a constant matrix; `stored` says that it lies so, else as [I,O].
Value matrix(Call& c, size_t i, bool stored) {
  const Item& item = c.item(i);
  if (!item.is_weight || item.constant.shape().rank() != 2) return {};
  if (item.transposed) return stored ? Value() : c.to.parameter(c.to.item(item.name), "weight", "linear");
  if (stored) return c.to.parameter(c.to.item(c.node.inputs[i]), "weight", "linear");
  return c.to.parameter(c.to.turned(c.node.inputs[i]), "weight", "linear");
}

/// Leading dimensions as numpy broadcasts them.
Value product(Value a, Value b, const MatmulAttrs& attrs) {
  GALLEY_CHECK_INPUT(a.shape().rank() >= 2 && b.shape().rank() >= 2, "products of vectors are not known: ", a.type(), " and ", b.type());
  const auto lead = [](const Shape& shape) { return Shape(shape.sizes().first(static_cast<size_t>(shape.rank() - 2))); };
  if (a.shape().rank() == 2 || b.shape().rank() == 2 || lead(a.shape()) == lead(b.shape())) return matmul(a, b, attrs);
  const Shape common = broadcast_shapes(lead(a.shape()), lead(b.shape()));
  const auto spread = [&](Value x) {
    Shape shape = common;
    shape.push_back(x.shape()[-2]);
    shape.push_back(x.shape()[-1]);
    return x.shape() == shape ? x : broadcast_to(x, shape);
  };
  return matmul(spread(a), spread(b), attrs);
}

void mat_mul(Call& c) {
  const Value w = matrix(c, 1, false);
  if (!w) return c.set(product(c.x(0), c.x(1), {}));
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 2, "products of vectors are not known: ", x.type());
  std::string bias;
  const OnnxNode* sum = bias_after(c, w.shape()[0], bias);
  if (sum == nullptr) return c.set(linear(x, w));
  c.to.skip(*sum);
  c.to.set(sum->outputs[0], {.value = linear(x, w, c.to.parameter(c.to.item(bias), "bias", "linear"))});
}

void gemm(Call& c) {
  const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
  const bool turn_a = c.integer("transA", 0) != 0, turn_b = c.integer("transB", 0) != 0;
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 2, "the input wants 2 dimensions, has ", x.type());
  if (alpha == 1 && (beta == 1 || !c.has(2)) && !turn_a) {
    const Value w = matrix(c, 1, turn_b);
    const bool vector = w && (!c.has(2) || (c.item(2).is_weight && c.item(2).constant.shape() == Shape({w.shape()[0]})));
    if (vector) return c.set(linear(x, w, weight_of(c, 2, "bias", "linear")));
  }
  Value y = matmul(x, c.x(1), {turn_a, turn_b});
  if (alpha != 1) y = affine(y, alpha);
  if (c.has(2) && beta != 0) y = add(y, beta == 1 ? c.x(2) : affine(c.x(2), beta));
  c.set(y);
}

void batch_normalization(Call& c) {
  const double eps = c.real("epsilon", 1e-5), momentum = c.real("momentum", 0.9);
  if (c.integer("training_mode", 0) != 0) c.refuse("it normalises by the batch's own statistics (training_mode=1)", "export the model in evaluation mode");
  const Value x = c.x(0);
  constexpr std::array<std::string_view, 4> kLeaves{"weight", "bias", "running_mean", "running_var"};
  const int64_t channels = x.shape().rank() >= 2 ? x.channels() : -1;
  bool known = true;
  std::string module;
  bool same_module = true;
  for (size_t i = 0; i < 4; ++i) {
    const Item& item = c.item(i + 1);
    known = known && item.constant.defined() && !item.value && !item.transposed && item.constant.dtype() == DType::kF32;
    if (item.constant.defined()) GALLEY_CHECK_INPUT(item.constant.shape() == Shape({channels}), kLeaves[i], " is ", item.constant.str(), ", the input has ", channels, " channels");
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

void layer_normalization(Call& c) {
  const Value x = c.x(0);
  const int64_t axis = c.integer("axis", -1), rank = x.shape().rank();
  c.integer("stash_type", 1);
  LayerNormAttrs attrs;
  attrs.eps = c.real("epsilon", 1e-5);
  attrs.dims = axis < 0 ? -axis : rank - axis;
  GALLEY_CHECK_INPUT(attrs.dims >= 1 && attrs.dims <= rank, "axis ", axis, " is out of range for ", x.type());
  if (c.wants_output(1) || c.wants_output(2)) c.refuse("its mean and deviation are read by other nodes");
  c.set(layer_norm(x, weight_of(c, 1, "weight", "layer_norm"), weight_of(c, 2, "bias", "layer_norm"), attrs).y);
}

void instance_normalization(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 3, "the input wants dimensions [N,C,...], has ", x.type());
  GroupNormAttrs attrs;
  attrs.groups = x.channels();
  attrs.eps = c.real("epsilon", 1e-5);
  c.set(group_norm(x, weight_of(c, 1, "weight", "group_norm"), weight_of(c, 2, "bias", "group_norm"), attrs).y);
}

void group_normalization(Call& c) {
  if (c.to.opset() < 21) c.refuse("its scale and bias are one a group before opset 21");
  GroupNormAttrs attrs;
  attrs.groups = c.integer("num_groups", 1);
  attrs.eps = c.real("epsilon", 1e-5);
  c.integer("stash_type", 1);
  c.set(group_norm(c.x(0), weight_of(c, 1, "weight", "group_norm"), weight_of(c, 2, "bias", "group_norm"), attrs).y);
}

/// Elements of an axis by known indices; rows of a table by indices that are fed.
void gather(Call& c) {
  int64_t axis = c.integer("axis", 0);
  const std::optional<Tensor> index = c.constant(1);
  const Item& data = c.item(0);
  if (!index) {
    const Value weight = data.is_weight && !data.transposed ? c.to.parameter(c.to.item(c.node.inputs[0]), "weight", "embedding") : c.x(0);
    if (axis != 0 || weight.shape().rank() != 2) c.refuse(cat("indices that are computed pick rows of a table [rows,width] alone; axis ", axis, " of ", weight.type()));
    return c.set(embedding(weight, c.x(1)));
  }
  const Value x = c.x(0);
  const int rank = x.shape().rank();
  GALLEY_CHECK_INPUT(axis >= -rank && axis < rank, "axis ", axis, " is out of range for ", x.type());
  if (axis < 0) axis += rank;
  GALLEY_CHECK_INPUT(index->shape().rank() <= 1 && index->elements() >= 1 && index->elements() <= (1 << 24), "the indices are ", index->str(), ": one, or a list, are known");
  std::vector<int64_t> at = to_ints(*index);
  const int64_t size = x.shape()[static_cast<int>(axis)];
  bool row = true;
  for (size_t i = 0; i < at.size(); ++i) {
    GALLEY_CHECK_INPUT(at[i] >= -size && at[i] < size, "index ", at[i], " is out of range for axis ", axis, " of ", x.type());
    if (at[i] < 0) at[i] += size;
    row = row && at[i] == at[0] + static_cast<int64_t>(i);
  }
  if (row) {
    const Value part = slice(x, axis, at[0], at[0] + static_cast<int64_t>(at.size()));
    return c.set(index->shape().rank() == 0 ? squeeze(part, axis) : part);
  }
  if (axis == 0 && rank == 2 && is_floating(x.dtype())) return c.set(embedding(x, c.x(1)));
  GALLEY_CHECK_INPUT(at.size() <= 256, "it picks ", at.size(), " parts of ", x.type(), " that are no range: at most 256 are known");
  std::vector<Value> parts;
  for (const int64_t i : at) parts.push_back(slice(x, axis, i, i + 1));
  ConcatAttrs attrs;
  attrs.axis = axis;
  c.set(concat(parts, attrs));
}

}  // namespace

MakeTable product_rows() {
  return {{"Conv", conv},
          {"MatMul", mat_mul},
          {"Gemm", gemm},
          {"BatchNormalization", batch_normalization},
          {"LayerNormalization", layer_normalization},
          {"InstanceNormalization", instance_normalization},
          {"GroupNormalization", group_normalization},
          {"Gather", gather}};
}

}  // namespace galley::onnx_import
