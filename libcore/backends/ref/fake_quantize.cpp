#include "libcore/ops/fake_quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// Which of the scales belongs to element i of x.
struct Channels {
  int64_t inner = 1, count = 1;
  Channels(const Shape& x, int64_t axis) {
    if (axis < 0) return;
    count = x[static_cast<int>(axis)];
    for (int d = static_cast<int>(axis) + 1; d < x.rank(); ++d) inner *= x[d];
  }
  int64_t operator()(int64_t i) const { return i / inner % count; }
};

/// A scale that learns is no less than kLeastFakeScale; NaN stays.
double floored(double scale) { return scale < kLeastFakeScale ? kLeastFakeScale : scale; }

/// x / scale: of float32 values in float32, as `quantize` and the kernels divide, so that all round the same way.
double quotient(const RefCall& call, double x, double scale) {
  const bool single = call.context().in(0).dtype != DType::kF64;
  return single ? static_cast<double>(static_cast<float>(x) / static_cast<float>(scale)) : x / scale;
}

void fake_quantize_ref(RefCall& call) {
  const auto& a = call.attrs<FakeQuantizeAttrs>();
  const Channels channel(call.in(0).shape, a.axis);
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const double scale = floored(call.in(1)[channel(i)]), zero_point = call.in(2)[channel(i)];
    const double q = std::nearbyint(quotient(call, call.in(0)[i], scale)) + zero_point;
    const double kept = std::isnan(q) ? q : std::clamp(q, static_cast<double>(a.qmin), static_cast<double>(a.qmax));
    call.out()[i] = scale * (kept - zero_point);
  }
}

void fake_quantize_backward_ref(RefCall& call) {
  const auto& a = call.attrs<FakeQuantizeAttrs>();
  const Channels channel(call.in(1).shape, a.axis);
  for (int64_t i = 0; i < call.in(1).shape.elements(); ++i) {
    const double q = std::nearbyint(quotient(call, call.in(1)[i], floored(call.in(2)[channel(i)]))) + call.in(3)[channel(i)];
    const bool inside = q >= static_cast<double>(a.qmin) && q <= static_cast<double>(a.qmax);
    call.out()[i] = inside ? call.in(0)[i] : 0;
  }
}

void fake_quantize_scale_backward_ref(RefCall& call) {
  const auto& a = call.attrs<FakeQuantizeAttrs>();
  const Channels channel(call.in(1).shape, a.axis);
  const auto low = static_cast<double>(a.qmin), high = static_cast<double>(a.qmax);
  for (int64_t i = 0; i < call.in(1).shape.elements(); ++i) {
    const double zero_point = call.in(3)[channel(i)], ratio = quotient(call, call.in(1)[i], floored(call.in(2)[channel(i)]));
    const double q = std::nearbyint(ratio) + zero_point;
    const double slope = q < low ? low - zero_point : q > high ? high - zero_point : q - zero_point - ratio;
    call.out()[channel(i)] += a.gradient_factor * call.in(0)[i] * slope;
  }
}

void observe_range_ref(RefCall& call) {
  const auto& a = call.attrs<ObserveRangeAttrs>();
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Channels channel(call.in(0).shape, a.axis);
  const bool enabled = call.in(3)[0] != 0;
  for (int64_t c = 0; c < channel.count; ++c) {
    double low = infinity, high = -infinity;
    for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
      if (channel(i) != c) continue;
      const double x = call.in(0)[i];
      low = std::isnan(x) || std::isnan(low) ? nan : std::min(low, x);
      high = std::isnan(x) || std::isnan(high) ? nan : std::max(high, x);
    }
    const double old_low = call.in(1)[c], old_high = call.in(2)[c];
    const bool first = old_low == infinity && old_high == -infinity;
    const auto moved = [&](double old, double batch) { return !enabled ? old : first ? batch : old + a.averaging * (batch - old); };
    call.out(0)[c] = moved(old_low, low);
    call.out(1)[c] = moved(old_high, high);
  }
}

void keep_range_ref(RefCall& call) {
  for (size_t side : {0u, 1u}) {
    for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out(side)[i] = call.in(side + 2)[i];
  }
}

void qparams_from_range_ref(RefCall& call) {
  const auto& a = call.attrs<QparamsFromRangeAttrs>();
  const QuantRange range = a.range();
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const double low = call.in(0)[i], high = call.in(1)[i];
    QuantParams params = symmetric_params(0, range);
    if (low > high) {
      params.scale = 1;
      if (!a.symmetric) params.zero_point = std::clamp<int64_t>(0, a.qmin, a.qmax);
    } else if (!std::isfinite(low) || !std::isfinite(high)) {
      params.scale = std::numeric_limits<double>::quiet_NaN();
    } else {
      params = a.symmetric ? symmetric_params(std::max({-low, high, 0.0}), range) : affine_params(low, high, range);
    }
    call.out(0)[i] = params.scale;
    call.out(1)[i] = static_cast<double>(params.zero_point);
  }
}

constexpr RefEntry kEntries[] = {
    {"fake_quantize", fake_quantize_ref},
    {"fake_quantize_backward", fake_quantize_backward_ref},
    {"fake_quantize_scale_backward", fake_quantize_scale_backward_ref},
    {"observe_range", observe_range_ref},
    {"keep_range", keep_range_ref},
    {"qparams_from_range", qparams_from_range_ref},
};

}  // namespace

std::span<const RefEntry> ref_fake_quantize() { return kEntries; }

}  // namespace galley
