// Imports convolutions and matrix products.

#include <algorithm>

#include "libcore/onnx/import/import.h"
#include "libcore/onnx/import/window.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLargestAxis = int64_t{1} << 24;  // limit of an axis size, so that its product with a stride cannot overflow

/// Converts [N,C,L] to an image with one row, [N,C,1,L], and back; images are not changed.
Value as_image(Value x) { return x.shape().rank() == 3 ? unsqueeze(x, 2) : x; }
Value restore_rank(Value y, bool line) { return line ? squeeze(y, 2) : y; }

/// Checks the ranks of a convolution's input and weight.
void check_operands(Value x, Value w) {
  const int rank = x.shape().rank();
  GALLEY_CHECK_INPUT(rank == 3 || rank == 4, "its input is ", x.type(), ", but must have dimensions [N,C,L] or [N,C,H,W]");
  GALLEY_CHECK_INPUT(w.shape().rank() == rank, "its weight is ", w.type(), ", but must have ", rank, " dimensions");
}

/// The window; kernel_shape must match the weight.
Window window_of_weight(Call& c, Value x, Value w) {
  const std::vector<int64_t> kernel(w.shape().begin() + 2, w.shape().end());
  const Window window = window_of(c, x, kernel);
  GALLEY_CHECK_INPUT(std::equal(window.kernel.end() - static_cast<int64_t>(kernel.size()), window.kernel.end(), kernel.begin()),
                     "kernel_shape does not match the weight ", w.shape());
  return window;
}

int64_t groups_of(Call& c, Value w) {
  const int64_t groups = c.integer("group", 1);
  GALLEY_CHECK_INPUT(groups >= 1 && groups <= w.shape()[0], "group is ", groups, ", but must be between 1 and ", w.shape()[0]);
  return groups;
}

void conv_volume(Call& c) {
  const Value x = c.x(0), w = weight_of(c, 1, "weight", "conv3d");
  GALLEY_CHECK_INPUT(w.shape().rank() == 5, "its weight is ", w.type(), ", but must have 5 dimensions");
  const std::vector<int64_t> kernel(w.shape().begin() + 2, w.shape().end());
  const VolumeWindow window = volume_window(c, kernel);
  GALLEY_CHECK_INPUT(window.kernel == kernel, "kernel_shape does not match the weight ", w.shape());
  Conv2dAttrs attrs;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.groups = groups_of(c, w);
  const Value padded = pad_volume(x, window, 0, window.even(), attrs.padding);
  c.set(conv3d(padded, w, weight_of(c, 2, "bias", "conv3d"), attrs));
}

void conv(Call& c) {
  if (c.x(0).shape().rank() == 5) return conv_volume(c);
  const Value x = c.x(0), w = weight_of(c, 1, "weight", "conv2d");
  check_operands(x, w);
  const Window window = window_of_weight(c, x, w);
  Conv2dAttrs attrs;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.groups = groups_of(c, w);
  const Value padded = pad_window(as_image(x), window, 0, window.even(), attrs.padding);
  c.set(restore_rank(conv2d(padded, as_image(w), weight_of(c, 2, "bias", "conv2d"), attrs), x.shape().rank() == 3));
}

/// The uncropped size of a transposed convolution's result, the cropped size, and what is cropped at the start.
struct TransposedSizes {
  std::vector<int64_t> whole, size, before;  // for rows and columns
};
TransposedSizes transposed_sizes(Call& c, const Shape& x, const Window& window) {
  const size_t axes = window.axes;
  const std::string automatic = c.text("auto_pad", "NOTSET");
  const std::vector<int64_t> more = c.ints("output_padding", std::vector<int64_t>(axes, 0)), given = c.ints("output_shape", {});
  GALLEY_CHECK_INPUT(more.size() == axes, "output_padding has ", more.size(), " numbers, but must have ", axes);
  GALLEY_CHECK_INPUT(given.empty() || given.size() == axes || given.size() == axes + 2, "output_shape has ", given.size(),
                     " numbers, but must have ", axes);
  for (const int64_t size : given)
    GALLEY_CHECK_INPUT(size >= 0 && size <= kLargestAxis, "output_shape contains ", size, ", but must be between 0 and ", kLargestAxis);
  TransposedSizes sizes;
  for (size_t i = 0; i < 2; ++i) {
    const size_t from = i + axes - 2;  // with one axis there are no rows
    const bool line = axes == 1 && i == 0;
    const int64_t added = line ? 0 : more[from], in = x[2 + static_cast<int>(i)];
    GALLEY_CHECK_INPUT(added >= 0 && added < std::max(window.stride[i], window.dilation[i]), "output_padding is ", added,
                       ", but must be at least 0 and less than the stride or dilation");
    GALLEY_CHECK_INPUT(in <= kLargestAxis, "its input has an axis of size ", in, ", but at most ", kLargestAxis, " is supported");
    const int64_t reach = (in - 1) * window.stride[i] + (window.kernel[i] - 1) * window.dilation[i] + 1 + added;
    int64_t size = reach - window.before[i] - window.after[i], before = window.before[i];
    if (!line && (!given.empty() || automatic.starts_with("SAME"))) {
      size = given.empty() ? in * window.stride[i] : given[given.size() - axes + from];
      const int64_t cut = std::max<int64_t>(0, reach - size);
      before = automatic == "SAME_UPPER" ? cut / 2 : cut - cut / 2;
    }
    GALLEY_CHECK_INPUT(size >= 1 && before >= 0, "its result would have size ", size);
    sizes.whole.push_back(std::max(reach, before + size));
    sizes.size.push_back(size);
    sizes.before.push_back(before);
  }
  return sizes;
}

/// A transposed convolution is the gradient of a convolution with respect to its input.
void conv_transpose(Call& c) {
  const Value x = c.x(0), w = weight_of(c, 1, "weight", "conv2d");
  check_operands(x, w);
  const Window window = window_of_weight(c, x, w);
  const Value image = as_image(x);
  const TransposedSizes sizes = transposed_sizes(c, image.shape(), window);
  Conv2dBackwardDataAttrs attrs;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.groups = groups_of(c, w);
  // The gradient has the size that the kernels cover; beyond it the result is zero.
  for (size_t i = 0; i < 2; ++i)
    attrs.input_size.push_back((image.shape()[2 + static_cast<int>(i)] - 1) * window.stride[i] +
                               (window.kernel[i] - 1) * window.dilation[i] + 1);
  Value y = conv2d_backward_data(image, as_image(w), attrs);
  std::vector<int64_t> more(8, 0);
  for (size_t i = 0; i < 2; ++i) more[5 + 2 * i] = sizes.whole[i] - attrs.input_size[i];
  if (more[5] > 0 || more[7] > 0) y = pad(y, more);
  for (size_t i = 0; i < 2; ++i) {
    if (sizes.size[i] != sizes.whole[i]) y = slice(y, 2 + static_cast<int64_t>(i), sizes.before[i], sizes.before[i] + sizes.size[i]);
  }
  if (c.has(2)) y = add(y, reshape(weight_of(c, 2, "bias", "conv2d"), {1, y.shape()[1], 1, 1}));
  c.set(restore_rank(y, x.shape().rank() == 3));
}

/// The next node, if it adds a bias vector [features] to the product; sets `bias` to its name.
const OnnxNode* bias_after(const Call& c, int64_t features, std::string& bias) {
  const OnnxNode* sum = c.to.only_reader(c.node.outputs.at(0));
  if (sum == nullptr || sum->op_type != "Add" || !sum->domain.empty() || sum->inputs.size() != 2 || sum->outputs.size() != 1)
    return nullptr;
  bias = sum->inputs[0] == c.node.outputs[0] ? sum->inputs[1] : sum->inputs[0];
  if (bias == c.node.outputs[0] || bias.empty() || c.to.producer(bias) != nullptr) return nullptr;
  const Item& item = c.to.item(bias);
  return item.is_weight && item.constant.shape() == Shape({features}) ? sum : nullptr;
}

/// A weight [O,I] if input i is a constant matrix, which is stored as [O,I] (`stored`) or as [I,O].
Value matrix(Call& c, size_t i, bool stored) {
  const Item& item = c.item(i);
  if (!item.is_weight || item.constant.shape().rank() != 2) return {};
  if (item.transposed) return stored ? Value() : c.to.parameter(c.to.item(item.name), "weight", "linear");
  if (stored) return c.to.parameter(c.to.item(c.node.inputs[i]), "weight", "linear");
  return c.to.parameter(c.to.transposed_weight(c.node.inputs[i]), "weight", "linear");
}

/// NumPy's matmul: leading dimensions broadcast; a 1-D left operand is a row, a 1-D right operand is a column.
Value product(Value a, Value b, const MatmulAttrs& attrs = {}) {
  const int rank_a = a.shape().rank(), rank_b = b.shape().rank();
  GALLEY_CHECK_INPUT(rank_a >= 1 && rank_b >= 1, "its operands must have at least one dimension: ", a.type(), " and ", b.type());
  if (rank_a == 1) return squeeze(product(unsqueeze(a, 0), b, attrs), rank_b == 1 ? 0 : -2);
  if (rank_b == 1) return squeeze(product(a, unsqueeze(b, 1), attrs), -1);
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
  if (!w && make_attention(c)) return;
  if (!w) return c.set(product(c.x(0), c.x(1)));
  const Value x = c.x(0);
  if (x.shape().rank() < 2) return c.set(product(x, c.x(1)));
  std::string bias;
  const OnnxNode* sum = bias_after(c, w.shape()[0], bias);
  if (sum == nullptr) return c.set(linear(x, w));
  c.to.skip(*sum);
  c.to.set(sum->outputs[0], {.value = linear(x, w, c.to.parameter(c.to.item(bias), "bias", "linear"))});
}

void gemm(Call& c) {
  const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
  const bool transpose_a = c.integer("transA", 0) != 0, transpose_b = c.integer("transB", 0) != 0;
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 2, "its input is ", x.type(), ", but must have 2 dimensions");
  if (alpha == 1 && (beta == 1 || !c.has(2)) && !transpose_a) {
    const Value w = matrix(c, 1, transpose_b);
    const bool vector = w && (!c.has(2) || (c.item(2).is_weight && c.item(2).constant.shape() == Shape({w.shape()[0]})));
    if (vector) return c.set(linear(x, w, weight_of(c, 2, "bias", "linear")));
  }
  Value y = matmul(x, c.x(1), {transpose_a, transpose_b});
  if (alpha != 1) y = affine(y, alpha);
  if (c.has(2) && beta != 0) y = add(y, beta == 1 ? c.x(2) : affine(c.x(2), beta));
  c.set(y);
}

// ---- integer products

constexpr int64_t kMaxIntegerTerms = int64_t{1} << 15;  // number of 8-bit products whose sum fits in i32
constexpr int64_t kExactTerms = 256;                    // number of 8-bit products whose sum is exact in f32: 256 * 255 * 255 < 2^24

/// Integers as floats minus their zero point; `axis`: the axis of a zero point per row or column.
Value centered(Call& c, size_t i, size_t zero, int axis) {
  const Value q = cast(c.x(i), DType::kF32);
  if (!c.has(zero)) return q;
  Value point = cast(c.x(zero), DType::kF32);
  const int64_t points = point.shape().elements();
  if (points > 1) {
    GALLEY_CHECK_INPUT(point.shape().rank() == 1 && q.shape().rank() >= 2 && points == q.shape()[axis], "its zero point ", point.type(),
                       " does not fit ", q.type());
    Shape shape;
    for (int d = 0; d < q.shape().rank(); ++d) shape.push_back(d == (axis + q.shape().rank()) % q.shape().rank() ? points : 1);
    point = reshape(point, shape);
  } else if (point.shape().rank() > 0) {
    point = reshape(point, Shape{});
  }
  return sub(q, point);
}

/// The exact product in i32, summed in blocks that f32 represents exactly.
Value integer_product(Value a, Value b) {
  GALLEY_CHECK_INPUT(a.shape().rank() >= 2 && b.shape().rank() >= 2, "integer operands must have at least two dimensions");
  const int64_t terms = a.shape()[-1];
  GALLEY_CHECK_INPUT(terms == b.shape()[-2] && terms <= kMaxIntegerTerms, "its operands ", a.type(), " and ", b.type(),
                     " do not match, or sum more than ", kMaxIntegerTerms, " products");
  Value sum;
  for (int64_t begin = 0; begin < terms; begin += kExactTerms) {
    const int64_t end = std::min(terms, begin + kExactTerms);
    const Value part = cast(product(slice(a, -1, begin, end), slice(b, -2, begin, end)), DType::kI32);
    sum = sum ? add(sum, part) : part;
  }
  GALLEY_CHECK_INPUT(static_cast<bool>(sum), "its inner dimension is 0");
  return sum;
}
void mat_mul_integer(Call& c) { c.set(integer_product(centered(c, 0, 2, -2), centered(c, 1, 3, -1))); }

/// real / scale, rounded to integers of the zero point's dtype. The scale is a scalar.
Value requantized(Value real, Value scale, Value zero) {
  const DType dtype = zero.dtype();
  GALLEY_CHECK_INPUT(dtype == DType::kU8 || dtype == DType::kI8, "its output type is ", dtype, ", but must be uint8 or int8");
  const Value level = add(emit("round", {div(real, scale)}), cast(zero, DType::kF32));
  return cast(clamp(level, dtype == DType::kU8 ? 0 : -128, dtype == DType::kU8 ? 255 : 127), dtype);
}
void q_linear_mat_mul(Call& c) {
  for (size_t i : {1u, 4u, 6u}) GALLEY_CHECK_INPUT(c.has(i) && c.x(i).shape().elements() == 1, "input ", i, " must be a single scale");
  const Value sum = integer_product(centered(c, 0, 2, -2), centered(c, 3, 5, -1));
  const auto scalar = [&](size_t i) { return reshape(c.x(i), Shape{}); };
  c.set(requantized(mul(cast(sum, DType::kF32), mul(scalar(1), scalar(4))), scalar(6), scalar(7)));
}

void conv_integer(Call& c) {
  const Value x = centered(c, 0, 2, -1), w = centered(c, 1, 3, 0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 4 && w.shape().rank() == 4, "its input is ", x.type(), ", but must have dimensions [N,C,H,W]");
  const int64_t terms = w.shape()[1] * w.shape()[2] * w.shape()[3];
  if (terms > kExactTerms)
    c.refuse(cat("its sums of ", terms, " integer products are not exact in f32; at most ", kExactTerms, " products are"),
             "quantize with QuantizeLinear and DequantizeLinear (QDQ)");
  const Window window = window_of_weight(c, x, w);
  Conv2dAttrs attrs;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.groups = c.integer("group", 1);
  const Value padded = pad_window(x, window, 0, window.even(), attrs.padding);
  c.set(cast(conv2d(padded, w, {}, attrs), DType::kI32));
}

/// Inputs: x, its scale and zero point; w, its scale and zero point; scale and zero point of the result; bias.
void q_linear_conv(Call& c) {
  const Value x = centered(c, 0, 2, -1), w = centered(c, 3, 5, 0);
  check_operands(x, w);
  const Window window = window_of_weight(c, x, w);
  Conv2dAttrs attrs;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.groups = c.integer("group", 1);
  GALLEY_CHECK_INPUT(c.x(1).shape().elements() == 1 && c.x(6).shape().elements() == 1 && c.x(7).shape().elements() == 1,
                     "its activations must have a single scale");
  const Value padded = pad_window(as_image(x), window, 0, window.even(), attrs.padding);
  const Value sum = conv2d(padded, as_image(w), c.has(8) ? cast(c.x(8), DType::kF32) : Value(), attrs);
  const auto scalar = [&](size_t i) { return reshape(c.x(i), Shape{}); };
  const Value each = c.x(4).shape().elements() == 1 ? scalar(4) : reshape(c.x(4), {1, w.shape()[0], 1, 1});
  c.set(restore_rank(requantized(mul(sum, mul(each, scalar(1))), scalar(6), scalar(7)), x.shape().rank() == 3));
}

}  // namespace

MakeTable product_rows() {
  return {{"Conv", conv},
          {"ConvTranspose", conv_transpose},
          {"MatMul", mat_mul},
          {"Gemm", gemm},
          {"MatMulInteger", mat_mul_integer},
          {"QLinearMatMul", q_linear_mat_mul},
          {"ConvInteger", conv_integer},
          {"QLinearConv", q_linear_conv}};
}

}  // namespace galley::onnx_import
