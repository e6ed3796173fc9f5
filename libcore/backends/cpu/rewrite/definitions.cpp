#include "libcore/backends/cpu/rewrite/definitions.h"

#include "libcore/backends/cpu/rewrite/gates.h"
#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::cpu_definition {
namespace {

template <class Attrs>
Attrs norm_of(const BatchNormDepthwiseAttrs& a) {
  Attrs norm;
  norm.eps = a.eps;
  norm.activation = a.activation;
  return norm;
}

template <class Attrs>
Attrs window_of(const BatchNormDepthwiseAttrs& a, const Value& x) {
  Attrs attrs;
  static_cast<Conv2dWindow&>(attrs) = a.window(x.channels());
  return attrs;
}

/// Sets dx (plus a residual) and dweight, outputs 0 and 1, of a 1x1 convolution whose result has that gradient.
void set_pointwise_gradients(Expansion& e, Value grad, Value x, Value weight, Value residual = {}) {
  Conv2dBackwardDataAttrs data;
  data.input_size = {x.shape()[2], x.shape()[3]};
  Conv2dBackwardWeightsAttrs weights;
  weights.kernel_size = {1};
  e.set(0, conv2d_backward_data(grad, weight, data, residual));
  e.set(1, conv2d_backward_weights(x, grad, weights));
}

/// Means of the channels of x [N,C,H,W], and below them their covariances: [C+1,C].
Value moments_of(Value x) {
  const int64_t channels = x.channels();
  const Value mean = galley::mean(x, {0, 2, 3}, true);
  const Value centered = reshape(permute(sub(x, mean), {1, 0, 2, 3}), {channels, -1});
  const Value products = matmul(centered, transpose(centered, 0, 1));
  return concat({reshape(mean, {1, channels}), affine(products, 1.0 / static_cast<double>(x.type().elements() / channels))}, 0);
}

// ---- Winograd's transforms

using winograd::kIn;
using winograd::kTaps;

/// Element i along an axis, which keeps size 1.
Value element(Value x, int64_t axis, int64_t i) { return slice(x, axis, i, i + 1); }

/// kernel x along an axis of size 3.
template <class T>
Value transformed(Value x, int64_t axis, const T (&kernel)[kIn][kTaps]) {
  std::vector<Value> rows;
  for (const auto& row : kernel) {
    Value sum;
    for (int64_t tap = 0; tap < kTaps; ++tap) {
      if (row[tap] == 0) continue;
      const Value part = affine(element(x, axis, tap), static_cast<double>(row[tap]));
      sum = sum ? add(sum, part) : part;
    }
    rows.push_back(sum);
  }
  ConcatAttrs attrs;
  attrs.axis = axis;
  return concat(rows, attrs);
}

/// The three numbers of which an axis of size 6 holds the transform: rows 0 and 5 are multiples of the outer two, rows 1 and 2 differ in
/// the sign of the middle one alone.
template <class T>
Value taps(Value x, int64_t axis, const T (&kernel)[kIn][kTaps]) {
  const auto scaled = [](Value v, T by) { return affine(v, 1.0 / static_cast<double>(by)); };
  const Value middle = sub(element(x, axis, 1), element(x, axis, 2));
  return concat({scaled(element(x, axis, 0), kernel[0][0]), scaled(middle, kernel[1][1] - kernel[2][1]),
                 scaled(element(x, axis, kIn - 1), kernel[kIn - 1][kTaps - 1])},
                axis);
}

Value turned(Value x, int64_t axis) { return concat({element(x, axis, 2), element(x, axis, 1), element(x, axis, 0)}, axis); }

}  // namespace

void batch_norm_depthwise(Expansion& e) {
  const auto& a = e.attrs<BatchNormDepthwiseAttrs>();
  const BatchNorm norm = batch_norm(e.in(0), e.in(2), e.in(3), norm_of<BatchNormAttrs>(a));
  e.set(0, conv2d(norm.y, e.in(1), {}, window_of<Conv2dAttrs>(a, norm.y)));
  e.set(1, norm.mean);
  e.set(2, norm.var);
}

void batch_norm_depthwise_backward(Expansion& e) {
  const auto& a = e.attrs<BatchNormDepthwiseAttrs>();
  const Value grad = e.in(0), weight = e.in(1), x = e.in(2), mean = e.in(3), var = e.in(4), gamma = e.in(5), beta = e.in(6);
  const Value normalized = batch_norm_inference(x, gamma, beta, mean, var, norm_of<BatchNormInferenceAttrs>(a));
  auto weights = window_of<Conv2dBackwardWeightsAttrs>(a, x);
  weights.kernel_size = {weight.shape()[2], weight.shape()[3]};
  e.set(1, conv2d_backward_weights(normalized, grad, weights));
  auto data = window_of<Conv2dBackwardDataAttrs>(a, x);
  data.input_size = {x.shape()[2], x.shape()[3]};
  const Value between = conv2d_backward_data(grad, weight, data);
  const std::vector<Value> gradients = batch_norm_backward(between, x, mean, var, gamma, beta, {}, norm_of<BatchNormBackwardAttrs>(a));
  e.set(0, gradients[0]);
  e.set(2, gradients[1]);
  e.set(3, gradients[2]);
}

void sum_products(Expansion& e) { e.set(0, sum_to(mul(e.in(0), e.in(1)), e.output_type().shape)); }

void gated_batch_norm_backward(Expansion& e) {
  const Value x = e.in(1);
  int64_t pixels = 1;
  for (int d = 2; d < x.shape().rank(); ++d) pixels *= x.shape()[d];
  const double share = pixels == 0 ? 0 : 1.0 / static_cast<double>(pixels);
  const Value grad = add(mul(e.in(0), e.in(6)), affine(e.in(7), share));
  const std::vector<Value> gradients =
      batch_norm_backward(grad, x, e.in(2), e.in(3), e.in(4), e.in(5), {}, e.attrs<BatchNormBackwardAttrs>());
  for (size_t i = 0; i < gradients.size(); ++i) e.set(i, gradients[i]);
}

void pointwise_batch_norm_depthwise(Expansion& e) {
  const Value between = conv2d(e.in(0), e.in(1), {}, {});
  const BatchNormDepthwise made = galley::batch_norm_depthwise(between, e.in(2), e.in(3), e.in(4), e.attrs<BatchNormDepthwiseAttrs>());
  e.set(0, made.y);
  e.set(1, made.mean);
  e.set(2, made.var);
  e.set(3, moments_of(e.in(0)));
}

void pointwise_batch_norm_backward(Expansion& e) {
  const std::vector<Value> gradients =
      batch_norm_backward(e.in(0), e.in(1), e.in(2), e.in(3), e.in(4), e.in(5), e.in(6), e.attrs<BatchNormBackwardAttrs>());
  set_pointwise_gradients(e, gradients[0], e.in(7), e.in(8));
  for (size_t i = 1; i < gradients.size(); ++i) e.set(i + 1, gradients[i]);
}

void pointwise_batch_norm_depthwise_backward(Expansion& e) {
  const Value x = e.in(6), weight = e.in(7), between = conv2d(x, weight, {}, {});
  const std::vector<Value> gradients = galley::batch_norm_depthwise_backward(e.in(0), e.in(1), between, e.in(2), e.in(3), e.in(4), e.in(5),
                                                                             e.attrs<BatchNormDepthwiseAttrs>());
  set_pointwise_gradients(e, gradients[0], x, weight, e.in(8));
  for (size_t i = 1; i < gradients.size(); ++i) e.set(i + 1, gradients[i]);
}

void winograd_weights(Expansion& e) {
  Value w = e.in(0);
  if (e.attrs<WinogradWeightsAttrs>().backward) w = turned(turned(permute(w, {1, 0, 2, 3}), 2), 3);
  const Value all = transformed(transformed(w, 2, winograd::kKernel), 3, winograd::kKernel);
  e.set(0, reshape(permute(all, {2, 3, 0, 1}), e.output_type().shape));
}

void winograd_conv2d(Expansion& e) {
  const auto& a = e.attrs<WinogradConv2dAttrs>();
  const Shape& shape = e.type(1).shape;
  const Value positions = reshape(e.in(1), Shape{kIn, kIn, shape[1], shape[2]});
  const Value weight = permute(taps(taps(positions, 0, winograd::kKernel), 1, winograd::kKernel), {2, 3, 0, 1});
  Conv2dAttrs attrs;
  attrs.padding = a.padding;
  attrs.activation = a.activation;
  e.set(0, conv2d(e.in(0), weight, e.in(2), attrs, e.in(3)));
}

void winograd_conv2d_backward_weights(Expansion& e) {
  e.set(0, conv2d_backward_weights(e.in(0), e.in(1), e.attrs<Conv2dBackwardWeightsAttrs>()));
}

void quantized_winograd_weights(Expansion& e) {
  const Value all = transformed(transformed(e.real(0), 2, winograd::kWholeKernel), 3, winograd::kWholeKernel);
  e.set(0, cast(reshape(permute(all, {0, 2, 3, 1}), e.output_type().shape), DType::kI16));
}

void quantized_winograd_conv2d(Expansion& e) {
  const Shape& shape = e.type(1).shape;
  const Value positions = reshape(e.real(1), Shape{shape[0], kIn, kIn, shape[2]});
  const Value weight = permute(taps(taps(positions, 1, winograd::kWholeKernel), 2, winograd::kWholeKernel), {0, 3, 1, 2});
  // Divisions by 6 round in the last place, and a cast cuts off.
  const Value integers = cast(emit("round", {weight}), DType::kI8);
  const auto single = [&](size_t i) { return e.has(i) ? cast(e.in(i), DType::kF32) : Value(); };
  e.set(0, quantized_conv2d(e.in(0), integers, single(2), single(3), e.attrs<QuantizedConv2dAttrs>(), e.in(4)));
}

}  // namespace galley::cpu_definition
