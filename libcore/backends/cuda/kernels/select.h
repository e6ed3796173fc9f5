#pragma once
// Selection of the largest elements, rows of rotary positions, and resampling of images. A thread computes one line or one element.

#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

/// Whether element a comes before b: larger first, NaN largest, the lower index first among equals.
GALLEY_DEVICE bool comes_first(double a, int64_t index_a, double b, int64_t index_b) {
  const bool nan_a = a != a, nan_b = b != b;
  if (nan_a != nan_b) return nan_a;
  if (!nan_a && a != b) return a > b;
  return index_a < index_b;
}

/// One pass over the line for each result: the first of those that come after the last one.
GALLEY_KERNEL(largest_elements, (const TopkCall call)) {
  for (int64_t line = first_element(); line < call.outer * call.inner; line += all_threads()) {
    const int64_t outer = line / call.inner, inner = line % call.inner, from = outer * call.size * call.inner + inner;
    double last = 0;
    int64_t last_index = -1;
    for (int64_t k = 0; k < call.k; ++k) {
      double best = 0;
      int64_t best_index = -1;
      for (int64_t i = 0; i < call.size; ++i) {
        const double x = load<double>(call.from, from + i * call.inner, call.type);
        if (last_index >= 0 && !comes_first(last, last_index, x, i)) continue;
        if (best_index >= 0 && !comes_first(x, i, best, best_index)) continue;
        best = x;
        best_index = i;
      }
      const int64_t to = (outer * call.k + k) * call.inner + inner;
      store(best, call.values, to, call.type);
      static_cast<int64_t*>(call.indices)[to] = best_index;
      last = best;
      last_index = best_index;
    }
  }
}

GALLEY_KERNEL(rotary_rows, (const RotaryTableCall call)) {
  for (int64_t i = first_element(); i < call.rows * call.pairs; i += all_threads()) {
    const int64_t row = i / call.pairs, pair = i % call.pairs;
    const double position = static_cast<double>(call.positions != nullptr ? call.positions[row] : row);
    const int64_t length = call.lengths != nullptr ? call.lengths[row / call.per_sequence] : 0;
    double angle = position * call.frequencies[pair];
    if (call.limit > 0 && length > call.limit) {
      const double grown = call.growth * static_cast<double>(length) / static_cast<double>(call.limit) - (call.growth - 1);
      angle *= pow(grown, -static_cast<double>(pair) / static_cast<double>(call.pairs - 1));
    }
    call.to[row * 2 * call.pairs + pair] = static_cast<float>(call.factor * cos(angle));
    call.to[(row * 2 + 1) * call.pairs + pair] = static_cast<float>(call.factor * sin(angle));
  }
}

/// The two pixels that a resampled one is made of, and the weight of the second (ops/resize.h).
struct Source {
  int64_t low, high;
  float fraction;
};
GALLEY_DEVICE Source source_of(const ResizeCall& call, int axis, int64_t out) {
  const int64_t in_size = call.in_size[axis], out_size = call.out_size[axis];
  if (call.nearest != 0) {
    const int64_t low = out * in_size / out_size;
    return {low < in_size ? low : in_size - 1, low < in_size ? low : in_size - 1, 0};
  }
  double position = 0;
  if (call.align_corners != 0) {
    position = out_size > 1 ? static_cast<double>(out * (in_size - 1)) / static_cast<double>(out_size - 1) : 0;
  } else {
    position = (static_cast<double>(out) + 0.5) * (static_cast<double>(in_size) / static_cast<double>(out_size)) - 0.5;
    position = position < 0 ? 0 : position;
  }
  int64_t low = static_cast<int64_t>(position);
  low = low < in_size - 1 ? low : in_size - 1;
  return {low, low + 1 < in_size ? low + 1 : low, static_cast<float>(position - static_cast<double>(low))};
}

GALLEY_KERNEL(resize_pixels, (const ResizeCall call)) {
  const int64_t pixels = call.out_size[0] * call.out_size[1];
  for (int64_t i = first_element(); i < call.planes * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, row = i / call.out_size[1] % call.out_size[0], column = i % call.out_size[1];
    const int64_t from = plane / call.channels * call.in_steps[0] + plane % call.channels * call.in_steps[1];
    const int64_t to = plane / call.channels * call.out_steps[0] + plane % call.channels * call.out_steps[1];
    const Source y = source_of(call, 0, row), x = source_of(call, 1, column);
    const auto pixel = [&](int64_t h, int64_t w) {
      return load<double>(call.from, from + h * call.in_steps[2] + w * call.in_steps[3], call.type);
    };
    double value = pixel(y.low, x.low);
    if (call.nearest == 0) {
      const double high = (1.0 - x.fraction) * pixel(y.high, x.low) + x.fraction * pixel(y.high, x.high);
      value = (1.0 - y.fraction) * ((1.0 - x.fraction) * value + x.fraction * pixel(y.low, x.high)) + y.fraction * high;
    }
    store(value, call.to, to + row * call.out_steps[2] + column * call.out_steps[3], call.type);
  }
}

/// The weight with which input pixel `in` is a part of output pixel `out` along an axis.
GALLEY_DEVICE float weight_of(const ResizeCall& call, int axis, int64_t out, int64_t in) {
  const Source source = source_of(call, axis, out);
  return (source.low == in ? 1 - source.fraction : 0) + (source.high == in ? source.fraction : 0);
}
/// The first output pixel that an input pixel may be a part of; `past`: the first after the last one.
GALLEY_DEVICE int64_t reached(const ResizeCall& call, int axis, int64_t in, bool past) {
  const double scale = static_cast<double>(call.out_size[axis]) / static_cast<double>(call.in_size[axis]);
  const int64_t out = static_cast<int64_t>(static_cast<double>(in + (past ? 2 : -2)) * scale) + (past ? 3 : -3);
  return out < 0 ? 0 : out < call.out_size[axis] ? out : call.out_size[axis];
}

/// A thread adds up what reaches one pixel of x.
GALLEY_KERNEL(resize_backward_pixels, (const ResizeCall call)) {
  const int64_t pixels = call.in_size[0] * call.in_size[1];
  for (int64_t i = first_element(); i < call.planes * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, row = i / call.in_size[1] % call.in_size[0], column = i % call.in_size[1];
    const int64_t from = plane / call.channels * call.out_steps[0] + plane % call.channels * call.out_steps[1];
    const int64_t to = plane / call.channels * call.in_steps[0] + plane % call.channels * call.in_steps[1];
    float sum = 0;
    for (int64_t h = reached(call, 0, row, false); h < reached(call, 0, row, true); ++h) {
      const float y = weight_of(call, 0, h, row);
      if (y == 0) continue;
      for (int64_t w = reached(call, 1, column, false); w < reached(call, 1, column, true); ++w) {
        const float x = weight_of(call, 1, w, column);
        if (x != 0) sum += y * x * load<float>(call.from, from + h * call.out_steps[2] + w * call.out_steps[3], call.type);
      }
    }
    store(sum, call.to, to + row * call.in_steps[2] + column * call.in_steps[3], call.type);
  }
}

}  // namespace galley::device
