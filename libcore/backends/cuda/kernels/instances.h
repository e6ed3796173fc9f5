#pragma once
// The largest pixels of regions (ops/roi_pool.h), and what detectors of instances compute besides layers (ops/instances.h).

#include "libcore/backends/cuda/kernels/sampling.h"
#include "libcore/backends/cuda/kernels/vision_calls.h"

namespace galley::device {

/// The pixels [begin, end) of a bin along an axis: roi_pixels of ops/roi_pool.h in floats.
struct RoiPixels {
  int64_t begin, end;
};
GALLEY_DEVICE double half_away(float x) { return x < 0 ? -floor(-static_cast<double>(x) + 0.5) : floor(static_cast<double>(x) + 0.5); }
GALLEY_DEVICE RoiPixels roi_pixels(float low, float high, float scale, int64_t bin, int64_t bins, int64_t size) {
  const float first = static_cast<float>(half_away(low * scale)), last = static_cast<float>(half_away(high * scale));
  const float width = at_least(last - first + 1, 1.0f) / static_cast<float>(bins);
  const float upper = static_cast<float>(bin + 1) * width, whole = floor(upper);
  const float begin = floor(static_cast<float>(bin) * width) + first, end = (whole < upper ? whole + 1 : whole) + first;
  if (!(begin < end)) return {0, 0};
  const auto pixel = [&](float at) { return static_cast<int64_t>(at_most(at_least(at, 0.0f), static_cast<float>(size))); };
  return {pixel(begin), pixel(end)};
}

GALLEY_KERNEL(roi_pool_bins, (const RoiPoolCall call)) {
  const int64_t bins = call.bins[0] * call.bins[1];
  for (int64_t i = first_element(); i < call.samples * call.rows * call.channels * bins; i += all_threads()) {
    const int64_t column = i % call.bins[1], row = i / call.bins[1] % call.bins[0], c = i / bins % call.channels;
    const int64_t region = i / (bins * call.channels);
    const float* box = call.boxes + 4 * region;
    const RoiPixels rows = roi_pixels(box[1], box[3], call.scale, row, call.bins[0], call.size[0]),
                    columns = roi_pixels(box[0], box[2], call.scale, column, call.bins[1], call.size[1]);
    const float* x = call.x + region / call.rows * call.steps[0] + c * call.steps[1];
    int64_t best = -1;
    float largest = 0;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const float value = x[h * call.steps[2] + w * call.steps[3]];
        if (best >= 0 && !(value > largest)) continue;
        largest = value;
        best = h * call.size[1] + w;
      }
    }
    call.y[i] = largest;
    call.index[i] = best;
  }
}

GALLEY_KERNEL(mask_target_cells, (const InstanceCall call)) {
  const int64_t cells = call.size * call.size;
  for (int64_t i = first_element(); i < call.regions * cells; i += all_threads()) {
    const int64_t region = i / cells, object = call.object[region];
    float sum = 0;
    if (object >= 0 && object < call.objects) {
      const float* box = call.boxes + 4 * region;
      const RoiAxis across = roi_axis(1, false, 0, box[0], box[2], call.size), down = roi_axis(1, false, 0, box[1], box[3], call.size);
      const uint8_t* mask = call.masks + object * call.height * call.width;
      for (int64_t s = 0; s < down.samples; ++s) {
        const RoiSample h = roi_sample(position_of(down, i / call.size % call.size, s), call.height);
        for (int64_t t = 0; h.inside && t < across.samples; ++t) {
          const RoiSample w = roi_sample(position_of(across, i % call.size, t), call.width);
          if (!w.inside) continue;
          const auto between = [&](int64_t line) {
            const uint8_t* pixels = mask + line * call.width;
            return static_cast<float>(pixels[w.low]) * (1 - w.fraction) + static_cast<float>(pixels[w.high]) * w.fraction;
          };
          sum += between(h.low) * (1 - h.fraction) + between(h.high) * h.fraction;
        }
      }
      sum *= roi_share(down, across);
    }
    call.to[i] = sum;
  }
}

/// The cell along an axis that holds a coordinate; -1: it is outside.
GALLEY_DEVICE int64_t cell_of(float at, float low, float high, int64_t size) {
  if (at == high) return size - 1;
  const double share = static_cast<double>(size) / (static_cast<double>(high) - static_cast<double>(low));
  const double place = floor((static_cast<double>(at) - static_cast<double>(low)) * share);
  return place >= 0 && place < static_cast<double>(size) ? static_cast<int64_t>(place) : -1;
}

GALLEY_KERNEL(keypoint_cell_points, (const InstanceCall call)) {
  for (int64_t i = first_element(); i < call.regions * call.points; i += all_threads()) {
    const int64_t region = i / call.points, object = call.object[region];
    int64_t cell = -100;  // kNoCell
    if (object >= 0 && object < call.objects) {
      const float *box = call.boxes + 4 * region, *point = call.keypoints + 3 * (object * call.points + i % call.points);
      const int64_t column = cell_of(point[0], box[0], box[2], call.size), row = cell_of(point[1], box[1], box[3], call.size);
      if (point[2] > 0 && row >= 0 && column >= 0) cell = row * call.size + column;
    }
    call.cells[i] = cell;
  }
}

/// The four pixels of bicubic interpolation (a = -0.75) along an axis, and their weights.
struct CubicTaps {
  int64_t at[4];
  double weight[4];
};
GALLEY_DEVICE CubicTaps cubic_taps(int64_t i, int64_t in, int64_t out) {
  const double position = (static_cast<double>(i) + 0.5) * (static_cast<double>(in) / static_cast<double>(out)) - 0.5;
  const double begin = floor(position), t = position - begin;
  const auto near = [](double x) { return (1.25 * x - 2.25) * x * x + 1; };
  const auto far = [](double x) { return ((-0.75 * x + 3.75) * x - 6) * x + 3; };
  CubicTaps taps{{}, {far(t + 1), near(t), near(1 - t), far(2 - t)}};
  for (int k = 0; k < 4; ++k) {
    const int64_t pixel = static_cast<int64_t>(begin) - 1 + k;
    taps.at[k] = pixel < 0 ? 0 : pixel < in ? pixel : in - 1;
  }
  return taps;
}

/// A block for each heat map: the largest pixel of the map, resized to its box; of equal ones the first.
GALLEY_KERNEL(locate_keypoint_maps, (const InstanceCall call)) {
  GALLEY_SHARED(double, values, kThreads);
  GALLEY_SHARED(int, places, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t m = blockIdx.x; m < call.regions * call.points; m += gridDim.x) {
    const int64_t region = m / call.points;
    const bool valid = region % call.rows < call.count[region / call.rows];  // the same for all threads
    const float *box = call.boxes + 4 * region, *map = call.heat + m * call.height * call.width;
    const double box_width = at_least(static_cast<double>(box[2]) - static_cast<double>(box[0]), 1.0);
    const double box_height = at_least(static_cast<double>(box[3]) - static_cast<double>(box[1]), 1.0);
    const int64_t width = rounded_up(box_width), height = rounded_up(box_height);
    double best = 0;
    int place = -1;
    for (int64_t pixel = thread; valid && pixel < width * height; pixel += kThreads) {
      const CubicTaps down = cubic_taps(pixel / width, call.height, height), across = cubic_taps(pixel % width, call.width, width);
      double value = 0;
      for (int k = 0; k < 16; ++k)
        value += down.weight[k / 4] * across.weight[k % 4] * static_cast<double>(map[down.at[k / 4] * call.width + across.at[k % 4]]);
      if (place >= 0 && !(value > best)) continue;
      best = value;
      place = static_cast<int>(pixel);
    }
    values[thread] = best;
    places[thread] = place;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread >= half) continue;
      const double other = values[thread + half];
      const int at = places[thread + half];
      const bool takes = at >= 0 && (places[thread] < 0 || other > values[thread] || (other == values[thread] && at < places[thread]));
      if (!takes) continue;
      values[thread] = other;
      places[thread] = at;
    }
    if (thread == 0) {
      const auto center = [](int64_t pixel, double size, int64_t pixels, float begin) {
        return static_cast<float>((static_cast<double>(pixel) + 0.5) * (size / static_cast<double>(pixels)) + static_cast<double>(begin));
      };
      float* to = call.to + 3 * m;
      to[0] = valid ? center(places[0] % width, box_width, width, box[0]) : 0;
      to[1] = valid ? center(places[0] / width, box_height, height, box[1]) : 0;
      to[2] = valid ? static_cast<float>(values[0]) : 0;
    }
    __syncthreads();
  }
}

}  // namespace galley::device
