#include "libcore/backends/ref/quantized.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/conv_products.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/elementwise.h"

namespace galley {

double finished(double real, const QuantizedOutput& output) {
  return output.output_dtype == DType::kF32 ? real : static_cast<double>(quantize_real(real, output.output()));
}

namespace {

/// A sum of products as an operator with 32 bits has it: whole numbers, exact in double; what would not fit is our bug.
double checked(double sum) {
  GALLEY_ASSERT(std::abs(sum) < 0x1p31, "a sum of products, ", sum, ", passes 32 bits");
  return sum;
}

/// Reduced operands: weights of at most 64, or activations of at most 127, everywhere.
void check_promise(Saturation saturation, const RefArray& x, const RefArray& weight) {
  if (saturation == Saturation::kExact) return;
  const bool weights = std::all_of(weight.v.begin(), weight.v.end(), [](double w) { return std::abs(w) <= 64; });
  const bool values = std::all_of(x.v.begin(), x.v.end(), [](double q) { return q >= 0 && q <= 127; });
  GALLEY_ASSERT(weights || values, "saturation is 'reduced', but there are weights above 64 and activations above 127");
}

void quantized_conv2d_ref(RefCall& call) {
  const auto& a = call.attrs<QuantizedConv2dAttrs>();
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  check_promise(a.saturation, x, w);
  const auto zero_point = static_cast<double>(a.input_zero_point);
  for_each_product(a, x.shape, w.shape, y.shape, [&](int64_t i, int64_t k, int64_t o) { y[o] += (x[i] - zero_point) * w[k]; });
  const int64_t pixels = y.shape[2] * y.shape[3];
  for (int64_t i = 0; i < y.shape.elements(); ++i) y[i] = finished_product(call, a, y[i], i, i / pixels % y.shape[1]);
}

/// Row times output channel: sum (x - zero_point) * w, in real units, with bias.
double product(const RefCall& call, const RefArray& x, double zero_point, double scale, int64_t row, int64_t o) {
  const RefArray& w = call.in(1);
  const int64_t inputs = w.shape[1];
  double sum = 0;
  for (int64_t k = 0; k < inputs; ++k) sum += (x[row * inputs + k] - zero_point) * w[o * inputs + k];
  return checked(sum) * (scale * call.in(2)[o]) + (call.has(3) ? call.in(3)[o] : 0);
}

void quantized_linear_ref(RefCall& call) {
  const auto& a = call.attrs<QuantizedLinearAttrs>();
  check_promise(a.saturation, call.in(0), call.in(1));
  const int64_t outputs = call.in(1).shape[0];
  for (int64_t i = 0; i < call.out().shape.elements(); ++i) {
    const double real = product(call, call.in(0), static_cast<double>(a.input_zero_point), a.input_scale, i / outputs, i % outputs);
    call.out()[i] = finished(activate(a.activation, real), a);
  }
}

void dynamic_quantized_linear_ref(RefCall& call) {
  const auto& a = call.attrs<DynamicQuantizedLinearAttrs>();
  if (call.out().v.empty()) return;
  RefArray x = call.in(0);
  // A value that is not finite makes every result NaN: there is no scale for it.
  const auto [low, high] = std::minmax_element(x.v.begin(), x.v.end());
  QuantParams params;
  const bool finite = std::all_of(x.v.begin(), x.v.end(), [](double value) { return std::isfinite(value); });
  if (finite && !x.v.empty()) params = affine_params(*low, *high, quant_range(QuantDType::kUint8, a.saturation == Saturation::kReduced));
  for (double& value : x.v) value = static_cast<double>(quantize_value(static_cast<float>(value), params));
  const int64_t outputs = call.in(1).shape[0];
  for (int64_t i = 0; i < call.out().shape.elements(); ++i) {
    const double real = product(call, x, static_cast<double>(params.zero_point), params.scale, i / outputs, i % outputs);
    call.out()[i] = finite ? activate(a.activation, real) : std::nan("");
  }
}

template <bool kMultiply>
void quantized_binary_ref(RefCall& call) {
  const auto& attrs = call.attrs<QuantizedBinaryAttrs>();
  const RefArray &a = call.in(0), &b = call.in(1);
  const int64_t pixels = a.shape == b.shape ? 1 : a.shape[2] * a.shape[3];  // values of a that share one of b
  for (int64_t i = 0; i < a.shape.elements(); ++i) {
    const double left = attrs.a_scale * (a[i] - static_cast<double>(attrs.a_zero_point));
    const double right = attrs.b_scale * (b[i / pixels] - static_cast<double>(attrs.b_zero_point));
    call.out()[i] = finished(activate(attrs.activation, kMultiply ? left * right : left + right), attrs);
  }
}

void quantized_concat_ref(RefCall& call) {
  const auto& attrs = call.attrs<QuantizedConcatAttrs>();
  RefArray& y = call.out();
  const int axis = axis_of(attrs.axis, call.context().in(0));
  int64_t inner = 1, start = 0;
  for (int d = axis + 1; d < y.shape.rank(); ++d) inner *= y.shape[d];
  for (size_t n = 0; n < call.input_count(); ++n) {
    const RefArray& x = call.in(n);
    const int64_t row = x.shape[axis] * inner;
    for (int64_t i = 0; i < x.shape.elements(); ++i) {
      const double real = attrs.input_scales[n] * (x[i] - static_cast<double>(attrs.input_zero_points[n]));
      y[i / row * y.shape[axis] * inner + start * inner + i % row] = finished(real, attrs);
    }
    start += x.shape[axis];
  }
}

/// The mean of each pixel's cells: `ranges(pixel row, pixel column)` gives rows, columns and the divisor.
template <class Attrs, class Ranges>
void average(RefCall& call, const Attrs& a, Ranges ranges) {
  const RefArray& x = call.in(0);
  RefArray& y = call.out();
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    const int64_t column = i % y.shape[3], row = i / y.shape[3] % y.shape[2], plane = i / (y.shape[2] * y.shape[3]);
    const auto [rows, columns, divisor] = ranges(row, column);
    double sum = 0;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) sum += x[(plane * x.shape[2] + h) * x.shape[3] + w] - static_cast<double>(a.input_zero_point);
    }
    y[i] = finished(a.input_scale * checked(sum) / static_cast<double>(divisor), a);
  }
}

struct Cells {
  PoolRange rows, columns;
  int64_t divisor;
};

void quantized_avg_pool2d_ref(RefCall& call) {
  const auto& a = call.attrs<QuantizedAvgPool2dAttrs>();
  const Shape x = call.in(0).shape;
  const auto kernel = pair(a.kernel_size), stride = pair(a.stride.empty() ? a.kernel_size : a.stride), padding = pair(a.padding);
  average(call, a, [&](int64_t row, int64_t column) {
    const PoolRange rows = pool_range(row, x[2], kernel[0], stride[0], padding[0]), columns = pool_range(column, x[3], kernel[1], stride[1], padding[1]);
    return Cells{rows, columns, a.count_include_pad ? rows.size * columns.size : (rows.end - rows.begin) * (columns.end - columns.begin)};
  });
}

void quantized_adaptive_avg_pool2d_ref(RefCall& call) {
  const auto& a = call.attrs<QuantizedAdaptiveAvgPool2dAttrs>();
  const Shape x = call.in(0).shape, y = call.out().shape;
  average(call, a, [&](int64_t row, int64_t column) {
    const PoolRange rows = adaptive_range(row, x[2], y[2]), columns = adaptive_range(column, x[3], y[3]);
    return Cells{rows, columns, rows.size * columns.size};
  });
}

constexpr RefEntry kEntries[] = {
    {"quantized_conv2d", quantized_conv2d_ref},
    {"quantized_linear", quantized_linear_ref},
    {"dynamic_quantized_linear", dynamic_quantized_linear_ref},
    {"quantized_add", quantized_binary_ref<false>},
    {"quantized_mul", quantized_binary_ref<true>},
    {"quantized_concat", quantized_concat_ref},
    {"quantized_avg_pool2d", quantized_avg_pool2d_ref},
    {"quantized_adaptive_avg_pool2d", quantized_adaptive_avg_pool2d_ref},
};

}  // namespace

double finished_product(const RefCall& call, const QuantizedConv2dAttrs& attrs, double sum, int64_t i, int64_t o) {
  double real = checked(sum) * (attrs.input_scale * call.in(2)[o]);
  if (call.has(3)) real += call.in(3)[o];
  if (call.has(4)) real += attrs.residual_scale * (call.in(4)[i] - static_cast<double>(attrs.residual_zero_point));
  return finished(activate(attrs.activation, real), attrs);
}

std::span<const RefEntry> ref_quantized() { return kEntries; }

}  // namespace galley
