// Softmax, its logarithm and their gradients along any axis of f32 arrays, in any format that is not blocked.
//
// The array is outer x length x inner in memory (softmax_lines.h). Lines of consecutive elements are handled one by one: maximum, then
// exponentials and their sum in one loop, then the scale. Lines with other lines between their elements go in bundles of up to 64
// neighbors, an element of each at a time. Three passes over a line (the maximum first, so that no exponential overflows), O(elements);
// exponentials bound the forward pass in the cache, memory bounds the rest. One thread sums a line in one order: bits depend on the
// instruction set, not on the threads.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/softmax.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/vector_sums-inl.h"

#ifndef GALLEY_SOFTMAX_ONCE
#define GALLEY_SOFTMAX_ONCE

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "libcore/backends/cpu/softmax_lines.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/softmax.h"

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::softmax_lines {
namespace HWY_NAMESPACE {
using galley::HWY_NAMESPACE::Floats;
using galley::HWY_NAMESPACE::sum_over;

// One line: consecutive elements.

float line_maximum(const float* x, int64_t length) { return galley::HWY_NAMESPACE::maximum_of(x, length); }

float line_exp_sum(const float* x, float largest, float* e, int64_t length) {
  if (e == nullptr) {
    return static_cast<float>(sum_over(length, [=](auto part, int64_t i) GALLEY_LOOP { return exp(part.load(x + i) - Floats(largest)); }));
  }
  return static_cast<float>(sum_over(length, [=](auto part, int64_t i) GALLEY_LOOP {
    const Floats value = exp(part.load(x + i) - Floats(largest));
    part.store(value, e + i);
    return value;
  }));
}

void softmax_line(const float* x, float* y, int64_t length) {
  const float factor = 1.0f / line_exp_sum(x, line_maximum(x, length), y, length);
  for (int64_t i = 0; i < length; ++i) y[i] *= factor;
}
/// The maximum is subtracted first: x - (max + log sum) would round at the size of the maximum.
void log_softmax_line(const float* x, float* y, int64_t length) {
  const float largest = line_maximum(x, length), log_sum = std::log(line_exp_sum(x, largest, nullptr, length));
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < length; ++i) y[i] = (x[i] - largest) - log_sum;
}
void softmax_line_gradient(const float* grad, const float* y, float* dx, int64_t length) {
  const auto dot = static_cast<float>(galley::HWY_NAMESPACE::dot_of(grad, y, length));
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < length; ++i) dx[i] = y[i] * (grad[i] - dot);
}
void log_softmax_line_gradient(const float* grad, const float* y, float* dx, int64_t length) {
  const auto sum = static_cast<float>(galley::HWY_NAMESPACE::sum_of(grad, length));
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < length; ++i) dx[i] = grad[i] - exp_of(y[i]) * sum;
}

// A bundle of lines: elements of a line are `step` apart.

void bundle_maximum(const float* x, int64_t length, int64_t step, int64_t count, float* largest) {
  float best[kBundle];
  for (int64_t l = 0; l < count; ++l) best[l] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < length; ++i) {
    const float* row = x + i * step;
    for (int64_t l = 0; l < count; ++l) best[l] = row[l] > best[l] ? row[l] : best[l];
  }
  for (int64_t l = 0; l < count; ++l) largest[l] = best[l];
}
void bundle_exp_sum(const float* x, const float* largest, float* e, int64_t length, int64_t step, int64_t count, float* sum) {
  float total[kBundle] = {};
  float run[kBundle];
  for (int64_t i = 0; i < length; ++i) {
    const float* row = x + i * step;
    float* to = e != nullptr ? e + i * step : run;
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) to[l] = exp_of(row[l] - largest[l]);
    for (int64_t l = 0; l < count; ++l) total[l] += to[l];
  }
  for (int64_t l = 0; l < count; ++l) sum[l] = total[l];
}

void softmax_bundle(const float* x, float* y, int64_t length, int64_t step, int64_t count) {
  float largest[kBundle] = {}, sum[kBundle] = {};
  bundle_maximum(x, length, step, count, largest);
  bundle_exp_sum(x, largest, y, length, step, count, sum);
  for (int64_t l = 0; l < count; ++l) sum[l] = 1.0f / sum[l];
  for (int64_t i = 0; i < length; ++i) {
    float* row = y + i * step;
    for (int64_t l = 0; l < count; ++l) row[l] *= sum[l];
  }
}
void log_softmax_bundle(const float* x, float* y, int64_t length, int64_t step, int64_t count) {
  float largest[kBundle] = {}, sum[kBundle] = {};
  bundle_maximum(x, length, step, count, largest);
  bundle_exp_sum(x, largest, nullptr, length, step, count, sum);
  for (int64_t l = 0; l < count; ++l) sum[l] = log_of(sum[l]);
  for (int64_t i = 0; i < length; ++i) {
    const float* in = x + i * step;
    float* out = y + i * step;
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) out[l] = (in[l] - largest[l]) - sum[l];
  }
}
void softmax_bundle_gradient(const float* grad, const float* y, float* dx, int64_t length, int64_t step, int64_t count) {
  float dot[kBundle] = {};
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t l = 0; l < count; ++l) dot[l] += grad[i * step + l] * y[i * step + l];
  }
  for (int64_t i = 0; i < length; ++i) {
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) dx[i * step + l] = y[i * step + l] * (grad[i * step + l] - dot[l]);
  }
}
void log_softmax_bundle_gradient(const float* grad, const float* y, float* dx, int64_t length, int64_t step, int64_t count) {
  float sum[kBundle] = {};
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t l = 0; l < count; ++l) sum[l] += grad[i * step + l];
  }
  for (int64_t i = 0; i < length; ++i) {
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) dx[i * step + l] = grad[i * step + l] - exp_of(y[i * step + l]) * sum[l];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::softmax_lines
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley {
namespace softmax_lines {
HWY_EXPORT(line_maximum);
HWY_EXPORT(line_exp_sum);
HWY_EXPORT(softmax_line);
HWY_EXPORT(log_softmax_line);
HWY_EXPORT(softmax_line_gradient);
HWY_EXPORT(log_softmax_line_gradient);
HWY_EXPORT(bundle_maximum);
HWY_EXPORT(bundle_exp_sum);
HWY_EXPORT(softmax_bundle);
HWY_EXPORT(log_softmax_bundle);
HWY_EXPORT(softmax_bundle_gradient);
HWY_EXPORT(log_softmax_bundle_gradient);

namespace {

/// Calls line(begin) for each line, or bundle(begin, count) for each bundle; begin is the offset of its first element.
template <class Line, class Bundle>
void for_each_line(const Lines& lines, Line line, Bundle bundle) {
  if (lines.length == 0) return;
  if (lines.inner == 1) {
    parallel_for(lines.outer, std::max<int64_t>(1, 16384 / lines.length), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) line(o * lines.length);
    });
    return;
  }
  const int64_t bundles = bundles_of(lines);
  parallel_for(lines.outer * bundles, std::max<int64_t>(1, 16384 / (lines.length * std::min(kBundle, lines.inner))),
               [&](int64_t begin, int64_t end) {
                 for (int64_t b = begin; b < end; ++b) {
                   const int64_t first = b % bundles * kBundle;
                   bundle(b / bundles * lines.length * lines.inner + first, std::min(kBundle, lines.inner - first));
                 }
               });
}

template <bool kLogarithm>
class Softmax : public PreparedKernel {
 public:
  explicit Softmax(const KernelQuery& q) : lines_(lines_of(q.in(0), axis_of(q.attrs<SoftmaxAttrs>().axis, q.in(0)))) {}
  void run(Stream&, const KernelArgs& args) const override {
    const float* x = args.in<float>(0);
    float* y = args.out<float>(0);
    const int64_t length = lines_.length, step = lines_.inner;
    const auto line = kLogarithm ? HWY_DYNAMIC_DISPATCH(log_softmax_line) : HWY_DYNAMIC_DISPATCH(softmax_line);
    const auto bundle = kLogarithm ? HWY_DYNAMIC_DISPATCH(log_softmax_bundle) : HWY_DYNAMIC_DISPATCH(softmax_bundle);
    for_each_line(
        lines_, [=](int64_t at) { line(x + at, y + at, length); },
        [=](int64_t at, int64_t count) { bundle(x + at, y + at, length, step, count); });
  }

 private:
  Lines lines_;
};

template <bool kLogarithm>
class SoftmaxBackward : public PreparedKernel {
 public:
  explicit SoftmaxBackward(const KernelQuery& q) : lines_(lines_of(q.in(0), axis_of(q.attrs<SoftmaxAttrs>().axis, q.in(0)))) {}
  void run(Stream&, const KernelArgs& args) const override {
    const float *grad = args.in<float>(0), *y = args.in<float>(1);
    float* dx = args.out<float>(0);
    const int64_t length = lines_.length, step = lines_.inner;
    const auto line = kLogarithm ? HWY_DYNAMIC_DISPATCH(log_softmax_line_gradient) : HWY_DYNAMIC_DISPATCH(softmax_line_gradient);
    const auto bundle = kLogarithm ? HWY_DYNAMIC_DISPATCH(log_softmax_bundle_gradient) : HWY_DYNAMIC_DISPATCH(softmax_bundle_gradient);
    for_each_line(
        lines_, [=](int64_t at) { line(grad + at, y + at, dx + at, length); },
        [=](int64_t at, int64_t count) { bundle(grad + at, y + at, dx + at, length, step, count); });
  }

 private:
  Lines lines_;
};

Support supports(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype, " is not f32"));
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format, " is blocked"));
  if (!(q.out(0).format == x.format)) return Support::no(cat("the output has format ", q.out(0).format, ", the input ", x.format));
  if (q.has(1) && !(q.in(1).format == x.format)) return Support::no(cat("the inputs have formats ", x.format, " and ", q.in(1).format));
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 4> kKernels{{{"softmax", "lines", supports, prepare<Softmax<false>>},
                                      {"softmax_backward", "lines", supports, prepare<SoftmaxBackward<false>>},
                                      {"log_softmax", "lines", supports, prepare<Softmax<true>>},
                                      {"log_softmax_backward", "lines", supports, prepare<SoftmaxBackward<true>>}}};

}  // namespace
}  // namespace softmax_lines

std::span<const Kernel> cpu_softmax() { return softmax_lines::kKernels; }

Lines lines_of(const TensorType& x, int axis) {
  Lines lines;
  int64_t* part = &lines.outer;
  for (const int d : x.format.order(x.shape.rank())) {
    if (d == axis) {
      lines.length = x.shape[d];
      part = &lines.inner;
    } else {
      *part *= x.shape[d];
    }
  }
  return lines;
}

float line_maximum(const float* x, int64_t length) { return HWY_DYNAMIC_DISPATCH(softmax_lines::line_maximum)(x, length); }
float line_exp_sum(const float* x, float largest, float* e, int64_t length) {
  return HWY_DYNAMIC_DISPATCH(softmax_lines::line_exp_sum)(x, largest, e, length);
}
void bundle_maximum(const float* x, int64_t length, int64_t step, int64_t count, float* largest) {
  HWY_DYNAMIC_DISPATCH(softmax_lines::bundle_maximum)(x, length, step, count, largest);
}
void bundle_exp_sum(const float* x, const float* largest, float* e, int64_t length, int64_t step, int64_t count, float* sum) {
  HWY_DYNAMIC_DISPATCH(softmax_lines::bundle_exp_sum)(x, largest, e, length, step, count, sum);
}

}  // namespace galley
#endif  // HWY_ONCE
