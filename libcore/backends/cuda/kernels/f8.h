#pragma once
// Operands in f8_e4m3 (tensor/dtype.h) for products by cuBLASLt, and their sums as results; and the same product by own code, on a GPU for
// which the library has no algorithm. Not yet measured.

#include "libcore/backends/cuda/kernels/activations.h"
#include "libcore/backends/cuda/kernels/integer_calls.h"

namespace galley::device {

/// The code of the nearest value, ties to the even one; +-448 beyond it; NaN stays NaN.
GALLEY_DEVICE uint8_t to_f8(float value) {
  Bits from;
  from.number = value;
  const uint32_t sign = from.bits >> 24 & 0x80u;
  from.bits &= 0x7fffffffu;
  if (from.bits > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (from.bits < 0x3c800000u) {  // below 2^-6: a multiple of 2^-9, as sums with 2^14 are
    from.number += 16384.0f;
    return static_cast<uint8_t>(sign | (from.bits - 0x46800000u));
  }
  const uint32_t code = ((from.bits + 0x7ffffu + (from.bits >> 20 & 1u)) >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code < 0x7eu ? code : 0x7eu));
}
GALLEY_DEVICE float from_f8(uint8_t code) {
  const uint32_t size = code & 0x7fu;
  Bits value;
  if (size < 8) {
    value.number = static_cast<float>(size) * 0.001953125f;  // 2^-9
  } else {
    value.bits = size == 0x7fu ? 0x7fc00000u : (size + (120u << 3)) << 20;
  }
  value.bits |= (code & 0x80u) << 24;
  return value.number;
}

GALLEY_KERNEL(round_to_f8_elements, (const RoundToF8Call call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads())
    store_real(call.scale * from_f8(to_f8(load_real(call.from, i, call.type) / call.scale)), call.to, i, call.type);
}

GALLEY_KERNEL(f8_weights, (const F8WeightCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) call.to[i] = call.scale[i / call.row] * from_f8(call.from[i]);
}

/// A thread writes four codes. The host gives less than 2^31 words at once.
GALLEY_KERNEL(pack_f8, (const F8PackCall call)) {
  const auto chunks = static_cast<uint32_t>(call.row / 4), pixels = static_cast<uint32_t>(call.result[0] * call.result[1]);
  const auto words = static_cast<int64_t>(call.size[0]) * pixels * chunks;
  for (int64_t i = first_element(); i < words; i += all_threads()) {
    const auto number = static_cast<uint32_t>(i);
    const uint32_t pixel = number / chunks, place = (number - pixel * chunks) * 4, n = pixel / pixels;
    const auto at = static_cast<int>(pixel - n * pixels), tap = static_cast<int>(place) / call.channels;
    const int channel = static_cast<int>(place) - tap * call.channels, kh = tap / call.kernel[1], kw = tap - kh * call.kernel[1];
    const int h = at / call.result[1], w = at - h * call.result[1];
    const int row = h * call.stride[0] - call.padding[0] + kh * call.dilation[0];
    const int column = w * call.stride[1] - call.padding[1] + kw * call.dilation[1];
    const bool inside = kh < call.kernel[0] && row >= 0 && row < call.size[2] && column >= 0 && column < call.size[3];
    const int64_t from = n * call.steps[0] + row * call.steps[2] + column * call.steps[3];
    uint32_t word = 0;
    for (int j = 0; j < 4; ++j) {
      if (!inside || channel + j >= call.size[1]) break;
      const float x = load_real(call.from, from + (channel + j) * call.steps[1], call.type);
      word |= static_cast<uint32_t>(to_f8(x / call.scale)) << (8 * j);
    }
    call.to[i] = word;
  }
}

/// Weights as rows with zeros for what is added. The host gives less than 2^31 codes.
GALLEY_KERNEL(pack_f8_weights, (const F8PackWeightsCall call)) {
  const auto wide = static_cast<uint32_t>(call.row), channels = static_cast<uint32_t>(call.channels),
             columns = static_cast<uint32_t>(call.size[3]);
  for (int64_t i = first_element(); i < call.outputs * call.row; i += all_threads()) {
    const auto number = static_cast<uint32_t>(i);
    const uint32_t o = number / wide, place = number - o * wide, tap = place / channels, channel = place - tap * channels;
    const uint32_t row = tap / columns, column = tap - row * columns;
    const bool real = o < call.size[0] && channel < call.size[1] && row < call.size[2];
    const int64_t from = o * call.steps[0] + channel * call.steps[1] + row * call.steps[2] + column * call.steps[3];
    call.to[i] = real ? call.from[from] : static_cast<uint8_t>(0);
  }
}

/// A block computes 16 x 16 sums, a thread one.
GALLEY_KERNEL(f8_product_tiles, (const F8ProductCall call)) {
  GALLEY_SHARED(float, a, kF8Tile* kF8Tile);
  GALLEY_SHARED(float, b, kF8Tile* kF8Tile);
  const int thread = static_cast<int>(threadIdx.x), i = thread / kF8Tile, j = thread % kF8Tile;
  const int64_t columns = (call.n + kF8Tile - 1) / kF8Tile, rows = (call.m + kF8Tile - 1) / kF8Tile;
  for (int64_t tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
    const int64_t row = tile / columns * kF8Tile, column = tile % columns * kF8Tile;
    float sum = 0;
    for (int64_t k = 0; k < call.k; k += kF8Tile) {
      a[thread] = row + i < call.m && k + j < call.k ? from_f8(call.a[(row + i) * call.k + k + j]) : 0.0f;
      b[thread] = column + i < call.n && k + j < call.k ? from_f8(call.b[(column + i) * call.k + k + j]) : 0.0f;
      __syncthreads();
      for (int s = 0; s < kF8Tile; ++s) sum += a[i * kF8Tile + s] * b[j * kF8Tile + s];
      __syncthreads();
    }
    if (row + i < call.m && column + j < call.n) call.sums[(row + i) * call.n + column + j] = sum;
  }
}

/// The host gives less than 2^31 results.
GALLEY_KERNEL(f8_results, (const F8ResultCall call)) {
  const auto pixels = static_cast<uint32_t>(call.size[2] * call.size[3]), outputs = static_cast<uint32_t>(call.size[1]),
             columns = static_cast<uint32_t>(call.size[3]), image = outputs * pixels;
  // Neighboring threads compute results that are next to each other in memory.
  const bool channels_inner = call.steps[1] == 1;
  for (int64_t i = first_element(); i < call.size[0] * image; i += all_threads()) {
    const auto number = static_cast<uint32_t>(i);
    const uint32_t n = number / image, rest = number - n * image, outer = rest / (channels_inner ? outputs : pixels);
    const uint32_t inner = rest - outer * (channels_inner ? outputs : pixels), o = channels_inner ? inner : outer,
                   pixel = channels_inner ? outer : inner, row = pixel / columns, column = pixel - row * columns;
    const int64_t y = n * call.steps[0] + o * call.steps[1] + row * call.steps[2] + column * call.steps[3];
    float real = call.sums[(int64_t{n} * pixels + pixel) * call.line + o] * (call.x_scale * call.weight_scale[o]);
    if (call.bias != nullptr) real += call.bias[o];
    if (call.residual != nullptr) real += load_real(call.residual, y, call.type);
    store_real(activated(call.activation, real), call.y, y, call.type);
  }
}

}  // namespace galley::device
