// Vector pieces of the quantized kernels: products of small integers, and the epilogue that turns sums into results. Compiled for each
// instruction set (hence the unusual include guard). x86 instructions are named where Highway 1.0 has no operation for them.

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/quantized_gemm.h"

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

#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
constexpr bool kHasReduced = true;
#else
constexpr bool kHasReduced = false;
#endif

/// sum + a[2i] b[2i] + a[2i+1] b[2i+1] of i16.
HWY_INLINE V32 dot_pairs(hn::Vec<D16> a, hn::Vec<D16> b, V32 sum) {
#if HWY_TARGET <= HWY_AVX3  // targets are numbered from the best: Highway 1.2 has some above this one
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
#if HWY_TARGET <= HWY_AVX3
  // By name: the compiler's intrinsic requires that the whole function is compiled for VNNI. Runs only where the processor has it.
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

/// dot_quads for operands whose neighboring products fit 16 bits in pairs.
HWY_INLINE V32 dot_quads_reduced(hn::Vec<DU8> a, hn::Vec<DI8> b, V32 sum) {
#if HWY_TARGET <= HWY_AVX3
  return hn::Add(sum, V32{_mm512_madd_epi16(_mm512_maddubs_epi16(a.raw, b.raw), _mm512_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sum, V32{_mm256_madd_epi16(_mm256_maddubs_epi16(a.raw, b.raw), _mm256_set1_epi16(1))});
#elif HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  return hn::Add(sum, V32{_mm_madd_epi16(_mm_maddubs_epi16(a.raw, b.raw), _mm_set1_epi16(1))});
#else
  return dot_quads(a, b, sum);
#endif
}

/// Ways to multiply two vectors of small integers and add the products.
struct PairProducts {  // i16
  using D = D16;
  static HWY_INLINE V32 dot(hn::Vec<D16> a, hn::Vec<D16> b, V32 sum) { return dot_pairs(a, b, sum); }
};
#if HWY_TARGET <= HWY_AVX3
struct PairProductsVnni {  // i16, the products and their sum by one instruction; runs only where the processor has it
  using D = D16;
  static HWY_INLINE V32 dot(hn::Vec<D16> a, hn::Vec<D16> b, V32 sum) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(b.raw), "vm"(a.raw));
    return sum;
  }
};
#endif
struct QuadProducts {  // u8, i8
  using D = DI8;
  static HWY_INLINE V32 dot(hn::Vec<DI8> a, hn::Vec<DI8> b, V32 sum) { return dot_quads(hn::BitCast(DU8(), a), b, sum); }
};
struct ReducedProducts {
  using D = DI8;
  static HWY_INLINE V32 dot(hn::Vec<DI8> a, hn::Vec<DI8> b, V32 sum) { return dot_quads_reduced(hn::BitCast(DU8(), a), b, sum); }
};

/// kCount vectors as nested members: GCC 12 would keep an array in memory around the loops that use it.
template <class D, int kCount>
struct Vectors {
  hn::Vec<D> head;
  Vectors<D, kCount - 1> tail;
};
template <class D>
struct Vectors<D, 0> {};

template <class D, int kCount>
HWY_INLINE void set_zero(Vectors<D, kCount>& v) {
  if constexpr (kCount > 0) {
    v.head = hn::Zero(D());
    set_zero(v.tail);
  }
}
/// Loads vectors `step` elements apart.
template <class D, int kCount, class T>
HWY_INLINE void load(Vectors<D, kCount>& v, const T* from, int64_t step) {
  if constexpr (kCount > 0) {
    v.head = hn::LoadU(D(), from);
    load(v.tail, from + step, step);
  }
}
/// Bytes 0 and 2, and 1 and 3, of each lane, widened.
template <int kCount>
HWY_INLINE void split(const Vectors<DI8, kCount>& v, Vectors<D16, kCount>& even, Vectors<D16, kCount>& odd, D16 d) {
  if constexpr (kCount > 0) {
    const auto bytes = hn::BitCast(d, v.head);
    even.head = hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes));
    odd.head = hn::ShiftRight<8>(bytes);
    split(v.tail, even.tail, odd.tail, d);
  }
}
template <int kCount>
HWY_INLINE void store_sums(const Vectors<D32, kCount>& v, int32_t* to) {
  if constexpr (kCount > 0) {
    hn::Store(v.head, D32(), to);
    store_sums(v.tail, to + kLanes);
  }
}
/// sums += x * each of the others.
template <class Products, class V, int kCount>
HWY_INLINE void add_products(Vectors<D32, kCount>& sums, V x, const Vectors<typename Products::D, kCount>& w) {
  if constexpr (kCount > 0) {
    sums.head = Products::dot(x, w.head, sums.head);
    add_products<Products>(sums.tail, x, w.tail);
  }
}

/// Rounds values to integers 0..255 (of u8), half to even. v is within the bounds of the epilogue, far below 2^22, so that adding
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
  const hn::Rebind<uint8_t, D32> d8;
  const auto turn = hn::Set(d8, flip);
  for (int i = 0; i < kVectors; ++i) hn::StoreU(hn::Xor(hn::DemoteTo(d8, v[i]), turn), d8, out + i * kLanes);
}

template <int kStep, bool kResidual, bool kGate, bool kReal>
HWY_INLINE void finish_rows(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block, int64_t first,
                            int64_t last) {
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

/// Other activations: values go to an array, through the function, and to levels.
template <int kStep>
HWY_NOINLINE void finish_by_function(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block,
                                     int64_t first, int64_t last) {
  const D32 d32;
  const DF df;
  HWY_ALIGN float values[kStep];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (pixel + r) * e.channels + block;
    for (int i = 0; i < kStep; i += kLanes) {
      hn::Store(hn::MulAdd(hn::ConvertTo(df, hn::Load(d32, sums + r * kStep + i)), hn::LoadU(df, e.scale + block + i),
                           hn::LoadU(df, e.bias + block + i)),
                df, values + i);
    }
    if (e.residual) {
      for (int64_t i = first - block; i < last - block; ++i)
        values[i] += e.residual_scale * static_cast<float>(e.residual[at + i] ^ e.residual_flip);
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

#if HWY_TARGET == HWY_AVX2
/// As finish_rows for bytes and 16 outputs, two rows at a time: rounding and the upper bound in 32 bits, the zero point in 16 (with
/// saturation), the lower bound in 8. A value below -2^31 becomes the smallest integer, as it should.
template <bool kResidual, bool kGate>
HWY_NOINLINE void finish_pairs(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block,
                               int64_t first, int64_t last) {
  const __m256 scale[2] = {_mm256_loadu_ps(e.scale + block), _mm256_loadu_ps(e.scale + block + 8)};
  const __m256 bias[2] = {_mm256_loadu_ps(e.bias + block), _mm256_loadu_ps(e.bias + block + 8)};
  const __m256 high = _mm256_set1_ps(e.high), levels = _mm256_set1_ps(e.to_levels), residual_scale = _mm256_set1_ps(e.residual_scale);
  const __m256i zero_point = _mm256_set1_epi16(static_cast<int16_t>(e.zero_point)), turn = _mm256_set1_epi8(static_cast<char>(e.flip));
  const __m256i low = _mm256_set1_epi8(static_cast<char>(static_cast<int32_t>(e.low) + e.zero_point));
  const __m128i residual_turn = _mm_set1_epi8(static_cast<char>(e.residual_flip));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works on halves
  const int64_t lanes = last - first, skip = first - block;
  const bool swish = e.activation == Activation::kHardswish;
  alignas(32) uint8_t piece[32];
  const auto words = [&](int64_t r) HWY_ATTR {
    __m256 v[2];
    for (int i = 0; i < 2; ++i) {
      const __m256 sum = _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums + r * 16 + i * 8)));
      v[i] = _mm256_fmadd_ps(sum, scale[i], bias[i]);
    }
    if constexpr (kResidual) {
      const uint8_t* from = e.residual + (pixel + r) * e.channels + block;
      __m128i bytes;
      if (lanes == 16) {
        bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      } else if (lanes == 8 && skip == 0) {
        bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
      } else {
        std::memcpy(piece + skip, from + skip, static_cast<size_t>(lanes));
        bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(piece));
      }
      bytes = _mm_xor_si128(bytes, residual_turn);
      v[0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), residual_scale, v[0]);
      v[1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))), residual_scale, v[1]);
    }
    for (auto& value : v) {
      if constexpr (kGate) {
        const __m256 gate = _mm256_mul_ps(
            _mm256_min_ps(_mm256_max_ps(_mm256_add_ps(value, _mm256_set1_ps(3)), _mm256_setzero_ps()), _mm256_set1_ps(6)), levels);
        value = swish ? _mm256_mul_ps(value, gate) : gate;
      }
      value = _mm256_min_ps(value, high);
    }
    return _mm256_adds_epi16(_mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])), zero_point);
  };
  if (kResidual) std::memset(piece, 0, sizeof piece);
  for (int64_t r = 0; r < rows; r += 2) {
    const bool two = r + 1 < rows;
    const __m256i one = words(r), other = two ? words(r + 1) : one;
    const __m256i bytes = _mm256_xor_si256(_mm256_permutevar8x32_epi32(_mm256_max_epu8(_mm256_packus_epi16(one, other), low), order), turn);
    uint8_t* out = static_cast<uint8_t*>(e.out) + (pixel + r) * e.channels + block;
    if (lanes == 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(bytes));
      if (two) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + e.channels), _mm256_extracti128_si256(bytes, 1));
    } else if (lanes == 8 && skip == 0) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(bytes));
      if (two) _mm_storel_epi64(reinterpret_cast<__m128i*>(out + e.channels), _mm256_extracti128_si256(bytes, 1));
    } else {
      alignas(32) uint8_t result[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(result), bytes);
      std::memcpy(out + skip, result + skip, static_cast<size_t>(lanes));
      if (two) std::memcpy(out + e.channels + skip, result + 16 + skip, static_cast<size_t>(lanes));
    }
  }
}
#endif

#if HWY_TARGET <= HWY_AVX3
/// As finish_rows for bytes, four vectors at a time, of rows of one or two vectors: rounding and the upper bound in 32 bits, the zero point
/// in 16 (with saturation), the lower bound in 8. A value below -2^31 becomes the smallest integer, as it should.
template <int kStep, bool kResidual, bool kGate>
HWY_NOINLINE void finish_packed(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block,
                                int64_t first, int64_t last) {
  constexpr int kVectors = kStep / kLanes, kRows = 4 / kVectors;
  __m512 scale[kVectors], bias[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    scale[i] = _mm512_loadu_ps(e.scale + block + i * kLanes);
    bias[i] = _mm512_loadu_ps(e.bias + block + i * kLanes);
  }
  const __m512 high = _mm512_set1_ps(e.high), levels = _mm512_set1_ps(e.to_levels), residual_scale = _mm512_set1_ps(e.residual_scale);
  const __m512i zero_point = _mm512_set1_epi16(static_cast<int16_t>(e.zero_point)), turn = _mm512_set1_epi8(static_cast<char>(e.flip));
  const __m512i low = _mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(e.low) + e.zero_point));
  const __m128i residual_turn = _mm_set1_epi8(static_cast<char>(e.residual_flip));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);  // packing works on quarters
  const bool swish = e.activation == Activation::kHardswish;
  // Outputs of this range: bits of the mask.
  const auto below = [](int64_t n) { return n >= 32 ? ~uint32_t{0} : (uint32_t{1} << n) - 1; };
  const uint32_t mine = below(last - block) & ~below(first - block);
  const int64_t channels = e.channels;
  const uint8_t* residual = kResidual ? e.residual + pixel * channels + block : nullptr;
  uint8_t* out = static_cast<uint8_t*>(e.out) + pixel * channels + block;
  const auto level = [&](int64_t r, int i) HWY_ATTR {
    __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + r * kStep + i * kLanes)), scale[i], bias[i]);
    if constexpr (kResidual) {
      const __m128i bytes = _mm_xor_si128(
          _mm_maskz_loadu_epi8(static_cast<__mmask16>(mine >> i * kLanes), residual + r * channels + i * kLanes), residual_turn);
      v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), residual_scale, v);
    }
    if constexpr (kGate) {
      const __m512 gate =
          _mm512_mul_ps(_mm512_min_ps(_mm512_max_ps(_mm512_add_ps(v, _mm512_set1_ps(3)), _mm512_setzero_ps()), _mm512_set1_ps(6)), levels);
      v = swish ? _mm512_mul_ps(v, gate) : gate;
    }
    return _mm512_cvtps_epi32(_mm512_min_ps(v, high));
  };
  for (int64_t r = 0; r < rows; r += kRows) {
    // The last row stands in for missing rows.
    const auto row = [&](int64_t i) { return r + i < rows ? r + i : rows - 1; };
    __m512i words[2];
    for (int i = 0; i < 2; ++i) {
      const int at = 2 * i;
      words[i] = _mm512_adds_epi16(
          _mm512_packs_epi32(level(row(at / kVectors), at % kVectors), level(row((at + 1) / kVectors), (at + 1) % kVectors)), zero_point);
    }
    const __m512i bytes =
        _mm512_xor_si512(_mm512_permutexvar_epi32(order, _mm512_max_epu8(_mm512_packus_epi16(words[0], words[1]), low)), turn);
    if constexpr (kVectors == 2) {
      _mm256_mask_storeu_epi8(out + r * channels, mine, _mm512_castsi512_si256(bytes));
      if (r + 1 < rows) _mm256_mask_storeu_epi8(out + (r + 1) * channels, mine, _mm512_extracti64x4_epi64(bytes, 1));
    } else {
      const auto part = static_cast<__mmask16>(mine);
      _mm_mask_storeu_epi8(out + r * channels, part, _mm512_castsi512_si128(bytes));
      if (r + 1 < rows) _mm_mask_storeu_epi8(out + (r + 1) * channels, part, _mm512_extracti32x4_epi32(bytes, 1));
      if (r + 2 < rows) _mm_mask_storeu_epi8(out + (r + 2) * channels, part, _mm512_extracti32x4_epi32(bytes, 2));
      if (r + 3 < rows) _mm_mask_storeu_epi8(out + (r + 3) * channels, part, _mm512_extracti32x4_epi32(bytes, 3));
    }
  }
}
#endif

/// The results of a tile: `rows` pixels from `pixel` on, outputs first..last of those that begin at `block`; sums[row][kStep].
template <int kStep>
HWY_NOINLINE void finish(const Epilogue& e, const int32_t* HWY_RESTRICT sums, int64_t rows, int64_t pixel, int64_t block, int64_t first,
                         int64_t last) {
#if HWY_TARGET <= HWY_AVX3
  if (!e.real && static_cast<int>(e.activation) <= static_cast<int>(Activation::kHardsigmoid)) {
    const bool gate = e.activation == Activation::kHardswish || e.activation == Activation::kHardsigmoid;
    if (e.residual)
      return gate ? finish_packed<kStep, true, true>(e, sums, rows, pixel, block, first, last)
                  : finish_packed<kStep, true, false>(e, sums, rows, pixel, block, first, last);
    return gate ? finish_packed<kStep, false, true>(e, sums, rows, pixel, block, first, last)
                : finish_packed<kStep, false, false>(e, sums, rows, pixel, block, first, last);
  }
#elif HWY_TARGET == HWY_AVX2
  if (!e.real && static_cast<int>(e.activation) <= static_cast<int>(Activation::kHardsigmoid)) {
    const bool gate = e.activation == Activation::kHardswish || e.activation == Activation::kHardsigmoid;
    if (e.residual)
      return gate ? finish_pairs<true, true>(e, sums, rows, pixel, block, first, last)
                  : finish_pairs<true, false>(e, sums, rows, pixel, block, first, last);
    return gate ? finish_pairs<false, true>(e, sums, rows, pixel, block, first, last)
                : finish_pairs<false, false>(e, sums, rows, pixel, block, first, last);
  }
#endif
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
