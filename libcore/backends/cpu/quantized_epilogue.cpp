// Requantization of float arrays: from floats to bytes, and the epilogue of operators whose results are not matrix products (sums, products
// and pools of bytes). One pass over the values, about ten instructions per vector, so the caches bound it. Values are rounded to nearest
// even by adding 1.5 * 2^23, which leaves the integer in the low bits of the sum (the magic bias of XNNPACK).

#include "libcore/backends/cpu/quantized_epilogue.h"

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/quantized_epilogue.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_QUANTIZED_EPILOGUE_ONCE
#define GALLEY_QUANTIZED_EPILOGUE_ONCE

#include <algorithm>
#include <limits>

#include "libcore/backends/cpu/activate.h"

namespace galley::quantized {

/// What an epilogue does to a value before it bounds it.
enum class Gate { kNone, kScale, kHardsigmoid, kHardswish };

/// Bytes of rounded values: the zero point (of u8) is added, and the highest bit is inverted where `flip` is 0x80.
struct ByteOutput {
  int32_t zero_point;
  uint8_t flip;
};

}  // namespace galley::quantized

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using galley::HWY_NAMESPACE::each;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using Integers = hn::RebindToSigned<D>;
using Bytes = hn::Rebind<uint8_t, D>;
constexpr int64_t kMaxLanes = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int32_t kMagicBits = 0x4B400000;  // of 1.5 * 2^23

/// A vector with the number in all lanes.
HWY_INLINE V all(float value) { return hn::Set(D(), value); }
// NaN in x passes through both.
HWY_INLINE V at_least(V x, V low) { return hn::IfThenElse(hn::Lt(x, low), low, x); }
HWY_INLINE V at_most(V x, V high) { return hn::IfThenElse(hn::Lt(high, x), high, x); }

/// |x| < 2^22; a NaN becomes the zero point.
HWY_INLINE void store_rounded(V x, ByteOutput output, uint8_t* to) {
  const Integers d;
  const auto sum = hn::BitCast(d, hn::Add(x, all(12582912.0f)));
  const auto level = hn::And(hn::Sub(sum, hn::Set(d, kMagicBits - output.zero_point)), hn::Set(d, 0xFF));
  hn::StoreU(hn::Xor(hn::DemoteTo(Bytes(), level), hn::Set(Bytes(), output.flip)), Bytes(), to);
}

/// store(map(x[i]), out + i), a vector at a time; the last values go through an array of a whole vector.
template <class T, class Map, class Store>
HWY_INLINE void map_all(const float* x, int64_t count, T* out, const Map& map, const Store& store) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(map(hn::LoadU(D(), x + i)), out + i);
  if (i == count) return;
  HWY_ALIGN float rest[kMaxLanes] = {};
  HWY_ALIGN T results[kMaxLanes];
  std::copy_n(x + i, count - i, rest);
  store(map(hn::Load(D(), rest)), results);
  std::copy_n(results, count - i, out + i);
}

void quantize_all(const float* x, float scale, float low, float high, const ByteOutput& output, uint8_t* out, int64_t count) {
  const V divisor = all(scale), bottom = all(low), top = all(high);
  map_all(
      x, count, out,
      [&](V v) GALLEY_LOOP {
        // A division, not a product with the reciprocal: the map is the same everywhere. NaN becomes low.
        v = hn::Div(v, divisor);
        v = hn::IfThenElse(hn::Lt(bottom, v), v, bottom);
        return hn::IfThenElse(hn::Lt(v, top), v, top);
      },
      [&](V v, uint8_t* to) GALLEY_LOOP { store_rounded(v, output, to); });
}

template <Gate kGate>
HWY_INLINE void finish_gated(const Epilogue& e, const float* values, int64_t count, void* out) {
  const V low = all(e.low), high = all(e.high), levels = all(e.to_levels);
  const auto bounded = [&](V v) GALLEY_LOOP {
    if constexpr (kGate == Gate::kScale) v = hn::Mul(v, levels);
    if constexpr (kGate == Gate::kHardsigmoid || kGate == Gate::kHardswish) {
      const V gate = hn::Mul(at_most(at_least(hn::Add(v, all(3)), all(0)), all(6)), levels);
      v = kGate == Gate::kHardswish ? hn::Mul(v, gate) : gate;
    }
    return at_most(at_least(v, low), high);
  };
  if (e.real) {
    map_all(values, count, static_cast<float*>(out), bounded, [](V v, float* to) GALLEY_LOOP { hn::StoreU(v, D(), to); });
  } else {
    const ByteOutput output{e.zero_point, e.flip};
    map_all(values, count, static_cast<uint8_t*>(out), bounded, [&](V v, uint8_t* to) GALLEY_LOOP { store_rounded(v, output, to); });
  }
}
void finish_all(const Epilogue& e, Gate gate, const float* values, int64_t count, void* out) {
  switch (gate) {
    case Gate::kNone: return finish_gated<Gate::kNone>(e, values, count, out);
    case Gate::kScale: return finish_gated<Gate::kScale>(e, values, count, out);
    case Gate::kHardsigmoid: return finish_gated<Gate::kHardsigmoid>(e, values, count, out);
    case Gate::kHardswish: return finish_gated<Gate::kHardswish>(e, values, count, out);
  }
}

/// The smallest value, the largest one, and values * 0: NaN where one is not finite.
struct RangeVectors {
  V low, high, zero;
  HWY_INLINE void take(V value) {
    // NaN leaves both bounds.
    low = hn::IfThenElse(hn::Lt(value, low), value, low);
    high = hn::IfThenElse(hn::Lt(high, value), value, high);
    zero = hn::Add(zero, hn::Mul(value, all(0)));
  }
};

ValueRange range_all(const float* x, int64_t count) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // Four independent chains: with one, each comparison would wait for the one before.
  RangeVectors part[4];
  each<4>([&](auto k) GALLEY_LOOP { part[k] = {all(0), all(0), all(0)}; });
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) each<4>([&](auto k) GALLEY_LOOP { part[k].take(hn::LoadU(d, x + i + k * lanes)); });
  for (; i + lanes <= count; i += lanes) part[0].take(hn::LoadU(d, x + i));
  if (i < count) {
    HWY_ALIGN float rest[kMaxLanes] = {};  // zeros change nothing
    std::copy_n(x + i, count - i, rest);
    part[0].take(hn::Load(d, rest));
  }
  each<3>([&](auto k) GALLEY_LOOP {
    part[0].low = hn::Min(part[0].low, part[k + 1].low);
    part[0].high = hn::Max(part[0].high, part[k + 1].high);
    part[0].zero = hn::Add(part[0].zero, part[k + 1].zero);
  });
  return {hn::GetLane(hn::MinOfLanes(d, part[0].low)), hn::GetLane(hn::MaxOfLanes(d, part[0].high)),
          hn::GetLane(hn::SumOfLanes(d, part[0].zero)) == 0.0f};
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::quantized {

HWY_EXPORT(quantize_all);
HWY_EXPORT(finish_all);
HWY_EXPORT(range_all);

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Gate gate_of(Activation activation) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
    case Activation::kRelu6: return Gate::kNone;
    case Activation::kHardsigmoid: return Gate::kHardsigmoid;
    case Activation::kHardswish: return Gate::kHardswish;
    default: return Gate::kScale;
  }
}

}  // namespace

void finish_values(const Epilogue& e, float* values, int64_t count, void* out) {
  const Gate gate = gate_of(e.activation);
  if (gate == Gate::kScale) activate(e.activation, values, count);
  HWY_DYNAMIC_DISPATCH(finish_all)(e, gate, values, count, out);
}

void quantize_values(const float* x, const QuantParams& params, uint8_t* out, int64_t count) {
  const uint8_t flip = flip_of(params.dtype);
  const ByteOutput output{static_cast<int32_t>(params.zero_point) + flip, flip};
  HWY_DYNAMIC_DISPATCH(quantize_all)
  (x, static_cast<float>(params.scale), static_cast<float>(params.qmin - params.zero_point),
   static_cast<float>(params.qmax - params.zero_point), output, out, count);
}

ValueRange range_of(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(range_all)(x, count); }

bool in_levels(const QuantizedOutput& output, Activation activation) {
  return output.output_dtype != DType::kF32 &&
         (activation == Activation::kNone || activation == Activation::kRelu || activation == Activation::kRelu6);
}

void set_results(Epilogue& e, const QuantizedOutput& output, Activation activation) {
  e.activation = activation;
  e.real = output.output_dtype == DType::kF32;
  const double to_levels = e.real ? 1 : 1 / output.output_scale;
  e.to_levels = in_levels(output, activation) ? 1 : static_cast<float>(to_levels);
  e.low = e.real ? -kInfinity : static_cast<float>(output.output_qmin - output.output_zero_point);
  e.high = e.real ? kInfinity : static_cast<float>(output.output_qmax - output.output_zero_point);
  if (activation == Activation::kRelu || activation == Activation::kRelu6) e.low = std::max(e.low, 0.0f);
  if (activation == Activation::kRelu6) e.high = std::min(e.high, static_cast<float>(6 * to_levels));
  // The gate of these two is relu6(v + 3), six times what it should be.
  if (activation == Activation::kHardswish || activation == Activation::kHardsigmoid) e.to_levels = static_cast<float>(to_levels / 6);
  e.flip = e.real ? 0 : flip_of(output.output_dtype);
  e.zero_point = e.real ? 0 : static_cast<int32_t>(output.output_zero_point) + e.flip;
}

Results::Results(const QuantizedOutput& output, double input_scale, Activation activation, int64_t outputs)
    : input_scale_(input_scale), outputs_(outputs) {
  set_results(base_, output, activation);
  base_.channels = outputs;
  if (in_levels(output, activation)) to_levels_ = 1 / output.output_scale;
}

void Results::set_residual(double scale, int64_t zero_point, DType dtype) {
  residual_scale_ = scale;
  base_.residual_flip = flip_of(dtype);
  residual_zero_point_ = static_cast<double>(zero_point) + base_.residual_flip;
  base_.residual_scale = static_cast<float>(scale * to_levels_);
}

Epilogue Results::epilogue(const float* weight_scale, const float* bias, std::byte* scratch, double input_scale) const {
  auto* scales = reinterpret_cast<float*>(scratch);
  float* biases = scales + padded_outputs(outputs_);
  for (int64_t o = 0; o < padded_outputs(outputs_); ++o) {
    const bool is_output = o < outputs_;
    scales[o] = is_output ? static_cast<float>(input_scale * static_cast<double>(weight_scale[o]) * to_levels_) : 0;
    const double shift = (bias != nullptr && is_output ? static_cast<double>(bias[o]) : 0) - residual_scale_ * residual_zero_point_;
    biases[o] = static_cast<float>(shift * to_levels_);
  }
  Epilogue e = base_;
  e.scale = scales;
  e.bias = biases;
  return e;
}

}  // namespace galley::quantized

#endif  // HWY_ONCE
