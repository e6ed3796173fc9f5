// Softmax and its logarithm along any axis, in any format that is not blocked. Each line is summed by one thread in one order: bits do
// not depend on the thread count.

#include "libcore/ops/softmax.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "libcore/backends/cpu/softmax_lines.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kRun = 256;  // exponentials made before they are summed

GALLEY_CLONES void exp_run(const float* x, float largest, float* e, int64_t count) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) e[i] = exp_of(x[i] - largest);
}

GALLEY_CLONES float sum_run(const float* x, int64_t count) {
  float lanes[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) lanes[c] += x[i + c];
  }
  for (int64_t c = 0; c < count - whole; ++c) lanes[c] += x[whole + c];
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

GALLEY_CLONES float dot_run(const float* x, const float* y, int64_t count) {
  float lanes[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) lanes[c] += x[i + c] * y[i + c];
  }
  for (int64_t c = 0; c < count - whole; ++c) lanes[c] += x[whole + c] * y[whole + c];
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

// One line: elements side by side.

GALLEY_CLONES void scale_line(float* y, float factor, int64_t length) {
  for (int64_t i = 0; i < length; ++i) y[i] *= factor;
}
/// The maximum is taken off first: x - (max + log sum) would round at the size of the maximum.
GALLEY_CLONES void log_line(const float* x, float largest, float log_sum, float* y, int64_t length) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < length; ++i) y[i] = (x[i] - largest) - log_sum;
}
GALLEY_CLONES void softmax_slope(const float* grad, const float* y, float dot, float* dx, int64_t length) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < length; ++i) dx[i] = y[i] * (grad[i] - dot);
}
GALLEY_CLONES void log_softmax_slope(const float* grad, const float* y, float sum, float* dx, int64_t length) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < length; ++i) dx[i] = grad[i] - exp_of(y[i]) * sum;
}

// A bundle of lines: elements of a line `step` apart.

GALLEY_CLONES void scale_bundle(float* y, const float* sum, int64_t length, int64_t step, int64_t count) {
  float factor[kBundle];
  for (int64_t l = 0; l < count; ++l) factor[l] = 1.0f / sum[l];
  for (int64_t i = 0; i < length; ++i) {
    float* row = y + i * step;
    for (int64_t l = 0; l < count; ++l) row[l] *= factor[l];
  }
}
GALLEY_CLONES void log_bundle(const float* x, const float* largest, const float* sum, float* y, int64_t length, int64_t step,
                              int64_t count) {
  float log_sum[kBundle];
  for (int64_t l = 0; l < count; ++l) log_sum[l] = log_of(sum[l]);
  for (int64_t i = 0; i < length; ++i) {
    const float* in = x + i * step;
    float* out = y + i * step;
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) out[l] = (in[l] - largest[l]) - log_sum[l];
  }
}
GALLEY_CLONES void softmax_slope_bundle(const float* grad, const float* y, float* dx, int64_t length, int64_t step, int64_t count) {
  float dot[kBundle] = {};
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t l = 0; l < count; ++l) dot[l] += grad[i * step + l] * y[i * step + l];
  }
  for (int64_t i = 0; i < length; ++i) {
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) dx[i * step + l] = y[i * step + l] * (grad[i * step + l] - dot[l]);
  }
}
GALLEY_CLONES void log_softmax_slope_bundle(const float* grad, const float* y, float* dx, int64_t length, int64_t step, int64_t count) {
  float sum[kBundle] = {};
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t l = 0; l < count; ++l) sum[l] += grad[i * step + l];
  }
  for (int64_t i = 0; i < length; ++i) {
    GALLEY_ELEMENTWISE
    for (int64_t l = 0; l < count; ++l) dx[i * step + l] = grad[i * step + l] - exp_of(y[i * step + l]) * sum[l];
  }
}

/// Calls line(begin) for each line, or bundle(begin, count) for each bundle; begin is where its first element lies.
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
    const auto line = [=](int64_t at) {
      const float largest = line_maximum(x + at, length), sum = line_exp_sum(x + at, largest, kLogarithm ? nullptr : y + at, length);
      if (kLogarithm) {
        log_line(x + at, largest, std::log(sum), y + at, length);
      } else {
        scale_line(y + at, 1.0f / sum, length);
      }
    };
    const auto bundle = [=](int64_t at, int64_t count) {
      float largest[kBundle], sum[kBundle];
      bundle_maximum(x + at, length, step, count, largest);
      bundle_exp_sum(x + at, largest, kLogarithm ? nullptr : y + at, length, step, count, sum);
      if (kLogarithm) {
        log_bundle(x + at, largest, sum, y + at, length, step, count);
      } else {
        scale_bundle(y + at, sum, length, step, count);
      }
    };
    for_each_line(lines_, line, bundle);
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
    const auto line = [=](int64_t at) {
      if (kLogarithm) {
        log_softmax_slope(grad + at, y + at, sum_run(grad + at, length), dx + at, length);
      } else {
        softmax_slope(grad + at, y + at, dot_run(grad + at, y + at, length), dx + at, length);
      }
    };
    const auto bundle = [=](int64_t at, int64_t count) {
      (kLogarithm ? log_softmax_slope_bundle : softmax_slope_bundle)(grad + at, y + at, dx + at, length, step, count);
    };
    for_each_line(lines_, line, bundle);
  }

 private:
  Lines lines_;
};

Support supports(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format));
  if (!(q.out(0).format == x.format)) return Support::no("output in another format");
  if (q.has(1) && !(q.in(1).format == x.format)) return Support::no("inputs of different formats");
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 4> kKernels{{{"softmax", "cpu", supports, prepare<Softmax<false>>},
                                      {"softmax_backward", "cpu", supports, prepare<SoftmaxBackward<false>>},
                                      {"log_softmax", "cpu", supports, prepare<Softmax<true>>},
                                      {"log_softmax_backward", "cpu", supports, prepare<SoftmaxBackward<true>>}}};

}  // namespace

std::span<const Kernel> cpu_softmax() { return kKernels; }

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

GALLEY_CLONES float line_maximum(const float* x, int64_t length) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  const int64_t whole = length - length % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) lanes[c] = x[i + c] > lanes[c] ? x[i + c] : lanes[c];
  }
  for (int64_t c = 0; c < length - whole; ++c) lanes[c] = x[whole + c] > lanes[c] ? x[whole + c] : lanes[c];
  return *std::max_element(lanes, lanes + kLanes);
}

float line_exp_sum(const float* x, float largest, float* e, int64_t length) {
  float run[kRun];
  double total = 0;
  for (int64_t begin = 0; begin < length; begin += kRun) {
    const int64_t count = std::min(kRun, length - begin);
    float* to = e != nullptr ? e + begin : run;
    exp_run(x + begin, largest, to, count);
    total += static_cast<double>(sum_run(to, count));
  }
  return static_cast<float>(total);
}

GALLEY_CLONES void bundle_maximum(const float* x, int64_t length, int64_t step, int64_t count, float* largest) {
  float best[kBundle];
  for (int64_t l = 0; l < count; ++l) best[l] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < length; ++i) {
    const float* row = x + i * step;
    for (int64_t l = 0; l < count; ++l) best[l] = row[l] > best[l] ? row[l] : best[l];
  }
  for (int64_t l = 0; l < count; ++l) largest[l] = best[l];
}

GALLEY_CLONES void bundle_exp_sum(const float* x, const float* largest, float* e, int64_t length, int64_t step, int64_t count, float* sum) {
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

}  // namespace galley
