// The transforms of tiles of images, results and gradients. A vector is of channels, so that each is the same few additions on 36 or 16 of
// them; the tiles that reach over the image's edge are copied first, with zeros around.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/kernels/cpu/winograd_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_WINOGRAD_TILES_ONCE
#define GALLEY_WINOGRAD_TILES_ONCE

#include <algorithm>
#include <cstring>

#include "libcore/kernels/cpu/activate.h"
#include "libcore/kernels/cpu/winograd.h"

#endif

#include "libcore/kernels/cpu/winograd_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace galley::winograd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
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

template <bool kWhole>
HWY_INLINE void image_vector(const float* HWY_RESTRICT x, Steps step, int64_t count, float* HWY_RESTRICT to, int64_t position) {
  const Floats d;
  V half[kIn][kIn];
  for (int j = 0; j < kIn; ++j) {
    V in[kIn], out[kIn];
    for (int i = 0; i < kIn; ++i) in[i] = load<kWhole>(x + i * step.row + j * step.column, count);
    image_line(in, out);
    for (int i = 0; i < kIn; ++i) half[i][j] = out[i];
  }
  for (int i = 0; i < kIn; ++i) {
    V out[kIn];
    image_line(half[i], out);
    for (int j = 0; j < kIn; ++j) hn::StoreU(out[j], d, to + (i * kIn + j) * position);
  }
}

void image_tile(const float* x, Steps step, int64_t channels, float* to, int64_t position) {
  int64_t c = 0;
  for (; c + kWide <= channels; c += kWide) image_vector<true>(x + c, step, kWide, to + c, position);
  if (c < channels) image_vector<false>(x + c, step, channels - c, to + c, position);
}

template <bool kWhole>
HWY_INLINE void gradient_vector(const float* HWY_RESTRICT x, Steps step, int64_t count, float* HWY_RESTRICT to, int64_t position) {
  const Floats d;
  V half[kIn][kOut];
  for (int j = 0; j < kOut; ++j) {
    V in[kOut], out[kIn];
    for (int i = 0; i < kOut; ++i) in[i] = load<kWhole>(x + i * step.row + j * step.column, count);
    gradient_line(in, out);
    for (int i = 0; i < kIn; ++i) half[i][j] = out[i];
  }
  for (int i = 0; i < kIn; ++i) {
    V out[kIn];
    gradient_line(half[i], out);
    for (int j = 0; j < kIn; ++j) hn::StoreU(out[j], d, to + (i * kIn + j) * position);
  }
}

void gradient_tile(const float* x, Steps step, int64_t channels, float* to, int64_t position) {
  int64_t c = 0;
  for (; c + kWide <= channels; c += kWide) gradient_vector<true>(x + c, step, kWide, to + c, position);
  if (c < channels) gradient_vector<false>(x + c, step, channels - c, to + c, position);
}

/// kFull: all 16 results exist.
template <bool kWhole, bool kFull>
HWY_INLINE void sums_vector(const ResultTile& t, int64_t c) {
  const Floats d;
  const auto count = static_cast<size_t>(t.channels - c);
  V half[kOut][kIn];
  for (int j = 0; j < kIn; ++j) {
    V in[kIn], out[kOut];
    for (int i = 0; i < kIn; ++i) in[i] = hn::LoadU(d, t.m + c + (i * kIn + j) * t.position);
    result_line(in, out);
    for (int i = 0; i < kOut; ++i) half[i][j] = out[i];
  }
  const V bias = t.bias == nullptr ? hn::Zero(d) : load<kWhole>(t.bias + c, t.channels - c);
  const int64_t rows = kFull ? kOut : t.rows, columns = kFull ? kOut : t.columns;
  for (int64_t i = 0; i < rows; ++i) {
    V out[kOut];
    result_line(half[i], out);
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * t.step.row + j * t.step.column + c;
      V y = hn::Add(out[j], bias);
      if (t.residual != nullptr) y = hn::Add(y, load<kWhole>(t.residual + at, t.channels - c));
      if (t.activation == Activation::kRelu) y = hn::Max(y, hn::Zero(d));
      if constexpr (kWhole) {
        hn::StoreU(y, d, t.y + at);
      } else {
        hn::BlendedStore(y, hn::FirstN(d, count), d, t.y + at);
      }
    }
  }
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

namespace {

/// Copies a window of an image [rows][columns][channels] with zeros beside it.
struct Window {
  const float* image;
  int64_t rows, columns, channels;  // of the image
  int64_t first_row, first_column, size;
  bool inside() const { return first_row >= 0 && first_column >= 0 && first_row + size <= rows && first_column + size <= columns; }
  const float* first() const { return image + (first_row * columns + first_column) * channels; }
  void copy(float* to) const {
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = 0; j < size; ++j, to += channels) {
        const int64_t row = first_row + i, column = first_column + j;
        const bool exists = row >= 0 && row < rows && column >= 0 && column < columns;
        if (exists) {
          std::memcpy(to, image + (row * columns + column) * channels, static_cast<size_t>(channels) * sizeof(float));
        } else {
          std::memset(to, 0, static_cast<size_t>(channels) * sizeof(float));
        }
      }
    }
  }
};

struct Place {
  int64_t image, row, column;  // of the first result
};
Place place_of(const Tiling& t, int64_t index) {
  const int64_t n = index / t.per_image(), in_image = index % t.per_image();
  return {n, in_image / t.across() * kOut, in_image % t.across() * kOut};
}

}  // namespace

void transform_image(const Tiling& t, const float* x, int64_t index, float* edge, float* to, int64_t position) {
  const Place at = place_of(t, index);
  const Window window{x + at.image * t.x_rows * t.x_columns * t.channels, t.x_rows, t.x_columns, t.channels, at.row - t.padding[0], at.column - t.padding[1], kIn};
  if (window.inside()) {
    HWY_DYNAMIC_DISPATCH(image_tile)(window.first(), {t.x_columns * t.channels, t.channels}, t.channels, to, position);
  } else {
    window.copy(edge);
    HWY_DYNAMIC_DISPATCH(image_tile)(edge, {kIn * t.channels, t.channels}, t.channels, to, position);
  }
}

void transform_gradient(const Tiling& t, const float* grad, int64_t index, float* edge, float* to, int64_t position) {
  const Place at = place_of(t, index);
  const Window window{grad + at.image * t.rows * t.columns * t.outputs, t.rows, t.columns, t.outputs, at.row, at.column, kOut};
  if (window.inside()) {
    HWY_DYNAMIC_DISPATCH(gradient_tile)(window.first(), {t.columns * t.outputs, t.outputs}, t.outputs, to, position);
  } else {
    window.copy(edge);
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
