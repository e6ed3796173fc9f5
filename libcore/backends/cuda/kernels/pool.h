#pragma once
// Pools of images. A thread computes one result; memory traffic bounds them.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

/// What a window covers along one axis, clipped to the image; `size` also counts padding inside the padded image.
struct Range {
  int64_t begin, end, size;
};
GALLEY_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
GALLEY_DEVICE Range window_of(const PoolCall& call, int axis, int64_t o) {
  if (call.kind == kAdaptiveMaxPool || call.kind == kAdaptiveAveragePool) {
    const int64_t in = call.x_size[axis], out = call.y_size[axis], begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    return {begin, end, end - begin};
  }
  const int64_t start = o * call.stride[axis] - call.padding[axis];
  const int64_t end = smaller(start + call.kernel[axis], call.x_size[axis] + call.padding[axis]);
  return {start > 0 ? start : 0, smaller(end, call.x_size[axis]), end - start};
}
GALLEY_DEVICE float divisor_of(const PoolCall& call, const Range& rows, const Range& columns) {
  const bool all = call.kind == kAdaptiveAveragePool || call.count_include_pad != 0;
  return static_cast<float>(all ? rows.size * columns.size : (rows.end - rows.begin) * (columns.end - columns.begin));
}
/// The place of the first pixel of plane n * C + c.
GALLEY_DEVICE int64_t plane_of(const PoolCall& call, int64_t plane, const int64_t* steps) {
  return plane / call.channels * steps[0] + plane % call.channels * steps[1];
}

GALLEY_KERNEL(max_pool, (const PoolCall call)) {
  const int64_t pixels = call.y_size[0] * call.y_size[1];
  for (int64_t i = first_element(); i < call.planes * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, row = i / call.y_size[1] % call.y_size[0], column = i % call.y_size[1];
    const int64_t x = plane_of(call, plane, call.x_steps);
    float best = 0;
    int64_t place = 0;
    bool any = false;
    const auto consider = [&](int64_t h, int64_t w, int64_t number) {
      const float value = load<float>(call.x, x + h * call.x_steps[2] + w * call.x_steps[3], call.type);
      if (any && !(value > best || (value != value && best == best))) return;
      any = true;
      best = value;
      place = number;
    };
    if (call.kind == kMaxPool) {
      for (int64_t kh = 0; kh < call.kernel[0]; ++kh) {
        for (int64_t kw = 0; kw < call.kernel[1]; ++kw) {
          const int64_t h = row * call.stride[0] - call.padding[0] + kh * call.dilation[0],
                        w = column * call.stride[1] - call.padding[1] + kw * call.dilation[1];
          if (h >= 0 && h < call.x_size[0] && w >= 0 && w < call.x_size[1]) consider(h, w, kh * call.kernel[1] + kw);
        }
      }
    } else {
      const Range rows = window_of(call, 0, row), columns = window_of(call, 1, column);
      for (int64_t h = rows.begin; h < rows.end; ++h) {
        for (int64_t w = columns.begin; w < columns.end; ++w) consider(h, w, h * call.x_size[1] + w);
      }
    }
    store(best, call.y, plane_of(call, plane, call.y_steps) + row * call.y_steps[2] + column * call.y_steps[3], call.type);
    store(place, call.index, plane_of(call, plane, call.index_steps) + row * call.index_steps[2] + column * call.index_steps[3],
          call.index_type);
  }
}

GALLEY_KERNEL(average_pool, (const PoolCall call)) {
  const int64_t pixels = call.y_size[0] * call.y_size[1];
  for (int64_t i = first_element(); i < call.planes * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, row = i / call.y_size[1] % call.y_size[0], column = i % call.y_size[1];
    const int64_t x = plane_of(call, plane, call.x_steps);
    const Range rows = window_of(call, 0, row), columns = window_of(call, 1, column);
    float sum = 0;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w)
        sum += load<float>(call.x, x + h * call.x_steps[2] + w * call.x_steps[3], call.type);
    }
    store(sum / divisor_of(call, rows, columns), call.y,
          plane_of(call, plane, call.y_steps) + row * call.y_steps[2] + column * call.y_steps[3], call.type);
  }
}

/// dx (call.y, of the sizes x_size) from dy (call.x, of the sizes y_size): a thread adds up the windows that cover one pixel.
GALLEY_KERNEL(average_pool_backward, (const PoolCall call)) {
  const int64_t pixels = call.x_size[0] * call.x_size[1];
  for (int64_t i = first_element(); i < call.planes * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, row = i / call.x_size[1] % call.x_size[0], column = i % call.x_size[1];
    const int64_t grad = plane_of(call, plane, call.x_steps);
    float sum = 0;
    for (int64_t h = 0; h < call.y_size[0]; ++h) {
      const Range rows = window_of(call, 0, h);
      if (row < rows.begin || row >= rows.end) continue;
      for (int64_t w = 0; w < call.y_size[1]; ++w) {
        const Range columns = window_of(call, 1, w);
        if (column < columns.begin || column >= columns.end) continue;
        sum += load<float>(call.x, grad + h * call.x_steps[2] + w * call.x_steps[3], call.type) / divisor_of(call, rows, columns);
      }
    }
    store(sum, call.y, plane_of(call, plane, call.y_steps) + row * call.y_steps[2] + column * call.y_steps[3], call.type);
  }
}

}  // namespace galley::device
