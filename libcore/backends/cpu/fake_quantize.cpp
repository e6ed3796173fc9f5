// Fake quantization (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR
// 2018) and the gradient by its scale (Esser et al., "Learned Step Size Quantization", ICLR 2020). One pass over the values, bound by
// memory or the division. Integers are found as the operator says: x / scale in float, rounded half to even, so that results equal the
// reference's bit for bit. Rounding comes after clamping, which changes nothing between integers.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/fake_quantize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "libcore/backends/cpu/vector_math.h"

#ifndef GALLEY_FAKE_QUANTIZE_ONCE
#define GALLEY_FAKE_QUANTIZE_ONCE

namespace galley::fake_quantize_loops {

/// What the values of one scale share: the bounds are of integers less the zero point.
struct Grid {
  float scale, low, high;
};

/// The bits of a float as an integer with the same order, NaN beyond the infinities; its own inverse.
GALLEY_INLINE int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }

}  // namespace galley::fake_quantize_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::fake_quantize_loops {
namespace HWY_NAMESPACE {

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added and taken away, it rounds |x| < 2^22 half to even

GALLEY_INLINE float rounded(float x) { return (x + kRounder) - kRounder; }

void round_values(const float* x, float* y, int64_t count, Grid g) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) y[i] = g.scale * rounded(at_most(at_least(x[i] / g.scale, g.low), g.high));
}
void pass_inside(const float* grad, const float* x, float* dx, int64_t count, Grid g) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) {
    const float q = rounded(at_most(at_least(x[i] / g.scale, g.low - 1), g.high + 1));
    const float kept = q >= g.low ? grad[i] : 0.0f;
    dx[i] = q <= g.high ? kept : 0.0f;
  }
}
/// Sum of grad times the derivative of the rounded value by its scale.
double slope_sum(const float* grad, const float* x, int64_t count, Grid g) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  double total = 0;
  int64_t i = 0;
  while (i + kLanes <= count) {
    // Short runs in float, joined in double.
    const int64_t end = std::min(count - (count - i) % kLanes, i + 64 * kLanes);
    for (; i < end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float ratio = x[i + lane] / g.scale, limited = at_most(at_least(ratio, g.low), g.high);
        const float q = rounded(at_most(at_least(ratio, g.low - 1), g.high + 1));
        const float inside = q >= g.low && q <= g.high ? q - ratio : limited;
        sums[lane] += grad[i + lane] * inside;
      }
    }
    for (float& sum : sums) {
      total += static_cast<double>(sum);
      sum = 0;
    }
  }
  for (; i < count; ++i) {
    const float ratio = x[i] / g.scale, limited = at_most(at_least(ratio, g.low), g.high);
    const float q = rounded(at_most(at_least(ratio, g.low - 1), g.high + 1));
    total += static_cast<double>(grad[i]) * static_cast<double>(q >= g.low && q <= g.high ? q - ratio : limited);
  }
  return total;
}

/// Least and largest key. Of integers: for floats the compiler must keep NaN and so makes no vector minima and maxima.
void scan_ordered(const float* x, int64_t count, int32_t* low, int32_t* high) {
  int32_t least = std::numeric_limits<int32_t>::max(), most = std::numeric_limits<int32_t>::min();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = ordered(std::bit_cast<int32_t>(x[i]));
    least = key < least ? key : least;
    most = key > most ? key : most;
  }
  *low = least;
  *high = most;
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::fake_quantize_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "libcore/backends/cpu/gated.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/fake_quantize.h"

namespace galley {
namespace fake_quantize_loops {

HWY_EXPORT(round_values);
HWY_EXPORT(pass_inside);
HWY_EXPORT(slope_sum);
HWY_EXPORT(scan_ordered);

}  // namespace fake_quantize_loops

namespace {

using fake_quantize_loops::Grid;
using fake_quantize_loops::ordered;

constexpr int64_t kGrain = 16384;  // the fewest values of a thread
// Values whose sum is one number: cut by sizes alone, for the same sum by any number of threads.
constexpr int64_t kPiece = 65536;

struct SeenRange {
  float min = std::numeric_limits<float>::infinity(), max = -std::numeric_limits<float>::infinity();
  bool nan = false;
  void join(const SeenRange& other) {
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    nan |= other.nan;
  }
};
SeenRange range_of(const float* x, int64_t count) {
  if (count == 0) return {};
  int32_t low, high;
  HWY_DYNAMIC_DISPATCH(fake_quantize_loops::scan_ordered)(x, count, &low, &high);
  const float min = std::bit_cast<float>(ordered(low)), max = std::bit_cast<float>(ordered(high));
  return {min, max, std::isnan(min) || std::isnan(max)};
}

/// The values of x by scale: `outer` times `count` runs of `inner` values, one scale per run, in memory order.
struct Runs {
  int64_t outer = 1, count = 1, inner = 1;
  Runs(const TensorType& x, int64_t axis) {
    inner = x.elements();
    if (axis < 0) return;
    inner = 1;
    bool before = true;
    for (const int d : x.format.order(x.shape.rank())) {
      if (d == axis) {
        before = false;
        count = x.shape[d];
      } else {
        (before ? outer : inner) *= x.shape[d];
      }
    }
  }
  int64_t total() const { return outer * count * inner; }

  /// body(channel, offset, values): pieces of runs within [begin, end).
  template <class Body>
  void each(int64_t begin, int64_t end, Body body) const {
    for (int64_t at = begin; at < end;) {
      const int64_t run = at / inner, stop = std::min(end, (run + 1) * inner);
      body(run % count, at, stop - at);
      at = stop;
    }
  }
};

/// Dense floats of one format.
Support supports_arrays(const KernelQuery& q, int x, std::initializer_list<int> others) {
  const TensorType& type = q.in(x);
  if (type.format.is_blocked()) return Support::no(cat("format ", type.format));
  for (int i = 0; i < static_cast<int>(q.context.inputs.size()); ++i) {
    if (!q.has(i) || i == q.node.op->gate) continue;
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(i).dtype));
  }
  for (const int i : others) {
    if (!(q.in(i).format == type.format)) return Support::no(cat("formats ", type.format, " and ", q.in(i).format));
  }
  const TensorType& y = q.out(0);
  if (y.shape == type.shape && !(y.format == type.format)) return Support::no(cat("formats ", type.format, " and ", y.format));
  return Support::yes();
}

class FakeQuantizeBase : public PreparedKernel {
 public:
  FakeQuantizeBase(const KernelQuery& q, int x) : attrs_(q.attrs<FakeQuantizeAttrs>()), runs_(q.in(x), attrs_.axis) {}

 protected:
  Grid grid(const KernelArgs& args, size_t scale, int64_t channel) const {
    const float zero_point = args.in<float>(scale + 1)[channel], given = args.in<float>(scale)[channel];
    constexpr auto kLeast = static_cast<float>(kLeastFakeScale);
    return {given < kLeast ? kLeast : given, static_cast<float>(attrs_.qmin) - zero_point, static_cast<float>(attrs_.qmax) - zero_point};
  }

  FakeQuantizeAttrs attrs_;
  Runs runs_;
};

class FakeQuantize : public FakeQuantizeBase {
 public:
  explicit FakeQuantize(const KernelQuery& q) : FakeQuantizeBase(q, 0) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(runs_.total(), kGrain, [&](int64_t begin, int64_t end) {
      runs_.each(begin, end, [&](int64_t channel, int64_t at, int64_t count) {
        HWY_DYNAMIC_DISPATCH(fake_quantize_loops::round_values)(args.in<float>(0) + at, args.out<float>(0) + at, count,
                                                                grid(args, 1, channel));
      });
    });
  }
};

class FakeQuantizeBackward : public FakeQuantizeBase {
 public:
  explicit FakeQuantizeBackward(const KernelQuery& q) : FakeQuantizeBase(q, 1) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(runs_.total(), kGrain, [&](int64_t begin, int64_t end) {
      runs_.each(begin, end, [&](int64_t channel, int64_t at, int64_t count) {
        HWY_DYNAMIC_DISPATCH(fake_quantize_loops::pass_inside)(args.in<float>(0) + at, args.in<float>(1) + at, args.out<float>(0) + at,
                                                               count, grid(args, 2, channel));
      });
    });
  }
};

class FakeQuantizeScaleBackward : public FakeQuantizeBase {
 public:
  explicit FakeQuantizeScaleBackward(const KernelQuery& q) : FakeQuantizeBase(q, 1), pieces_((runs_.inner + kPiece - 1) / kPiece) {}
  int64_t scratch_bytes() const override { return runs_.outer * runs_.count * pieces_ * static_cast<int64_t>(sizeof(double)); }
  void run(Stream&, const KernelArgs& args) const override {
    auto* sums = static_cast<double*>(args.scratch);
    const int64_t tasks = runs_.outer * runs_.count * pieces_;
    parallel_for(tasks, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, std::min(kPiece, runs_.inner))),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const int64_t run = task / pieces_, from = task % pieces_ * kPiece, count = std::min(kPiece, runs_.inner - from),
                                   at = run * runs_.inner + from;
                     sums[task] = HWY_DYNAMIC_DISPATCH(fake_quantize_loops::slope_sum)(args.in<float>(0) + at, args.in<float>(1) + at,
                                                                                       count, grid(args, 2, run % runs_.count));
                   }
                 });
    for (int64_t c = 0; c < runs_.count; ++c) {
      double sum = 0;
      for (int64_t o = 0; o < runs_.outer; ++o) {
        for (int64_t p = 0; p < pieces_; ++p) sum += sums[(o * runs_.count + c) * pieces_ + p];
      }
      args.out<float>(0)[c] = static_cast<float>(attrs_.gradient_factor * sum);
    }
  }

 private:
  int64_t pieces_;
};

class ObserveRange : public PreparedKernel {
 public:
  explicit ObserveRange(const KernelQuery& q)
      : averaging_(q.attrs<ObserveRangeAttrs>().averaging),
        runs_(q.in(0), q.attrs<ObserveRangeAttrs>().axis),
        pieces_((runs_.inner + kPiece - 1) / kPiece) {}
  int64_t scratch_bytes() const override { return runs_.outer * runs_.count * pieces_ * static_cast<int64_t>(sizeof(SeenRange)); }
  void run(Stream&, const KernelArgs& args) const override {
    auto* extents = static_cast<SeenRange*>(args.scratch);
    const bool enabled = *args.in<float>(3) != 0;
    if (enabled) {
      parallel_for(runs_.outer * runs_.count * pieces_, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, std::min(kPiece, runs_.inner))),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t task = begin; task < end; ++task) {
                       const int64_t run = task / pieces_, from = task % pieces_ * kPiece;
                       extents[task] = range_of(args.in<float>(0) + run * runs_.inner + from, std::min(kPiece, runs_.inner - from));
                     }
                   });
    }
    for (int64_t c = 0; c < runs_.count; ++c) {
      SeenRange all;
      for (int64_t o = 0; enabled && o < runs_.outer; ++o) {
        for (int64_t p = 0; p < pieces_; ++p) all.join(extents[(o * runs_.count + c) * pieces_ + p]);
      }
      const float old_low = args.in<float>(1)[c], old_high = args.in<float>(2)[c];
      const bool first = std::isinf(old_low) && old_low > 0 && std::isinf(old_high) && old_high < 0;
      const auto moved = [&](float old, float batch) {
        if (!enabled) return old;
        if (all.nan) return std::numeric_limits<float>::quiet_NaN();
        if (first) return batch;
        return static_cast<float>(static_cast<double>(old) + averaging_ * (static_cast<double>(batch) - static_cast<double>(old)));
      };
      args.out<float>(0)[c] = moved(old_low, all.min);
      args.out<float>(1)[c] = moved(old_high, all.max);
    }
  }

 private:
  double averaging_;
  Runs runs_;
  int64_t pieces_;
};

class KeepRange : public PreparedKernel {
 public:
  explicit KeepRange(const KernelQuery& q) : bytes_(static_cast<size_t>(q.in(0).bytes())) {}
  void run(Stream&, const KernelArgs& args) const override {
    for (size_t side : {0u, 1u}) std::memmove(args.outputs[side], args.inputs[side + 2], bytes_);
  }

 private:
  size_t bytes_;
};

class QparamsFromRange : public PreparedKernel {
 public:
  explicit QparamsFromRange(const KernelQuery& q)
      : symmetric_(q.attrs<QparamsFromRangeAttrs>().symmetric),
        range_(q.attrs<QparamsFromRangeAttrs>().range()),
        count_(q.in(0).elements()) {}
  void run(Stream&, const KernelArgs& args) const override {
    for (int64_t i = 0; i < count_; ++i) {
      const auto low = static_cast<double>(args.in<float>(0)[i]), high = static_cast<double>(args.in<float>(1)[i]);
      QuantParams params = symmetric_params(0, range_);
      if (low > high) {
        params.scale = 1;
        if (!symmetric_) params.zero_point = std::clamp<int64_t>(0, range_.min, range_.max);
      } else if (!std::isfinite(low) || !std::isfinite(high)) {
        params.scale = std::numeric_limits<double>::quiet_NaN();
      } else {
        params = symmetric_ ? symmetric_params(std::max({-low, high, 0.0}), range_) : affine_params(low, high, range_);
      }
      args.out<float>(0)[i] = static_cast<float>(params.scale);
      args.out<float>(1)[i] = static_cast<float>(params.zero_point);
    }
  }

 private:
  bool symmetric_;
  QuantRange range_;
  int64_t count_;
};

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return gated(q, std::make_unique<T>(q));
}

const std::array<Kernel, 6> kKernels{
    {{"fake_quantize", "runs", [](const KernelQuery& q) { return supports_arrays(q, 0, {}); }, prepare<FakeQuantize>},
     {"fake_quantize_backward", "runs", [](const KernelQuery& q) { return supports_arrays(q, 1, {0}); }, prepare<FakeQuantizeBackward>},
     {"fake_quantize_scale_backward", "runs", [](const KernelQuery& q) { return supports_arrays(q, 1, {0}); },
      prepare<FakeQuantizeScaleBackward>},
     {"observe_range", "ordered_keys", [](const KernelQuery& q) { return supports_arrays(q, 0, {}); }, prepare<ObserveRange>},
     {"keep_range", "scalar", [](const KernelQuery& q) { return supports_arrays(q, 0, {}); }, prepare<KeepRange>},
     {"qparams_from_range", "scalar", [](const KernelQuery& q) { return supports_arrays(q, 0, {}); }, prepare<QparamsFromRange>}}};

}  // namespace

std::span<const Kernel> cpu_fake_quantize() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
