#pragma once
// Operators on integers of 8 bits (ops/quantized.h, ops/quantize.h): exact sums in 32 bits, then one rounding; and weights that are stored
// as integers of 8 or 4 bits.

#include "libcore/backends/cuda/kernels/activations.h"
#include "libcore/backends/cuda/kernels/integer_calls.h"
#include "libcore/backends/cuda/kernels/pool.h"

namespace galley::device {

/// The integer for a number of steps of the scale; NaN becomes the lowest.
GALLEY_DEVICE int bounded(float level, const IntegerMap& map) {
  const float q = level + static_cast<float>(map.zero_point);
  if (!(q > static_cast<float>(map.low))) return map.low;
  return q < static_cast<float>(map.high) ? static_cast<int>(q) : map.high;
}
GALLEY_DEVICE void store_real(float real, const IntegerMap& map, void* to, int64_t i) {
  if (map.type == kF32) {
    static_cast<float*>(to)[i] = real;
  } else {
    store(bounded(round(real / map.scale), map), to, i, map.type);
  }
}
GALLEY_DEVICE int level_of(const void* from, int64_t i, const IntegerMap& map) { return load<int>(from, i, map.type) - map.zero_point; }
GALLEY_DEVICE float real_of(const void* from, int64_t i, const IntegerMap& map) {
  return map.scale * static_cast<float>(level_of(from, i, map));
}

GALLEY_KERNEL(quantize_elements, (const QuantizeCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const float x = load<float>(call.from, i, call.from_map.type);
    store(bounded(round(x / call.to_map.scale), call.to_map), call.to, i, call.to_map.type);
  }
}
GALLEY_KERNEL(dequantize_elements, (const QuantizeCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads())
    static_cast<float*>(call.to)[i] = real_of(call.from, i, call.from_map);
}

/// b has a value for each element, or one for each of [N,C] of an array [N,C,...] of `inner` elements each.
GALLEY_KERNEL(quantized_pairs, (const QuantizedPairCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const float a = real_of(call.a, i, call.a_map);
    int64_t at_b = i;
    if (call.b_step_sample > 0) at_b = i / call.sample * call.b_step_sample + i / call.step_channel % call.channels;
    const float b = real_of(call.b, at_b, call.b_map);
    store_real(activated(call.activation, call.product != 0 ? a * b : a + b), call.to_map, call.to, i);
  }
}

/// The smallest and the largest value of a part of an array, NaN if one is, by the threads of a block.
struct ValueRange {
  float low, high;
};
GALLEY_DEVICE ValueRange wider(ValueRange a, ValueRange b) {
  if (is_nan(a.low)) return a;
  if (is_nan(b.low)) return b;
  return {b.low < a.low ? b.low : a.low, b.high > a.high ? b.high : a.high};
}
GALLEY_DEVICE ValueRange block_range(ValueRange own, float* low, float* high) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  low[thread] = own.low;
  high[thread] = own.high;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    const ValueRange both = wider({low[thread], high[thread]}, {low[thread + half], high[thread + half]});
    low[thread] = both.low;
    high[thread] = both.high;
  }
  __syncthreads();
  return {low[0], high[0]};
}

/// The ranges of the parts of x, a block each, to call.ranges[2 part].
GALLEY_KERNEL(range_parts, (const DynamicQuantizeCall call)) {
  GALLEY_SHARED(float, low, kThreads);
  GALLEY_SHARED(float, high, kThreads);
  const float first = load<float>(call.x, 0, call.type);
  ValueRange own{first, first};
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const float x = load<float>(call.x, i, call.type);
    own = wider(own, {x, x});
  }
  own = block_range(own, low, high);
  if (threadIdx.x == 0) {
    call.ranges[2 * blockIdx.x] = own.low;
    call.ranges[2 * blockIdx.x + 1] = own.high;
  }
}

/// x as integers by the range of the parts (affine_params in tensor/quant_params.h); and the map: scale, zero point, and 0, or NaN if a
/// value is not finite.
GALLEY_KERNEL(quantize_by_range, (const DynamicQuantizeCall call)) {
  GALLEY_SHARED(float, low, kThreads);
  GALLEY_SHARED(float, high, kThreads);
  const int part = static_cast<int>(threadIdx.x) < call.parts ? static_cast<int>(threadIdx.x) : 0;
  const ValueRange all = block_range({call.ranges[2 * part], call.ranges[2 * part + 1]}, low, high);
  const float least = all.low < 0 ? all.low : 0, most = all.high > 0 ? all.high : 0;
  const double spread = static_cast<double>(most) - static_cast<double>(least);
  const float narrow = static_cast<float>(spread), levels = static_cast<float>(call.high);
  const float quotient = narrow - narrow == 0 ? narrow / levels : static_cast<float>(spread / call.high);
  const float smallest = 1.1920928955078125e-7f, scale = quotient > smallest ? quotient : smallest;  // 2^-23
  const float middle = -round(least / scale);
  const int zero = !(middle > 0) ? 0 : middle < levels ? static_cast<int>(middle) : call.high;
  const IntegerMap map{.type = kU8, .scale = scale, .zero_point = zero, .low = 0, .high = call.high};
  for (int64_t i = first_element(); i < call.elements; i += all_threads())
    call.q[i] = static_cast<uint8_t>(bounded(round(load<float>(call.x, i, call.type) / scale), map));
  if (first_element() != 0) return;
  call.map[0] = scale;
  call.map[1] = static_cast<float>(zero);
  call.map[2] = (all.low - all.low) + (all.high - all.high);
}

/// Takes the scale and the zero point that dynamic quantization computed, if any. Returns what each result must add: 0, or NaN if an input
/// is not finite.
GALLEY_DEVICE float take_dynamic_map(const float* map, IntegerMap& x_map) {
  if (map == nullptr) return 0;
  x_map.scale = map[0];
  x_map.zero_point = static_cast<int>(map[1]);
  return map[2];
}

inline constexpr int kIntegerTile = 64, kIntegerSlice = 32, kIntegerPart = 4;

/// y [m,n] = x [m,k] weight [n,k]^T. A block computes a tile of 64 x 64 results, a thread 4 x 4 of them, over slices of 32 integers.
GALLEY_KERNEL(quantized_tiles, (const QuantizedProductCall call)) {
  GALLEY_SHARED(int, a, kIntegerSlice* kIntegerTile);
  GALLEY_SHARED(int, b, kIntegerSlice* kIntegerTile);
  const int64_t columns = (call.n + kIntegerTile - 1) / kIntegerTile, rows = (call.m + kIntegerTile - 1) / kIntegerTile;
  const int thread = static_cast<int>(threadIdx.x), part_row = thread / 16 * kIntegerPart, part_column = thread % 16 * kIntegerPart;
  IntegerMap x_map = call.x_map;
  const float invalid = take_dynamic_map(call.map, x_map);
  for (int64_t tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
    const int64_t row = tile / columns * kIntegerTile, column = tile % columns * kIntegerTile;
    int sums[kIntegerPart][kIntegerPart] = {};
    for (int64_t k = 0; k < call.k; k += kIntegerSlice) {
      for (int i = thread; i < kIntegerSlice * kIntegerTile; i += kThreads) {
        const int slice = i % kIntegerSlice, place = i / kIntegerSlice;
        const bool inside = k + slice < call.k;
        a[slice * kIntegerTile + place] = inside && row + place < call.m ? level_of(call.x, (row + place) * call.k + k + slice, x_map) : 0;
        b[slice * kIntegerTile + place] = inside && column + place < call.n ? call.weight[(column + place) * call.k + k + slice] : 0;
      }
      __syncthreads();
      for (int s = 0; s < kIntegerSlice; ++s) {
        GALLEY_UNROLL
        for (int i = 0; i < kIntegerPart; ++i) {
          GALLEY_UNROLL
          for (int j = 0; j < kIntegerPart; ++j) sums[i][j] += a[s * kIntegerTile + part_row + i] * b[s * kIntegerTile + part_column + j];
        }
      }
      __syncthreads();
    }
    for (int i = 0; i < kIntegerPart; ++i) {
      for (int j = 0; j < kIntegerPart; ++j) {
        const int64_t y_row = row + part_row + i, o = column + part_column + j;
        if (y_row >= call.m || o >= call.n) continue;
        float real = static_cast<float>(sums[i][j]) * (x_map.scale * call.weight_scale[o]);
        if (call.bias != nullptr) real += call.bias[o];
        store_real(activated(call.activation, real) + invalid, call.y_map, call.y, y_row * call.n + o);
      }
    }
  }
}

/// A thread computes one result. Padding has the value of the zero point.
GALLEY_KERNEL(quantized_conv2d_direct, (const QuantizedConvCall call)) {
  const ConvCall& c = call.conv;
  const int64_t elements = c.y_size[0] * c.y_size[1] * c.y_size[2] * c.y_size[3], per_group = c.weight_size[0] / c.groups;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    // Neighboring threads compute channels where they are next to each other.
    const bool channels_last = c.y_steps[1] == 1;
    const int64_t pixels = c.y_size[2] * c.y_size[3];
    const int64_t n = i / (c.y_size[1] * pixels), o = channels_last ? i % c.y_size[1] : i / pixels % c.y_size[1];
    const int64_t pixel = channels_last ? i / c.y_size[1] % pixels : i % pixels, row = pixel / c.y_size[3], column = pixel % c.y_size[3];
    const int64_t first_channel = o / per_group * c.weight_size[1];
    int sum = 0;
    for (int64_t kh = 0; kh < c.weight_size[2]; ++kh) {
      const int64_t h = row * c.stride[0] - c.padding[0] + kh * c.dilation[0];
      if (h < 0 || h >= c.x_size[2]) continue;
      for (int64_t kw = 0; kw < c.weight_size[3]; ++kw) {
        const int64_t w = column * c.stride[1] - c.padding[1] + kw * c.dilation[1];
        if (w < 0 || w >= c.x_size[3]) continue;
        const int64_t x = n * c.x_steps[0] + first_channel * c.x_steps[1] + h * c.x_steps[2] + w * c.x_steps[3];
        const int64_t at = o * c.weight_steps[0] + kh * c.weight_steps[2] + kw * c.weight_steps[3];
        for (int64_t k = 0; k < c.weight_size[1]; ++k)
          sum += level_of(c.x, x + k * c.x_steps[1], call.x_map) * static_cast<const int8_t*>(c.weight)[at + k * c.weight_steps[1]];
      }
    }
    const int64_t y = n * c.y_steps[0] + o * c.y_steps[1] + row * c.y_steps[2] + column * c.y_steps[3];
    float real = static_cast<float>(sum) * (call.x_map.scale * call.weight_scale[o]);
    if (call.bias != nullptr) real += call.bias[o];
    if (call.residual != nullptr) real += real_of(call.residual, y, call.residual_map);
    store_real(activated(call.activation, real), call.y_map, const_cast<void*>(c.y), y);
  }
}

/// A thread computes one mean. Padding has the value 0.
GALLEY_KERNEL(quantized_pool, (const QuantizedPoolCall call)) {
  const PoolCall& p = call.pool;
  const int64_t pixels = p.y_size[0] * p.y_size[1];
  for (int64_t i = first_element(); i < p.planes * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, row = i / p.y_size[1] % p.y_size[0], column = i % p.y_size[1], x = plane_of(p, plane, p.x_steps);
    const Range rows = window_of(p, 0, static_cast<int>(row)), columns = window_of(p, 1, static_cast<int>(column));
    int sum = 0;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) sum += level_of(p.x, x + h * p.x_steps[2] + w * p.x_steps[3], call.x_map);
    }
    store_real(static_cast<float>(sum) * call.x_map.scale / divisor_of(p, rows, columns), call.y_map, p.y,
               plane_of(p, plane, p.y_steps) + row * p.y_steps[2] + column * p.y_steps[3]);
  }
}

/// Weight i of row o: an integer of 8 bits, or of 4 bits, two in a byte, the low one first. Zero points are subtracted.
GALLEY_DEVICE float stored_weight(const StoredWeight& stored, int64_t o, int64_t i, int64_t last) {
  int q = 0;
  if (stored.bits == 8) {
    q = static_cast<const int8_t*>(stored.weight)[o * stored.row + i];
  } else {  // rows of the last axis are packed each
    const int64_t line = i / last, column = i % last;
    const int byte = static_cast<const uint8_t*>(stored.weight)[(o * (stored.row / last) + line) * ((last + 1) / 2) + column / 2];
    q = column % 2 != 0 ? byte >> 4 : byte & 15;
    q = q < 8 ? q : q - 16;
  }
  const int64_t group = o * stored.groups + i / stored.group;
  if (stored.zero_point != nullptr) q -= stored.zero_point[group];
  return static_cast<float>(q) * stored.scale[group];
}

inline constexpr int kStoredChunk = 8;  // weights that a thread reads at once

/// Weights i .. i + 7 of row o, where rows and groups are multiples of 8: one read, one scale.
GALLEY_DEVICE void stored_chunk(const StoredWeight& stored, int64_t o, int64_t i, float* weights) {
  const int64_t group = o * stored.groups + i / stored.group;
  const float scale = stored.scale[group];
  const int zero = stored.zero_point != nullptr ? stored.zero_point[group] : 0;
  if (stored.bits == 8) {
    const uint64_t bytes = static_cast<const uint64_t*>(stored.weight)[(o * stored.row + i) / 8];
    GALLEY_UNROLL
    for (int j = 0; j < kStoredChunk; ++j) weights[j] = static_cast<float>(static_cast<int8_t>(bytes >> (8 * j) & 255u) - zero) * scale;
  } else {
    const uint32_t halves = static_cast<const uint32_t*>(stored.weight)[(o * stored.row + i) / 8];
    GALLEY_UNROLL
    for (int j = 0; j < kStoredChunk; ++j) {
      const int q = static_cast<int>(halves >> (4 * j) & 15u);
      weights[j] = static_cast<float>((q < 8 ? q : q - 16) - zero) * scale;
    }
  }
}

/// A warp computes one column of the result, for all rows, so that each weight is read once.
GALLEY_KERNEL(stored_linear_rows, (const StoredLinearCall call)) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const StoredWeight& stored = call.stored;
  const bool chunks = stored.row % kStoredChunk == 0 && (stored.groups == 1 || stored.group % kStoredChunk == 0);
  for (int64_t o = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / kWarp; o < call.outputs;
       o += static_cast<int64_t>(gridDim.x) * kWarps) {
    float sums[kMostStoredRows] = {};
    for (int64_t i = lane * kStoredChunk; i < stored.row; i += kWarp * kStoredChunk) {
      float weights[kStoredChunk] = {};
      const int count = stored.row - i < kStoredChunk ? static_cast<int>(stored.row - i) : kStoredChunk;
      if (chunks) {
        stored_chunk(stored, o, i, weights);
      } else {
        for (int j = 0; j < count; ++j) weights[j] = stored_weight(stored, o, i + j, stored.row);
      }
      GALLEY_UNROLL
      for (int r = 0; r < kMostStoredRows; ++r) {
        if (r >= call.rows) break;
        for (int j = 0; j < count; ++j) sums[r] += weights[j] * call.x[r * stored.row + i + j];
      }
    }
    GALLEY_UNROLL
    for (int r = 0; r < kMostStoredRows; ++r) {
      if (r >= call.rows) break;
      float sum = sums[r];
      for (int other = kWarp / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
      if (lane == 0) call.y[r * call.outputs + o] = activated(call.activation, call.bias != nullptr ? sum + call.bias[o] : sum);
    }
  }
}

GALLEY_KERNEL(stored_weights, (const StoredWeightCall call)) {
  const int64_t elements = call.rows * call.stored.row;
  for (int64_t i = first_element(); i < elements; i += all_threads())
    static_cast<float*>(call.to)[i] = stored_weight(call.stored, i / call.stored.row, i % call.stored.row, call.last);
}

}  // namespace galley::device
