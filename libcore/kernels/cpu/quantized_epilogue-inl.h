// Vector pieces of the quantized kernels, compiled anew for each instruction set (no include guard of the common kind): products of small
// integers and the way from sums to results. x86's instructions are named where Highway 1.0 has no operation for them.

#include "libcore/kernels/cpu/quantized_gemm.h"

#if defined(GALLEY_QUANTIZED_EPILOGUE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_QUANTIZED_EPILOGUE_INL
#undef GALLEY_QUANTIZED_EPILOGUE_INL
#else
#define GALLEY_QUANTIZED_EPILOGUE_INL
#endif

#include <cstring>

// Arrays of vectors of 128 bits or more; elsewhere the kernels decline.
#undef GALLEY_QUANTIZED_VECTORS
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
#define GALLEY_QUANTIZED_VECTORS 0
#else
#define GALLEY_QUANTIZED_VECTORS 1
#endif

#if GALLEY_QUANTIZED_VECTORS

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::CappedTag<int32_t, 16>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D32()));
using DF = hn::Rebind<float, D32>;
using D16 = hn::Repartition<int16_t, D32>;
using DU8 = hn::Repartition<uint8_t, D32>;
using DI8 = hn::Repartition<int8_t, D32>;
using V32 = hn::Vec<D32>;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
constexpr bool kHasReduced = true;
#else
constexpr bool kHasReduced = false;
#endif

/// sum + a[2i] b[2i] + a[2i+1] b[2i+1] of i16.
HWY_INLINE V32 dot_pairs(hn::Vec<D16> a, hn::Vec<D16> b, V32 sum) {
#if HWY_TARGET == HWY_AVX3
  return hn::Add(sum, V32{_mm512_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sum, V32{_mm256_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  return hn::Add(sum, V32{_mm_madd_epi16(a.raw, b.raw)});
#else
  const D32 d;
  const V32 a2 = hn::BitCast(d, a), b2 = hn::BitCast(d, b);
  const V32 even = hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(a2)), hn::ShiftRight<16>(hn::ShiftLeft<16>(b2)));
  return hn::Add(sum, hn::Add(even, hn::Mul(hn::ShiftRight<16>(a2), hn::ShiftRight<16>(b2))));
#endif
}

/// sum + the four products of u8 and i8 of each lane.
HWY_INLINE V32 dot_quads(hn::Vec<DU8> a, hn::Vec<DI8> b, V32 sum) {
#if HWY_TARGET == HWY_AVX3
  // By name: the compiler's intrinsic wants the whole function compiled for VNNI. Only run where the processor has it.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "vm"(b.raw));
  return sum;
#else
  const D16 d;
  const hn::RebindToUnsigned<D16> du;
  const auto a2 = hn::BitCast(du, a);
  const auto b2 = hn::BitCast(d, b);
  sum = dot_pairs(hn::BitCast(d, hn::And(a2, hn::Set(du, 0xFF))), hn::ShiftRight<8>(hn::ShiftLeft<8>(b2)), sum);
  return dot_pairs(hn::BitCast(d, hn::ShiftRight<8>(a2)), hn::ShiftRight<8>(b2), sum);
#endif
}

/// The same where two neighbouring products fit 16 bits.
HWY_INLINE V32 dot_quads_reduced(hn::Vec<DU8> a, hn::Vec<DI8> b, V32 sum) {
#if HWY_TARGET == HWY_AVX3
  return hn::Add(sum, V32{_mm512_madd_epi16(_mm512_maddubs_epi16(a.raw, b.raw), _mm512_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sum, V32{_mm256_madd_epi16(_mm256_maddubs_epi16(a.raw, b.raw), _mm256_set1_epi16(1))});
#elif HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  return hn::Add(sum, V32{_mm_madd_epi16(_mm_maddubs_epi16(a.raw, b.raw), _mm_set1_epi16(1))});
#else
  return dot_quads(a, b, sum);
#endif
}

/// Values to integers 0..255 (of u8): half to even. v lies within the bounds that the epilogue sets, far below 2^22, so that adding
/// 1.5 2^23 leaves the rounded number in the low bits.
struct Rounding {
  explicit Rounding(int32_t zero_point) : magic(hn::Set(DF(), 12582912.0f)), off(hn::Set(D32(), 0x4B400000 - zero_point)) {}
  HWY_INLINE V32 operator()(hn::Vec<DF> v) const { return hn::Sub(hn::BitCast(D32(), hn::Add(v, magic)), off); }
  hn::Vec<DF> magic;
  V32 off;
};

/// Numbers 0..255 of a step of outputs to bytes, with `flip`.
template <int kVectors>
HWY_INLINE void store_bytes(const V32 (&v)[kVectors], uint8_t flip, uint8_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (kVectors == 2) {
    // Packing works on halves: words 0-3 8-11 4-7 12-15, then bytes likewise; the middle is put right once.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v[0].raw, v[1].raw), 0xD8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(flip))));
    return;
  }
#endif
  const hn::Rebind<uint8_t, D32> d8;
  const auto turn = hn::Set(d8, flip);
  for (int i = 0; i < kVectors; ++i) hn::StoreU(hn::Xor(hn::DemoteTo(d8, v[i]), turn), d8, out + i * kLanes);
}

template <int kStep, bool kResidual, bool kGate, bool kReal>
HWY_INLINE void finish_rows(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block, int64_t first, int64_t last) {
  constexpr int kVectors = kStep / kLanes;
  const D32 d32;
  const DF df;
  const hn::Rebind<uint8_t, D32> d8;
  const Rounding round(e.zero_point);
  const auto low = hn::Set(df, e.low), high = hn::Set(df, e.high), levels = hn::Set(df, e.to_levels);
  const auto residual_turn = hn::Set(d8, e.residual_flip);
  const auto residual_scale = hn::Set(df, e.residual_scale);
  const bool whole = first == block && last == block + kStep;
  HWY_ALIGN uint8_t bytes[kStep];
  HWY_ALIGN float reals[kStep];
  if (kResidual && !whole) std::memset(bytes, 0, kStep);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (pixel + r) * e.channels + block;
    const uint8_t* residual = nullptr;
    if constexpr (kResidual) {
      residual = e.residual + at;
      if (!whole) {
        std::memcpy(bytes + (first - block), e.residual + at + (first - block), static_cast<size_t>(last - first));
        residual = bytes;
      }
    }
    hn::Vec<DF> value[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      auto v = hn::MulAdd(hn::ConvertTo(df, hn::Load(d32, sums + r * kStep + i * kLanes)), hn::LoadU(df, e.scale + block + i * kLanes),
                          hn::LoadU(df, e.bias + block + i * kLanes));
      if constexpr (kResidual) {
        const auto other = hn::ConvertTo(df, hn::PromoteTo(d32, hn::Xor(hn::LoadU(d8, residual + i * kLanes), residual_turn)));
        v = hn::MulAdd(other, residual_scale, v);
      }
      if constexpr (kGate) {
        const auto gate = hn::Min(hn::Max(hn::Add(v, hn::Set(df, 3.0f)), hn::Zero(df)), hn::Set(df, 6.0f));
        v = hn::Mul(e.activation == Activation::kHardswish ? hn::Mul(v, gate) : gate, levels);
      }
      value[i] = v;
    }
    if constexpr (kReal) {
      float* out = static_cast<float*>(e.out) + at;
      float* to = whole ? out : reals;
      for (int i = 0; i < kVectors; ++i) hn::StoreU(hn::Min(hn::Max(value[i], low), high), df, to + i * kLanes);
      if (!whole) std::memcpy(out + (first - block), reals + (first - block), static_cast<size_t>(last - first) * 4);
    } else {
      uint8_t* out = static_cast<uint8_t*>(e.out) + at;
      V32 level[kVectors];
      for (int i = 0; i < kVectors; ++i) level[i] = round(hn::Min(hn::Max(value[i], low), high));
      if (whole) {
        store_bytes<kVectors>(level, e.flip, out);
      } else {
        HWY_ALIGN uint8_t result[kStep];
        store_bytes<kVectors>(level, e.flip, result);
        std::memcpy(out + (first - block), result + (first - block), static_cast<size_t>(last - first));
      }
    }
  }
}

/// Activations by functions: values to an array, through the function, to levels.
template <int kStep>
HWY_NOINLINE void finish_by_function(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block, int64_t first, int64_t last) {
  const D32 d32;
  const DF df;
  HWY_ALIGN float values[kStep];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (pixel + r) * e.channels + block;
    for (int i = 0; i < kStep; i += kLanes) {
      hn::Store(hn::MulAdd(hn::ConvertTo(df, hn::Load(d32, sums + r * kStep + i)), hn::LoadU(df, e.scale + block + i), hn::LoadU(df, e.bias + block + i)), df, values + i);
    }
    if (e.residual) {
      for (int64_t i = first - block; i < last - block; ++i) values[i] += e.residual_scale * static_cast<float>(e.residual[at + i] ^ e.residual_flip);
    }
    activate(e.activation, values, kStep);
    if (e.real) {
      std::memcpy(static_cast<float*>(e.out) + at + (first - block), values + (first - block), static_cast<size_t>(last - first) * 4);
      continue;
    }
    const Rounding round(e.zero_point);
    HWY_ALIGN int32_t levels[kStep];
    for (int i = 0; i < kStep; i += kLanes) {
      const auto v = hn::Mul(hn::Load(df, values + i), hn::Set(df, e.to_levels));
      hn::Store(round(hn::Min(hn::Max(v, hn::Set(df, e.low)), hn::Set(df, e.high))), d32, levels + i);
    }
    for (int64_t i = first - block; i < last - block; ++i) static_cast<uint8_t*>(e.out)[at + i] = static_cast<uint8_t>(levels[i]) ^ e.flip;
  }
}

/// The results of a tile: `rows` pixels from `pixel` on, outputs first..last of those that begin at `block`; sums[row][kStep].
template <int kStep>
HWY_NOINLINE void finish(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block, int64_t first, int64_t last) {
  switch (e.activation) {
    case Activation::kNone:
    case Activation::kRelu:
    case Activation::kRelu6:
      if (e.real) {
        if (e.residual) return finish_rows<kStep, true, false, true>(e, sums, rows, pixel, block, first, last);
        return finish_rows<kStep, false, false, true>(e, sums, rows, pixel, block, first, last);
      }
      if (e.residual) return finish_rows<kStep, true, false, false>(e, sums, rows, pixel, block, first, last);
      return finish_rows<kStep, false, false, false>(e, sums, rows, pixel, block, first, last);
    case Activation::kHardswish:
    case Activation::kHardsigmoid:
      if (e.real) {
        if (e.residual) return finish_rows<kStep, true, true, true>(e, sums, rows, pixel, block, first, last);
        return finish_rows<kStep, false, true, true>(e, sums, rows, pixel, block, first, last);
      }
      if (e.residual) return finish_rows<kStep, true, true, false>(e, sums, rows, pixel, block, first, last);
      return finish_rows<kStep, false, true, false>(e, sums, rows, pixel, block, first, last);
    default: return finish_by_function<kStep>(e, sums, rows, pixel, block, first, last);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#endif  // GALLEY_QUANTIZED_VECTORS

#endif  // per target
