// Products of the tiles of attention (attention_tiles.cpp), and copies between tiles and arrays; once for each instruction set.
#if defined(GALLEY_ATTENTION_PRODUCTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_ATTENTION_PRODUCTS_INL
#undef GALLEY_ATTENTION_PRODUCTS_INL
#else
#define GALLEY_ATTENTION_PRODUCTS_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/floats-inl.h"
#include "libcore/backends/cpu/unrolled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace galley::attention_tiles {
namespace HWY_NAMESPACE {
#if GALLEY_WIDE_TARGET
namespace hn = hwy::HWY_NAMESPACE;

using galley::HWY_NAMESPACE::each;
using galley::HWY_NAMESPACE::load_floats;
using galley::HWY_NAMESPACE::store_floats;
using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
// The register tile: kTall rows of kBroad vectors are summed in 12 of 16, or 16 of 32 registers.
constexpr int kTall = kLanes == 16 ? 8 : 6, kBroad = 2;
// Rows and keys of a tile: multiples of kTall and of kBroad vectors. 48 x 48 and 64 x 64 floats; larger tiles compute more pairs that a
// causal mask forbids.
constexpr int64_t kRows = kLanes == 16 ? 64 : 48, kKeys = kRows;

/// c[m][n] (+)= sum over k in [first, depth) of A(m, k) b[k][n], for kTall rows and kWide vectors. A(m, k) is a[m * lda + k], transposed
/// a[k * lda + m].
template <int kWide, bool kTransposed, bool kAdd>
HWY_INLINE void register_tile(const float* HWY_RESTRICT a, int64_t lda, const float* HWY_RESTRICT b, int64_t ldb, float* HWY_RESTRICT c,
                              int64_t ldc, int64_t first, int64_t depth) {
  const D d;
  V sum[kTall][kWide];
  each<kTall>([&](auto m) GALLEY_LOOP {
    each<kWide>([&](auto n) GALLEY_LOOP { sum[m][n] = kAdd ? hn::LoadU(d, c + m * ldc + n * kLanes) : hn::Zero(d); });
  });
  for (int64_t k = first; k < depth; ++k) {
    V right[kWide];
    each<kWide>([&](auto n) GALLEY_LOOP { right[n] = hn::LoadU(d, b + k * ldb + n * kLanes); });
    each<kTall>([&](auto m) GALLEY_LOOP {
      const V left = hn::Set(d, kTransposed ? a[k * lda + m] : a[m * lda + k]);
      each<kWide>([&](auto n) GALLEY_LOOP { sum[m][n] = hn::MulAdd(left, right[n], sum[m][n]); });
    });
  }
  each<kTall>([&](auto m) GALLEY_LOOP { each<kWide>([&](auto n) GALLEY_LOOP { hn::StoreU(sum[m][n], d, c + m * ldc + n * kLanes); }); });
}

/// Which part of a product a causal mask leaves; diagonal = the position of query row 0 less that of key 0.
enum class Triangle {
  kNone,
  kKeysByRows,    // m are keys, n rows: keys up to n + diagonal
  kRowsOverKeys,  // m are rows, k keys: keys up to m + diagonal
  kKeysOverRows,  // m are keys, k rows: rows from m - diagonal
};

/// c (+)= A b for `rows` rows, which are rounded up to kTall, `columns`, a multiple of kLanes, and `depth`.
template <bool kTransposed, bool kAdd, Triangle kTriangle>
HWY_INLINE void product(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows, int64_t columns,
                        int64_t depth, int64_t diagonal) {
  const auto strip = [&](auto wide, int64_t n) GALLEY_LOOP {
    constexpr int kWide = decltype(wide)::value;
    int64_t last = rows;
    if constexpr (kTriangle == Triangle::kKeysByRows) last = std::min(rows, n + kWide * kLanes + diagonal);
    for (int64_t m = 0; m < last; m += kTall) {
      int64_t first = 0, end = depth;
      if constexpr (kTriangle == Triangle::kRowsOverKeys) end = std::clamp<int64_t>(m + kTall + diagonal, 0, depth);
      if constexpr (kTriangle == Triangle::kKeysOverRows) first = std::clamp<int64_t>(m - diagonal, 0, depth);
      register_tile<kWide, kTransposed, kAdd>(kTransposed ? a + m : a + m * lda, lda, b + n, ldb, c + m * ldc + n, ldc, first, end);
    }
  };
  int64_t n = 0;
  for (; n + kBroad * kLanes <= columns; n += kBroad * kLanes) strip(std::integral_constant<int, kBroad>(), n);
  for (; n < columns; n += kLanes) strip(std::integral_constant<int, 1>(), n);
}

/// e^x to 2 units in the last place for x <= 88; 0 below -87, where float numbers become subnormal. vector_functions.h has the polynomial.
HWY_INLINE V exp_below(V x) {
  const D d;
  const DI di;
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), hn::Set(d, 12582912.0f));
  const V n = hn::Sub(shifted, hn::Set(d, 12582912.0f));
  const V r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
  V y = hn::Set(d, 1.9875691500e-4f);
  y = hn::MulAdd(y, r, hn::Set(d, 1.3981999507e-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 8.3334519073e-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 4.1665795894e-2f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.6666665459e-1f));
  y = hn::MulAdd(y, r, hn::Set(d, 5.0000001201e-1f));
  y = hn::Add(hn::MulAdd(hn::Mul(y, r), r, r), hn::Set(d, 1.0f));
  // The low bits of `shifted` are n, which becomes the exponent.
  const V power = hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 0x3f800000)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(y, power));  // NaN is not less
}
HWY_INLINE V tanh_of(V x) { return elementwise::HWY_NAMESPACE::tanh(elementwise::HWY_NAMESPACE::Floats(x)).v; }

/// `rows` rows of `width` values, times factor, as rows of `stride` floats; zeros up to the stride, and up to `all_rows`.
template <class T>
HWY_INLINE void copy_rows(const T* from, int64_t step, int64_t rows, int64_t width, float factor, float* to, int64_t stride,
                          int64_t all_rows) {
  const D d;
  const V scale = hn::Set(d, factor);
  const int64_t whole = width - width % kLanes;
  for (int64_t r = 0; r < rows; ++r, from += step, to += stride) {
    for (int64_t i = 0; i < whole; i += kLanes) hn::StoreU(hn::Mul(load_floats(d, from + i), scale), d, to + i);
    if (whole < stride) hn::StoreU(hn::Zero(d), d, to + whole);
    for (int64_t i = whole; i < width; ++i) to[i] = static_cast<float>(from[i]) * factor;
  }
  if (rows < all_rows) std::memset(to, 0, static_cast<size_t>((all_rows - rows) * stride) * sizeof(float));
}

/// to[i] = from[i] * factor.
template <class T>
HWY_INLINE void write_row(const float* from, float factor, int64_t width, T* to) {
  const D d;
  const V scale = hn::Set(d, factor);
  const int64_t whole = width - width % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store_floats(hn::Mul(hn::LoadU(d, from + i), scale), d, to + i);
  for (int64_t i = whole; i < width; ++i) to[i] = from[i] * factor;
}

template <class T>
HWY_INLINE void write_zeros(int64_t width, T* to) {
  for (int64_t i = 0; i < width; ++i) to[i] = 0.0f;
}

/// to[c][r] = from[r][c], or to[c][r] += from[r][c].
template <bool kAdd>
HWY_INLINE void transpose(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to, int64_t to_step) {
  const hn::Full128<float> d;
  const int64_t whole_rows = rows - rows % 4, whole_columns = columns - columns % 4;
  const auto put = [&](hn::Vec<hn::Full128<float> > v, float* at)
                       GALLEY_LOOP { hn::StoreU(kAdd ? hn::Add(v, hn::LoadU(d, at)) : v, d, at); };
  for (int64_t c = 0; c < whole_columns; c += 4) {
    for (int64_t r = 0; r < whole_rows; r += 4) {
      const float* at = from + r * from_step + c;
      const auto r0 = hn::LoadU(d, at), r1 = hn::LoadU(d, at + from_step), r2 = hn::LoadU(d, at + 2 * from_step),
                 r3 = hn::LoadU(d, at + 3 * from_step);
      const auto even_low = hn::InterleaveLower(d, r0, r2), even_high = hn::InterleaveUpper(d, r0, r2);
      const auto odd_low = hn::InterleaveLower(d, r1, r3), odd_high = hn::InterleaveUpper(d, r1, r3);
      float* into = to + c * to_step + r;
      put(hn::InterleaveLower(d, even_low, odd_low), into);
      put(hn::InterleaveUpper(d, even_low, odd_low), into + to_step);
      put(hn::InterleaveLower(d, even_high, odd_high), into + 2 * to_step);
      put(hn::InterleaveUpper(d, even_high, odd_high), into + 3 * to_step);
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) {
      float& into = to[c * to_step + r];
      into = kAdd ? into + from[r * from_step + c] : from[r * from_step + c];
    }
  }
}

#endif  // GALLEY_WIDE_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace galley::attention_tiles
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
