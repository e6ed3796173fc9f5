// The transforms of tiles of images, results and gradients. A vector holds channels, so a transform is the same few additions on 36 or 16
// vectors. Tiles that extend over the edge of the image are first copied with zeros around them. Stores to 36 places bound it.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/winograd_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_WINOGRAD_TILES_ONCE
#define GALLEY_WINOGRAD_TILES_ONCE

#include <algorithm>
#include <cstring>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/winograd.h"

#endif

#include "libcore/backends/cpu/winograd_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace galley::winograd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
// Never called: has_wide_vectors.
void image_tile(const float*, Steps, int64_t, float*, int64_t) {}
void sums_tile(const ResultTile&) {}
void gradient_tile(const float*, Steps, int64_t, float*, int64_t) {}
#else

template <bool kWhole>
HWY_INLINE V load(const float* from, int64_t count) {
  if constexpr (kWhole) return hn::LoadU(Floats(), from);
  return hn::MaskedLoad(hn::FirstN(Floats(), static_cast<size_t>(count)), Floats(), from);
}

/// Tiles of an image or a gradient, a vector of channels after the other.
template <int64_t kFrom>
HWY_INLINE void read_tile(void (*line)(const V (&)[kFrom], V (&)[kIn]), const float* x, Steps step, int64_t channels, float* to,
                          int64_t position) {
  const Floats d;
  const auto at = [=](int64_t i, int64_t j, int64_t c) HWY_ATTR { return x + i * step.row + j * step.column + c; };
  int64_t c = 0;
  const auto store = [&](int64_t i, int64_t j, V value) HWY_ATTR { hn::StoreU(value, d, to + (i * kIn + j) * position + c); };
  for (; c + kWide <= channels; c += kWide) {
    transform_tile(line, [&](int64_t i, int64_t j) HWY_ATTR { return hn::LoadU(d, at(i, j, c)); }, store);
  }
  if (c < channels) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(channels - c));
    transform_tile(line, [&](int64_t i, int64_t j) HWY_ATTR { return hn::MaskedLoad(mask, d, at(i, j, c)); }, store);
  }
}

void image_tile(const float* x, Steps step, int64_t channels, float* to, int64_t position) {
  read_tile<kIn>(image_line, x, step, channels, to, position);
}
void gradient_tile(const float* x, Steps step, int64_t channels, float* to, int64_t position) {
  read_tile<kOut>(gradient_line, x, step, channels, to, position);
}

/// kFull: all 16 results exist.
template <bool kWhole, bool kFull>
HWY_INLINE void sums_vector(const ResultTile& t, int64_t c) {
  const Floats d;
  const auto count = static_cast<size_t>(t.channels - c);
  const V bias = t.bias == nullptr ? hn::Zero(d) : load<kWhole>(t.bias + c, t.channels - c);
  transform_tile(
      result_line, [&](int64_t i, int64_t j) HWY_ATTR { return hn::LoadU(d, t.m + c + (i * kIn + j) * t.position); },
      [&](int64_t i, int64_t j, V y) HWY_ATTR {
        if (!kFull && (i >= t.rows || j >= t.columns)) return;
        const int64_t at = i * t.step.row + j * t.step.column + c;
        y = hn::Add(y, bias);
        if (t.residual != nullptr) y = hn::Add(y, load<kWhole>(t.residual + at, t.channels - c));
        if (t.activation == Activation::kRelu)
          y = hn::IfThenZeroElse(hn::Lt(y, hn::Zero(d)), y);  // NaN passes through; a maximum would hide it
        if constexpr (kWhole) {
          hn::StoreU(y, d, t.y + at);
        } else {
          hn::BlendedStore(y, hn::FirstN(d, count), d, t.y + at);
        }
      });
}

template <bool kFull>
void sums_tile_of(const ResultTile& t) {
  int64_t c = 0;
  for (; c + kWide <= t.channels; c += kWide) sums_vector<true, kFull>(t, c);
  if (c < t.channels) sums_vector<false, kFull>(t, c);
}

void sums_tile(const ResultTile& t) {
  if (t.rows == kOut && t.columns == kOut) {
    sums_tile_of<true>(t);
  } else {
    sums_tile_of<false>(t);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::winograd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::winograd {

HWY_EXPORT(image_tile);
HWY_EXPORT(gradient_tile);
HWY_EXPORT(sums_tile);

void transform_image(const Tiling& t, const float* x, int64_t index, float* edge, float* to, int64_t position) {
  const Place at = place_of(t, index);
  const Window<float> window{x + at.image * t.x_rows * t.x_columns * t.channels,
                             t.x_rows,
                             t.x_columns,
                             t.channels,
                             at.row - t.padding[0],
                             at.column - t.padding[1],
                             kIn};
  if (window.inside()) {
    HWY_DYNAMIC_DISPATCH(image_tile)(window.first(), {t.x_columns * t.channels, t.channels}, t.channels, to, position);
  } else {
    window.copy(edge, 0, t.channels);
    HWY_DYNAMIC_DISPATCH(image_tile)(edge, {kIn * t.channels, t.channels}, t.channels, to, position);
  }
}

void transform_gradient(const Tiling& t, const float* grad, int64_t index, float* edge, float* to, int64_t position) {
  const Place at = place_of(t, index);
  const Window<float> window{grad + at.image * t.rows * t.columns * t.outputs, t.rows, t.columns, t.outputs, at.row, at.column, kOut};
  if (window.inside()) {
    HWY_DYNAMIC_DISPATCH(gradient_tile)(window.first(), {t.columns * t.outputs, t.outputs}, t.outputs, to, position);
  } else {
    window.copy(edge, 0, t.outputs);
    HWY_DYNAMIC_DISPATCH(gradient_tile)(edge, {kOut * t.outputs, t.outputs}, t.outputs, to, position);
  }
}

ResultTile result_tile(const Tiling& t, int64_t index, float* y, const float* residual) {
  const Place at = place_of(t, index);
  const int64_t first = ((at.image * t.rows + at.row) * t.columns + at.column) * t.outputs;
  ResultTile tile{};
  tile.y = y + first;
  tile.residual = residual == nullptr ? nullptr : residual + first;
  tile.step = {t.columns * t.outputs, t.outputs};
  tile.rows = std::min(kOut, t.rows - at.row);
  tile.columns = std::min(kOut, t.columns - at.column);
  tile.channels = t.outputs;
  return tile;
}

void transform_result(const ResultTile& tile) {
  HWY_DYNAMIC_DISPATCH(sums_tile)(tile);
  if (tile.activation == Activation::kNone || tile.activation == Activation::kRelu) return;
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < tile.columns; ++j) activate(tile.activation, tile.y + i * tile.step.row + j * tile.step.column, tile.channels);
  }
}

bool has_wide_vectors() { return (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) != 0; }

}  // namespace galley::winograd

#endif  // HWY_ONCE
