// A matrix product with a packed right operand (packed_product.h).
//
// A register tile of 6 rows by one panel of 16 columns (12 rows by 2 panels with AVX-512: with one panel, each fused multiply-add would
// load its own factor) is accumulated over the whole depth. Panels are read again for every tile of rows and stay in the second-level
// cache. The first tile of rows prefetches the next panels where they may come from memory. A single row takes four panels at once, since
// with one each sum would wait for the one before. 2 rows columns depth operations; FMA bounds it from a depth of about 16 on. The loop is
// the micro-kernel of BLIS (Van Zee and van de Geijn, 2015).

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/packed_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_PACKED_PRODUCT_ONCE
#define GALLEY_PACKED_PRODUCT_ONCE

#include <algorithm>
#include <cstring>

#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/packed_product.h"
#include "libcore/base/parallel.h"

namespace galley::packed_product {

constexpr int64_t kRowBlock = conv_threshold::kPackedRowBlock.value;
constexpr int64_t kCachedFloats = conv_threshold::kPackedCachedFloats.value;  // of all panels

}  // namespace galley::packed_product

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::packed_product {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR

constexpr int64_t kRows = 4;
constexpr int kPanels = 1;

template <int kCount, int kWidth, bool kPrefetch, bool kPrefetchRows>
void tile(const PackedProduct& p, const float* a, const float* panel, float* c, int64_t c_step, const float* initial) {
  for (int r = 0; r < kCount; ++r) {
    float sum[kPanel];
    std::memcpy(sum, initial != nullptr ? initial : c + r * c_step, sizeof sum);
    for (int64_t k = 0; k < p.depth; ++k) {
      for (int64_t i = 0; i < kPanel; ++i) sum[i] += a[r * p.a_step + k] * panel[k * kPanel + i];
    }
    for (float& value : sum) value = p.relu && value < 0 ? 0 : value;
    std::memcpy(c + r * c_step, sum, sizeof sum);
  }
}

#else

using galley::HWY_NAMESPACE::each;
using Floats = hn::CappedTag<float, 16>;
constexpr int kWide = static_cast<int>(hn::MaxLanes(Floats())), kParts = static_cast<int>(kPanel) / kWide;
constexpr int64_t kRows = kWide == 16 ? 12 : 6;
constexpr int kPanels = kWide == 16 ? 2 : 1;
constexpr int kBroad = 4;                    // panels
constexpr int kGroup = kWide == 16 ? 4 : 3;  // rows that one pointer and multiples of the step address

/// NaN passes through; a maximum would hide it.
template <class V>
HWY_INLINE V positive(V v) {
  return hn::IfThenZeroElse(hn::Lt(v, hn::Zero(hn::DFromV<V>())), v);
}

/// kCount rows by kWidth panels. kPrefetch: prefetches the next panels. kPrefetchRows: prefetches consecutive rows of a later tile, a cache
/// line at each step; all at once they would fill the queue of outstanding loads, and the products would wait.
template <int kCount, int kWidth, bool kPrefetch, bool kPrefetchRows>
HWY_INLINE void tile(const PackedProduct& p, const float* a, const float* HWY_RESTRICT panel, float* c, int64_t c_step,
                     const float* initial) {
  constexpr int kVectors = kWidth * kParts, kGroups = (kCount + kGroup - 1) / kGroup;
  const Floats d;
  const int64_t step = p.a_step, third = 3 * step, depth = p.depth, panel_floats = kPanel * depth, panel_step = p.panel_step;
  const auto place = [&](int i) GALLEY_LOOP { return c + i / kVectors * c_step + i % kVectors / kParts * panel_step + i % kParts * kWide; };
  const float *group[kGroups], *rows_ahead = a + p.a_ahead * step;
  for (int g = 0; g < kGroups; ++g) group[g] = a + g * kGroup * step;
  if (p.ahead != 0) {
    for (int r = 0; r < kCount; ++r) {
      for (int w = 0; w < kWidth; ++w) __builtin_prefetch(c + (p.ahead + r) * p.c_step + w * p.panel_step, 1, 2);
    }
  }
  hn::Vec<Floats> sum[kCount * kVectors];
  each<kCount * kVectors>([&](auto i)
                              GALLEY_LOOP { sum[i] = hn::LoadU(d, initial != nullptr ? initial + i % kVectors * kWide : place(i)); });
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<Floats> b[kVectors];
    each<kVectors>([&](auto i) GALLEY_LOOP { b[i] = hn::LoadU(d, panel + i / kParts * panel_floats + k * kPanel + i % kParts * kWide); });
    if (kPrefetchRows) __builtin_prefetch(rows_ahead + k * kCount, 0, 3);
    for (int w = 0; w < kWidth && kPrefetch; ++w) __builtin_prefetch(panel + (kWidth + w) * panel_floats + k * kPanel, 0, 2);
    each<kCount>([&](auto r) GALLEY_LOOP {
      const auto value = hn::Set(d, group[r / kGroup][r % kGroup == 3 ? third : r % kGroup * step]);
      each<kVectors>([&](auto i) GALLEY_LOOP { sum[r * kVectors + i] = hn::MulAdd(value, b[i], sum[r * kVectors + i]); });
    });
    for (int g = 0; g < kGroups; ++g) {
      ++group[g];
      asm("" : "+r"(group[g]));  // otherwise GCC keeps a pointer for each row, more than there are registers
    }
  }
  if (p.relu) each<kCount * kVectors>([&](auto i) GALLEY_LOOP { sum[i] = positive(sum[i]); });
  each<kCount * kVectors>([&](auto i) GALLEY_LOOP { hn::StoreU(sum[i], d, place(i)); });
}

using Eight = hn::CappedTag<float, 8>;
constexpr int64_t kEightRows = 12;

/// kCount rows by the first eight columns of a panel.
template <int kCount>
HWY_INLINE void eight_columns(const PackedProduct& p, const float* a, const float* HWY_RESTRICT panel, float* c, const float* initial) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(Eight())), kVectors = 8 / kLanes, kGroups = (kCount + kGroup - 1) / kGroup;
  const Eight d;
  const int64_t step = p.a_step, third = 3 * step, depth = p.depth, c_step = p.c_step;
  const auto place = [&](int i) GALLEY_LOOP { return c + i / kVectors * c_step + i % kVectors * kLanes; };
  const float* group[kGroups];
  for (int g = 0; g < kGroups; ++g) group[g] = a + g * kGroup * step;
  hn::Vec<Eight> sum[kCount * kVectors];
  each<kCount * kVectors>([&](auto i)
                              GALLEY_LOOP { sum[i] = hn::LoadU(d, initial != nullptr ? initial + i % kVectors * kLanes : place(i)); });
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<Eight> b[kVectors];
    each<kVectors>([&](auto i) GALLEY_LOOP { b[i] = hn::LoadU(d, panel + k * kPanel + i * kLanes); });
    each<kCount>([&](auto r) GALLEY_LOOP {
      const auto value = hn::Set(d, group[r / kGroup][r % kGroup == 3 ? third : r % kGroup * step]);
      each<kVectors>([&](auto i) GALLEY_LOOP { sum[r * kVectors + i] = hn::MulAdd(value, b[i], sum[r * kVectors + i]); });
    });
    for (int g = 0; g < kGroups; ++g) {
      ++group[g];
      asm("" : "+r"(group[g]));  // as in tile
    }
  }
  if (p.relu) each<kCount * kVectors>([&](auto i) GALLEY_LOOP { sum[i] = positive(sum[i]); });
  each<kCount * kVectors>([&](auto i) GALLEY_LOOP { hn::StoreU(sum[i], d, place(i)); });
}

/// One row by kBroad panels; each element is summed in the same order as in the other tiles.
void broad_tile(const PackedProduct& p, const float* a, const float* HWY_RESTRICT panel, float* c, const float* initial) {
  const Floats d;
  hn::Vec<Floats> sum[kBroad * kParts];
  const auto place = [&](int i) { return c + i / kParts * p.panel_step + i % kParts * kWide; };
  for (int i = 0; i < kBroad * kParts; ++i) sum[i] = hn::LoadU(d, initial != nullptr ? initial + i * kWide : place(i));
  const int64_t depth = p.depth, panel_floats = kPanel * depth;
  for (int64_t k = 0; k < depth; ++k) {
    const auto value = hn::Set(d, a[k]);
    for (int i = 0; i < kBroad * kParts; ++i)
      sum[i] = hn::MulAdd(value, hn::LoadU(d, panel + i / kParts * panel_floats + k * kPanel + i % kParts * kWide), sum[i]);
  }
  for (int i = 0; i < kBroad * kParts; ++i) hn::StoreU(p.relu ? positive(sum[i]) : sum[i], d, place(i));
}

#endif

/// `count` rows, at most kRows, by kWidth panels.
template <int kWidth, bool kPrefetch, int kCount = static_cast<int>(kRows)>
void some_rows(const PackedProduct& p, int64_t count, const float* a, const float* panel, float* c, int64_t c_step, const float* initial) {
  if constexpr (kCount > 1) {
    if (count < kCount) return some_rows<kWidth, kPrefetch, kCount - 1>(p, count, a, panel, c, c_step, initial);
  }
  tile<kCount, kWidth, kPrefetch, false>(p, a, panel, c, c_step, initial);
}

/// A block's rows by kWidth whole panels from `panel` on.
template <int kWidth>
void whole_panels(const PackedProduct& p, int64_t block, int64_t block_end, int64_t panel) {
  const float *b = p.packed + panel * kPanel * p.depth, *initial = p.initial == nullptr ? nullptr : p.initial + panel * kPanel;
  const bool prefetches = p.a_ahead != 0 && panel == p.first;
  const auto rows = [&](int64_t row, auto prefetch) {
    const int64_t count = std::min(kRows, block_end - row);
    const float* a = p.a + row * p.a_step;
    float* c = p.c + row * p.c_step + panel * p.panel_step;
    if (prefetches && count == kRows) return tile<static_cast<int>(kRows), kWidth, prefetch(), true>(p, a, b, c, p.c_step, initial);
    some_rows<kWidth, prefetch()>(p, count, a, b, c, p.c_step, initial);
  };
  const bool cached = p.columns * p.depth <= kCachedFloats;
  if (!cached) rows(block, std::true_type());
  for (int64_t row = cached ? block : block + kRows; row < block_end; row += kRows) rows(row, std::false_type());
}

void multiply(const PackedProduct& p) {
  for (int64_t block = 0; block < p.rows; block += kRowBlock) {
    const int64_t block_end = std::min(p.rows, block + kRowBlock);
    int64_t panel = p.first;
#if !(HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR)
    for (; block_end - block == 1 && panel + kBroad <= std::min(p.last, p.columns / kPanel); panel += kBroad) {
      broad_tile(p, p.a + block * p.a_step, p.packed + panel * kPanel * p.depth, p.c + block * p.c_step + panel * p.panel_step,
                 p.initial == nullptr ? nullptr : p.initial + panel * kPanel);
    }
#endif
    const int64_t whole = std::min(p.last, p.columns / kPanel);
    for (; kPanels > 1 && panel + kPanels <= whole; panel += kPanels) whole_panels<kPanels>(p, block, block_end, panel);
    for (; panel < whole; ++panel) whole_panels<1>(p, block, block_end, panel);
    if (panel == p.last) continue;
    // The existing columns of the last panel.
    const float *b = p.packed + panel * kPanel * p.depth, *initial = p.initial == nullptr ? nullptr : p.initial + panel * kPanel;
    const int64_t columns = p.columns - panel * kPanel;
#if !(HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR)
    if (columns == 8) {
      // Half a panel: takes half as long on processors that execute vectors of 512 bits in two steps.
      const auto eight = [&](int64_t row, auto count) {
        eight_columns<count()>(p, p.a + row * p.a_step, b, p.c + row * p.c_step + panel * p.panel_step, initial);
      };
      int64_t row = block;
      for (; row + kEightRows <= block_end; row += kEightRows) eight(row, std::integral_constant<int, kEightRows>());
      for (; row < block_end; ++row) eight(row, std::integral_constant<int, 1>());
      continue;
    }
#endif
    for (int64_t row = block; row < block_end; row += kRows) {
      const int64_t count = std::min(kRows, block_end - row);
      float* c = p.c + row * p.c_step + panel * p.panel_step;
      float edge[kRows * kPanel] = {};
      for (int64_t r = 0; initial == nullptr && r < count; ++r) std::copy_n(c + r * p.c_step, columns, edge + r * kPanel);
      some_rows<1, false>(p, count, p.a + row * p.a_step, b, edge, kPanel, initial);
      for (int64_t r = 0; r < count; ++r) std::copy_n(edge + r * kPanel, columns, c + r * p.c_step);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::packed_product
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace packed_product {
HWY_EXPORT(multiply);
}

void multiply_packed(const PackedProduct& product) { HWY_DYNAMIC_DISPATCH(packed_product::multiply)(product); }

void pack_matrix(const PackSource& s, float* packed) {
  parallel_for(panels_of(s.columns), 4, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t columns = std::min(kPanel, s.columns - panel * kPanel);
      const float* from = s.from + panel * kPanel * s.column_step;
      float* to = packed + panel * kPanel * s.depth;
      if (columns < kPanel) std::memset(to, 0, static_cast<size_t>(kPanel * s.depth) * sizeof(float));
      // Blocks of 16 by 16: the lines of either side stay in the first-level cache.
      for (int64_t block = 0; block < s.depth; block += kPanel) {
        const int64_t block_end = std::min(s.depth, block + kPanel);
        for (int64_t c = 0; c < columns; ++c) {
          for (int64_t k = block; k < block_end; ++k) to[k * kPanel + c] = from[k * s.depth_step + c * s.column_step];
        }
      }
    }
  });
}

}  // namespace galley

#endif  // HWY_ONCE
