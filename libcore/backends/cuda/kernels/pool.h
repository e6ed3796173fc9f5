#pragma once
// Pools of images. A thread computes a pixel of one channel, or of a pack of channels where these are beside each other. Memory traffic
// bounds them. Backward kernels gather what reaches a pixel of x, in the order of windows.

#include "libcore/backends/cuda/kernels/channels.h"

namespace galley::device {

GALLEY_DEVICE int smaller(int a, int b) { return a < b ? a : b; }
GALLEY_DEVICE int size_of(int64_t size) { return static_cast<int>(size); }
GALLEY_DEVICE bool is_adaptive(const PoolCall& call) { return call.kind == kAdaptiveMaxPool || call.kind == kAdaptiveAveragePool; }

/// What a window covers along one axis, clipped to the image; `size` also counts padding inside the padded image.
struct Range {
  int begin, end, size;
};
GALLEY_DEVICE Range window_of(const PoolCall& call, int axis, int o) {
  const int in = size_of(call.x_size[axis]), padding = size_of(call.padding[axis]);
  if (is_adaptive(call)) {
    const int out = size_of(call.y_size[axis]), begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    return {begin, end, end - begin};
  }
  const int start = o * size_of(call.stride[axis]) - padding, end = smaller(start + size_of(call.kernel[axis]), in + padding);
  return {start > 0 ? start : 0, smaller(end, in), end - start};
}
GALLEY_DEVICE float divisor_of(const PoolCall& call, const Range& rows, const Range& columns) {
  const bool all = call.kind == kAdaptiveAveragePool || call.count_include_pad != 0;
  return static_cast<float>(all ? rows.size * columns.size : (rows.end - rows.begin) * (columns.end - columns.begin));
}
/// The windows that may cover a place along one axis. `span`: the elements from the first to the last of a window.
GALLEY_DEVICE Range windows_over(const PoolCall& call, int axis, int place, int span) {
  const int in = size_of(call.x_size[axis]), out = size_of(call.y_size[axis]);
  if (is_adaptive(call)) return {place * out / in, ((place + 1) * out + in - 1) / in, 0};
  const int stride = size_of(call.stride[axis]), last = place + size_of(call.padding[axis]), first = last - span + 1;
  return {first > 0 ? (first + stride - 1) / stride : 0, smaller(last / stride + 1, out), 0};
}

/// The place of the first pixel of plane n * C + c.
GALLEY_DEVICE int64_t plane_of(const PoolCall& call, int64_t plane, const int64_t* steps) {
  return plane / call.channels * steps[0] + plane % call.channels * steps[1];
}

/// The pixel of a thread, and its first channel.
struct PoolCell {
  int sample, channel, row, column;
};
GALLEY_DEVICE PoolCell pool_cell(const PoolCall& call, uint32_t i, int width) {
  const uint32_t a = quotient(i, call.sizes[0]), b = quotient(a, call.sizes[1]), c = quotient(b, call.sizes[2]);
  const int first = static_cast<int>(i - a * call.sizes[0].value), second = static_cast<int>(a - b * call.sizes[1].value),
            third = static_cast<int>(b - c * call.sizes[2].value), sample = static_cast<int>(c);
  return call.channels_inner != 0 ? PoolCell{sample, first * width, third, second} : PoolCell{sample, third, second, first};
}
/// The place of the channel in the image's first pixel, and the place of a pixel after that.
GALLEY_DEVICE int image_of(const PoolCell& cell, const int64_t* steps) {
  return cell.sample * size_of(steps[0]) + cell.channel * size_of(steps[1]);
}
GALLEY_DEVICE int pixel_of(int row, int column, const int64_t* steps) { return row * size_of(steps[2]) + column * size_of(steps[3]); }

/// Elements as they are in memory; single ones may be integers.
template <int kWidth, Type kType>
GALLEY_DEVICE Unit<kWidth, kType> read_pixel(const void* array, int64_t i, Type type) {
  if constexpr (kWidth == 1) return {load<float>(array, i, type)};
  if constexpr (kWidth == kPack) return read_unit<kWidth, kType>(array, i, type);
}

struct alignas(8) IndexWord {
  uint32_t bits[2];
};
/// Indices as they are in memory, packs in u8 (kShort) or i32.
template <int kWidth, bool kShort>
struct Indices {
  uint32_t bits[kWidth == 1 ? 1 : kShort ? 2 : kPack];
  GALLEY_DEVICE int at(int j) const { return static_cast<int>(kWidth == kPack && kShort ? bits[j / 4] >> (j % 4 * 8) & 0xffu : bits[j]); }
};
template <int kWidth, bool kShort>
GALLEY_DEVICE Indices<kWidth, kShort> read_indices(const void* array, int64_t i, Type type) {
  Indices<kWidth, kShort> indices;
  if constexpr (kWidth == 1) {
    indices.bits[0] = static_cast<uint32_t>(load<int>(array, i, type));
  } else if constexpr (kShort) {
    const IndexWord word = *reinterpret_cast<const IndexWord*>(static_cast<const uint8_t*>(array) + i);
    indices.bits[0] = word.bits[0];
    indices.bits[1] = word.bits[1];
  } else {
    const Word* words = reinterpret_cast<const Word*>(static_cast<const int32_t*>(array) + i);
    const Word first = words[0], second = words[1];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) indices.bits[j] = j < 4 ? first.bits[j % 4] : second.bits[j % 4];
  }
  return indices;
}
template <int kWidth, bool kShort>
GALLEY_DEVICE void write_indices(const int (&index)[kWidth], void* array, int64_t i, Type type) {
  if constexpr (kWidth == 1) {
    store(index[0], array, i, type);
  } else if constexpr (kShort) {
    IndexWord word{{0, 0}};
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) word.bits[j / 4] |= static_cast<uint32_t>(index[j]) << (j % 4 * 8);
    *reinterpret_cast<IndexWord*>(static_cast<uint8_t*>(array) + i) = word;
  } else {
    Word first, second;
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) {
      first.bits[j] = static_cast<uint32_t>(index[j]);
      second.bits[j] = static_cast<uint32_t>(index[j + kWidth / 2]);
    }
    Word* words = reinterpret_cast<Word*>(static_cast<int32_t*>(array) + i);
    words[0] = first;
    words[1] = second;
  }
}

/// Calls F::run<width, type, kShort>(call).
template <class F, bool kShort>
GALLEY_DEVICE void pool_by_type(const PoolCall& call) {
  if (call.type == kBF16) return F::template run<kPack, kBF16, kShort>(call);
  if (call.type == kF16) return F::template run<kPack, kF16, kShort>(call);
  F::template run<kPack, kF32, kShort>(call);
}
/// The same for pools with indices; kShort: in u8.
template <class F>
GALLEY_DEVICE void pool_by_indices(const PoolCall& call) {
  if (call.packs == 0) return F::template run<1, kF32, false>(call);
  if (call.index_type == kU8) return pool_by_type<F, true>(call);
  pool_by_type<F, false>(call);
}

inline constexpr int kTapsAtOnce = 3;  // that a thread reads before it uses one

struct MaxPoolCells {
  template <int kWidth, Type kType, bool kShort>
  GALLEY_DEVICE static void run(const PoolCall& call) {
    const bool adaptive = is_adaptive(call);
    const int row_step = adaptive ? 1 : size_of(call.dilation[0]), column_step = adaptive ? 1 : size_of(call.dilation[1]);
    for (int64_t i = first_element(); i < call.cells; i += all_threads()) {
      const PoolCell cell = pool_cell(call, static_cast<uint32_t>(i), kWidth);
      const int x = image_of(cell, call.x_steps);
      int top = cell.row * size_of(call.stride[0]) - size_of(call.padding[0]),
          left = cell.column * size_of(call.stride[1]) - size_of(call.padding[1]), high = size_of(call.kernel[0]),
          wide = size_of(call.kernel[1]);
      if (adaptive) {
        const Range rows = window_of(call, 0, cell.row), columns = window_of(call, 1, cell.column);
        top = rows.begin;
        high = rows.size;
        left = columns.begin;
        wide = columns.size;
      }
      float best[kWidth];
      int place[kWidth];
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        best[j] = 0;
        place[j] = 0;
      }
      bool any = false;
      for (int kh = 0, h = top; kh < high; ++kh, h += row_step) {
        if (h < 0 || h >= size_of(call.x_size[0])) continue;
        for (int first = 0; first < wide; first += kTapsAtOnce) {
          Unit<kWidth, kType> units[kTapsAtOnce];
          bool inside[kTapsAtOnce];
          GALLEY_UNROLL
          for (int t = 0; t < kTapsAtOnce; ++t) {
            const int w = left + (first + t) * column_step;
            inside[t] = first + t < wide && w >= 0 && w < size_of(call.x_size[1]);
            if (inside[t]) units[t] = read_pixel<kWidth, kType>(call.x, x + pixel_of(h, w, call.x_steps), call.type);
          }
          GALLEY_KEEP_ORDER();
          GALLEY_UNROLL
          for (int t = 0; t < kTapsAtOnce; ++t) {
            if (!inside[t]) continue;
            float value[kWidth];
            unpack(units[t], value);
            const int number = adaptive ? h * size_of(call.x_size[1]) + left + first + t : kh * wide + first + t;
            GALLEY_UNROLL
            for (int j = 0; j < kWidth; ++j) {
              const bool better = !any || value[j] > best[j] || (value[j] != value[j] && best[j] == best[j]);
              best[j] = better ? value[j] : best[j];
              place[j] = better ? number : place[j];
            }
            any = true;
          }
        }
      }
      store_channels(best, call.y, image_of(cell, call.y_steps) + pixel_of(cell.row, cell.column, call.y_steps), call.type);
      write_indices<kWidth, kShort>(place, call.index, image_of(cell, call.index_steps) + pixel_of(cell.row, cell.column, call.index_steps),
                                    call.index_type);
    }
  }
};
GALLEY_KERNEL_OF(3, max_pool, (const PoolCall call)) { pool_by_indices<MaxPoolCells>(call); }

struct MaxPoolBackwardCells {
  template <int kWidth, Type kType, bool kShort>
  GALLEY_DEVICE static void run(const PoolCall& call) {
    constexpr int kAtOnce = kWidth == 1 || (kShort && kType != kF32) ? 4
                            : kShort                                 ? 2
                                                                     : 1;  // windows that a thread reads before it uses one
    const bool adaptive = is_adaptive(call);
    const int row_step = size_of(call.dilation[0]), column_step = size_of(call.dilation[1]);
    const int high = (size_of(call.kernel[0]) - 1) * row_step + 1, wide = (size_of(call.kernel[1]) - 1) * column_step + 1;
    for (int64_t i = first_element(); i < call.cells; i += all_threads()) {
      const PoolCell cell = pool_cell(call, static_cast<uint32_t>(i), kWidth);
      const int grad = image_of(cell, call.x_steps), indices = image_of(cell, call.index_steps);
      const Range rows = windows_over(call, 0, cell.row, high), columns = windows_over(call, 1, cell.column, wide);
      float sum[kWidth];
      set_all(sum, 0);
      const auto tap_of = [&](int axis, int pixel, int window, int step) {  // -1: between taps
        const int tap = pixel + size_of(call.padding[axis]) - window * size_of(call.stride[axis]);
        return adaptive || step == 1 ? tap : tap % step == 0 ? tap / step : -1;
      };
      int h = rows.begin, w = columns.begin;
      while (h < rows.end && w < columns.end) {
        Indices<kWidth, kShort> index[kAtOnce];
        Unit<kWidth, kType> units[kAtOnce];
        int own[kAtOnce];
        GALLEY_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          own[u] = -1;
          if (h >= rows.end) continue;
          const int kh = tap_of(0, cell.row, h, row_step), kw = tap_of(1, cell.column, w, column_step);
          if (adaptive) {
            own[u] = cell.row * size_of(call.x_size[1]) + cell.column;
          } else if (kh >= 0 && kw >= 0) {
            own[u] = kh * size_of(call.kernel[1]) + kw;
          }
          if (own[u] >= 0) {
            index[u] = read_indices<kWidth, kShort>(call.index, indices + pixel_of(h, w, call.index_steps), call.index_type);
            units[u] = read_pixel<kWidth, kType>(call.x, grad + pixel_of(h, w, call.x_steps), call.type);
          }
          if (++w == columns.end) {
            w = columns.begin;
            ++h;
          }
        }
        GALLEY_KEEP_ORDER();
        GALLEY_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          if (own[u] < 0) continue;
          float value[kWidth];
          unpack(units[u], value);
          GALLEY_UNROLL
          for (int j = 0; j < kWidth; ++j) sum[j] += index[u].at(j) == own[u] ? value[j] : 0.0f;
        }
      }
      store_channels(sum, call.y, image_of(cell, call.y_steps) + pixel_of(cell.row, cell.column, call.y_steps), call.type);
    }
  }
};
/// dx (call.y, of the sizes x_size) from dy (call.x, of the sizes y_size) and the index of each window.
GALLEY_KERNEL_OF(3, max_pool_backward, (const PoolCall call)) { pool_by_indices<MaxPoolBackwardCells>(call); }

struct AveragePoolCells {
  template <int kWidth, Type kType, bool kShort>
  GALLEY_DEVICE static void run(const PoolCall& call) {
    for (int64_t i = first_element(); i < call.cells; i += all_threads()) {
      const PoolCell cell = pool_cell(call, static_cast<uint32_t>(i), kWidth);
      const int x = image_of(cell, call.x_steps);
      const Range rows = window_of(call, 0, cell.row), columns = window_of(call, 1, cell.column);
      float sum[kWidth];
      set_all(sum, 0);
      for (int h = rows.begin; h < rows.end; ++h) {
        GALLEY_UNROLL_BY_4
        for (int w = columns.begin; w < columns.end; ++w) {
          float value[kWidth];
          load_channels(call.x, x + pixel_of(h, w, call.x_steps), call.type, value);
          GALLEY_UNROLL
          for (int j = 0; j < kWidth; ++j) sum[j] += value[j];
        }
      }
      const float divisor = divisor_of(call, rows, columns);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) sum[j] /= divisor;
      store_channels(sum, call.y, image_of(cell, call.y_steps) + pixel_of(cell.row, cell.column, call.y_steps), call.type);
    }
  }
};
GALLEY_KERNEL_OF(4, average_pool, (const PoolCall call)) {
  if (call.packs == 0) return AveragePoolCells::run<1, kF32, false>(call);
  pool_by_type<AveragePoolCells, false>(call);
}

struct AveragePoolBackwardCells {
  template <int kWidth, Type kType, bool kShort>
  GALLEY_DEVICE static void run(const PoolCall& call) {
    const int high = size_of(call.kernel[0]), wide = size_of(call.kernel[1]);
    for (int64_t i = first_element(); i < call.cells; i += all_threads()) {
      const PoolCell cell = pool_cell(call, static_cast<uint32_t>(i), kWidth);
      const int grad = image_of(cell, call.x_steps);
      const Range over_rows = windows_over(call, 0, cell.row, high), over_columns = windows_over(call, 1, cell.column, wide);
      float sum[kWidth];
      set_all(sum, 0);
      for (int h = over_rows.begin; h < over_rows.end; ++h) {
        const Range rows = window_of(call, 0, h);
        for (int w = over_columns.begin; w < over_columns.end; ++w) {
          const float divisor = divisor_of(call, rows, window_of(call, 1, w));
          float value[kWidth];
          load_channels(call.x, grad + pixel_of(h, w, call.x_steps), call.type, value);
          GALLEY_UNROLL
          for (int j = 0; j < kWidth; ++j) sum[j] += value[j] / divisor;
        }
      }
      store_channels(sum, call.y, image_of(cell, call.y_steps) + pixel_of(cell.row, cell.column, call.y_steps), call.type);
    }
  }
};
/// dx (call.y, of the sizes x_size) from dy (call.x, of the sizes y_size).
GALLEY_KERNEL(average_pool_backward, (const PoolCall call)) {
  if (call.packs == 0) return AveragePoolBackwardCells::run<1, kF32, false>(call);
  pool_by_type<AveragePoolBackwardCells, false>(call);
}

}  // namespace galley::device
