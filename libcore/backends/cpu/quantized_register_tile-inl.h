// Register tiles of integer sums: some pixels by one step of outputs. Compiled for each instruction set (hence the unusual include guard).

#include "libcore/backends/cpu/quantized_epilogue-inl.h"

#if defined(GALLEY_QUANTIZED_REGISTER_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_QUANTIZED_REGISTER_TILE_INL
#undef GALLEY_QUANTIZED_REGISTER_TILE_INL
#else
#define GALLEY_QUANTIZED_REGISTER_TILE_INL
#endif

#include <cstring>

#if GALLEY_QUANTIZED_VECTORS

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3
constexpr int kStep = 32, kMostRows = 12;  // 24 sums of 32 registers
#elif HWY_TARGET == HWY_AVX2
constexpr int kStep = 16, kMostRows = 6;  // 12 sums of 16 registers
#else
constexpr int kStep = 16, kMostRows = 2;
#endif
constexpr int kVectors = kStep / kLanes;  // of a step

template <class T>
HWY_INLINE int32_t four_bytes(const T* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

/// Sums of kRows pixels times kWide vectors of outputs, in registers. Each pixel is stored as its distance from
/// the first one of the tile (kFirst), so that one pointer moves: a pointer for each would exceed the 16 general registers.
template <class Products, class T, int kRows, int kWide, bool kFirst = true>
struct Tile {
  int64_t distance;
  Vectors<D32, kWide> sums;
  Tile<Products, T, kRows - 1, kWide, false> below;

  HWY_INLINE void begin(const int32_t* at, const int32_t* first) {
    distance = *at - *first;
    set_zero(sums);
    below.begin(at + 1, first);
  }
  HWY_INLINE void begin(const int32_t* at, const int32_t* first, const int32_t* starts) {
    distance = *at - *first;
    load(sums, starts, kLanes);
    below.begin(at + 1, first, starts);
  }
  /// The four bytes of each pixel, the first one's at x.
  HWY_INLINE void add(const T* x, const Vectors<typename Products::D, kWide>& weights) {
    add_products<Products>(sums, hn::BitCast(typename Products::D(), hn::Set(D32(), four_bytes(kFirst ? x : x + distance))), weights);
    below.add(x, weights);
  }
  HWY_INLINE void store(int32_t* to) const {
    store_sums(sums, to);
    below.store(to + kStep);
  }
};
template <class Products, class T, int kWide, bool kFirst>
struct Tile<Products, T, 0, kWide, kFirst> {
  HWY_INLINE void begin(const int32_t*, const int32_t*) {}
  HWY_INLINE void begin(const int32_t*, const int32_t*, const int32_t*) {}
  HWY_INLINE void add(const T*, const Vectors<typename Products::D, kWide>&) {}
  HWY_INLINE void store(int32_t*) const {}
};

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#endif  // GALLEY_QUANTIZED_VECTORS

#endif  // per target
