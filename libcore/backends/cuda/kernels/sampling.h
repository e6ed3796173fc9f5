#pragma once
// Samples of images: of regions (ops/roi_align.h), at points of a grid (ops/grid_sample.h), around moving pixels and of finer images
// (ops/flow.h). Positions are computed in double, values in float. A gradient of pixels that points scatter to is a sum of integers, which
// does not depend on the order.

#include "libcore/backends/cuda/kernels/rows.h"
#include "libcore/backends/cuda/kernels/vision_calls.h"

namespace galley::device {

constexpr double kFixedSteps = 68719476736.0;  // 2^36

/// Adds value to the sum of element i. `largest`: of all |values|.
GALLEY_DEVICE void add_fixed(unsigned long long* sums, int64_t i, float value, double largest) {
  const double steps = static_cast<double>(value) / largest * kFixedSteps;
  if (steps >= -kFixedSteps * 2 && steps <= kFixedSteps * 2)  // not if the largest is not finite
    atomicAdd(sums + i, static_cast<unsigned long long>(static_cast<int64_t>(round(steps))));
}
GALLEY_DEVICE double largest_of(const float* largest) { return static_cast<double>(largest[0]) * static_cast<double>(largest[1]); }

/// parts[b] = the largest |number| of the part of block b, NaN if one is.
GALLEY_KERNEL(largest_parts, (const FixedSumCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  float largest = 0;
  for (int64_t i = first_element(); i < call.numbers; i += all_threads()) {
    const float x = abs(call.from[i]);
    largest = x > largest || is_nan(x) ? x : largest;
    if (is_nan(x)) break;
  }
  largest = block_max(largest, kThreads, shared);
  if (threadIdx.x == 0) call.parts[blockIdx.x] = largest;
}
/// By one block.
GALLEY_KERNEL(largest_of_parts, (const FixedSumCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const float largest = block_max(thread < call.part_count ? call.parts[thread] : 0, kThreads, shared);
  if (thread == 0) call.largest[call.place] = largest;
  if (thread == 1 && call.place == 0) call.largest[1] = 1;
}
GALLEY_KERNEL(fixed_sums, (const FixedSumCall call)) {
  const double largest = largest_of(call.largest);
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const double sum = static_cast<double>(static_cast<int64_t>(call.sums[i]));
    call.to[i] = static_cast<float>(largest - largest == 0 ? sum / kFixedSteps * largest : largest - largest);
  }
}

struct RoiAxis {
  double start, bin;
  int64_t samples;
};
GALLEY_DEVICE int64_t rounded_up(double x) {
  const auto whole = static_cast<int64_t>(x);
  return static_cast<double>(whole) < x ? whole + 1 : whole;
}
GALLEY_DEVICE RoiAxis roi_axis(double scale, bool aligned, int64_t samples, float low, float high, int64_t bins) {
  const double begin = static_cast<double>(low) * scale, end = static_cast<double>(high) * scale;
  double size = end - begin;
  if (!aligned && size < 1) size = 1;
  const double bin = size / static_cast<double>(bins);
  return {begin - (aligned ? 0.5 : 0), bin, samples > 0 ? samples : rounded_up(bin)};
}
GALLEY_DEVICE RoiAxis roi_axis(const RoiCall& call, int level, float low, float high, int64_t bins) {
  return roi_axis(call.scales[level], call.aligned != 0, call.sampling_ratio, low, high, bins);
}
GALLEY_DEVICE double position_of(const RoiAxis& axis, int64_t bin, int64_t sample) {
  return axis.start + static_cast<double>(bin) * axis.bin +
         (static_cast<double>(sample) + 0.5) * axis.bin / static_cast<double>(axis.samples);
}
struct RoiSample {
  bool inside;
  int64_t low, high;
  float fraction;
};
GALLEY_DEVICE RoiSample roi_sample(double position, int64_t size) {
  if (!(position >= -1 && position <= static_cast<double>(size))) return {false, 0, 0, 0};
  position = position < 0 ? 0 : position;
  const int64_t low = static_cast<int64_t>(position);
  if (low >= size - 1) return {true, size - 1, size - 1, 0};
  return {true, low, low + 1, static_cast<float>(position - static_cast<double>(low))};
}
/// The level that a region reads.
GALLEY_DEVICE int roi_level(const RoiCall& call, const float* box) {
  if (call.first_level == call.last_level) return 0;
  const double area = static_cast<double>(box[2] - box[0]) * static_cast<double>(box[3] - box[1]);
  const double level = floor(4 + log(sqrt(area) / 224) * 1.4426950408889634074 + 1e-6);
  if (!(level >= static_cast<double>(call.first_level))) return 0;
  return static_cast<int>((level < static_cast<double>(call.last_level) ? static_cast<int64_t>(level) : call.last_level) -
                          call.first_level);
}
GALLEY_DEVICE int64_t valid_rows(const RoiCall& call, int64_t n) {
  const int64_t rows = call.count != nullptr ? call.count[n] : call.rows;
  return rows < call.rows ? rows : call.rows;
}
/// The rows (axis 0) or columns of a sample's own pixels in a level, of which the array of the level, `size`, may have more.
GALLEY_DEVICE int64_t own_size(const RoiCall& call, int64_t n, int level, int axis, int64_t size) {
  return call.extents != nullptr ? call.extents[(n * call.level_count + level) * 2 + axis] : size;
}
GALLEY_DEVICE float roi_share(const RoiAxis& down, const RoiAxis& across) {
  const int64_t samples = down.samples * across.samples;
  return 1.0f / static_cast<float>(samples > 1 ? samples : 1);
}

GALLEY_KERNEL(roi_bins, (const RoiCall call)) {
  const int64_t bins = call.bins[0] * call.bins[1];
  for (int64_t i = first_element(); i < call.samples * call.rows * call.channels * bins; i += all_threads()) {
    const int64_t column = i % call.bins[1], row = i / call.bins[1] % call.bins[0], c = i / bins % call.channels;
    const int64_t r = i / (bins * call.channels) % call.rows, n = i / (bins * call.channels * call.rows);
    float sum = 0;
    if (r < valid_rows(call, n)) {
      const float* box = call.boxes + 4 * (n * call.rows + r);
      const int level = roi_level(call, box);
      const RoiAxis across = roi_axis(call, level, box[0], box[2], call.bins[1]),
                    down = roi_axis(call, level, box[1], box[3], call.bins[0]);
      const int64_t* steps = call.steps[level];
      const float* x = call.levels[level] + n * steps[0] + c * steps[1];
      const int64_t height = own_size(call, n, level, 0, call.sizes[level][0]), width = own_size(call, n, level, 1, call.sizes[level][1]);
      for (int64_t s = 0; s < down.samples; ++s) {
        const RoiSample h = roi_sample(position_of(down, row, s), height);
        for (int64_t t = 0; h.inside && t < across.samples; ++t) {
          const RoiSample w = roi_sample(position_of(across, column, t), width);
          if (!w.inside) continue;
          const auto at = [&](int64_t y, int64_t z) { return x[y * steps[2] + z * steps[3]]; };
          sum += (1 - h.fraction) * ((1 - w.fraction) * at(h.low, w.low) + w.fraction * at(h.low, w.high)) +
                 h.fraction * ((1 - w.fraction) * at(h.high, w.low) + w.fraction * at(h.high, w.high));
        }
      }
      sum *= roi_share(down, across);
    }
    call.to[i] = sum;
  }
}

/// The weight of a pixel in all samples of a bin along an axis.
GALLEY_DEVICE float weight_in_bin(const RoiAxis& axis, int64_t bin, int64_t pixel, int64_t size) {
  float weight = 0;
  for (int64_t s = 0; s < axis.samples; ++s) {
    const RoiSample sample = roi_sample(position_of(axis, bin, s), size);
    if (!sample.inside) continue;
    if (sample.low == pixel) weight += 1 - sample.fraction;
    if (sample.high == pixel) weight += sample.fraction;
  }
  return weight;
}
/// Whether a region may read a pixel along an axis.
GALLEY_DEVICE bool may_reach(const RoiAxis& axis, int64_t bins, int64_t pixel) {
  const double at = static_cast<double>(pixel);
  return at + 1 >= axis.start && at - 1 <= axis.start + static_cast<double>(bins) * axis.bin;
}

/// A thread adds up what reaches one pixel of the level.
GALLEY_KERNEL(roi_backward_pixels, (const RoiCall call)) {
  const int64_t height = call.sizes[0][0], width = call.sizes[0][1];
  for (int64_t i = first_element(); i < call.samples * call.channels * height * width; i += all_threads()) {
    const int64_t w = i % width, h = i / width % height, c = i / (height * width) % call.channels, n = i / (height * width * call.channels);
    const int64_t own_height = own_size(call, n, call.level, 0, height), own_width = own_size(call, n, call.level, 1, width);
    float sum = 0;
    for (int64_t r = 0; r < valid_rows(call, n); ++r) {
      const float* box = call.boxes + 4 * (n * call.rows + r);
      if (roi_level(call, box) != call.level) continue;
      const RoiAxis down = roi_axis(call, call.level, box[1], box[3], call.bins[0]);
      if (!may_reach(down, call.bins[0], h)) continue;
      const RoiAxis across = roi_axis(call, call.level, box[0], box[2], call.bins[1]);
      if (!may_reach(across, call.bins[1], w)) continue;
      const float* grad = call.grad + ((n * call.rows + r) * call.channels + c) * call.bins[0] * call.bins[1];
      float part = 0;
      for (int64_t row = 0; row < call.bins[0]; ++row) {
        const float y = weight_in_bin(down, row, h, own_height);
        for (int64_t column = 0; y != 0 && column < call.bins[1]; ++column)
          part += y * weight_in_bin(across, column, w, own_width) * grad[row * call.bins[1] + column];
      }
      sum += part * roi_share(down, across);
    }
    const int64_t* steps = call.steps[0];
    call.to[n * steps[0] + c * steps[1] + h * steps[2] + w * steps[3]] = sum;
  }
}

/// Where a coordinate of a grid lies along an axis, and the slope of the pixel in the coordinate.
struct GridPoint {
  double position, slope;
};
GALLEY_DEVICE GridPoint reflected(double position, int64_t low, int64_t high) {
  if (low == high) return {0, 0};
  const double start = static_cast<double>(low) / 2, span = static_cast<double>(high - low) / 2;
  const double sign = position < start ? -1 : 1, away = abs(position - start), turns = floor(away / span), rest = away - turns * span;
  const bool even = floor(turns / 2) * 2 == turns;
  return even ? GridPoint{rest + start, sign} : GridPoint{span - rest + start, -sign};
}
GALLEY_DEVICE GridPoint grid_point(const GridSampleCall& call, float coordinate, int64_t size) {
  const double at = static_cast<double>(coordinate), pixels = static_cast<double>(size);
  const bool corners = call.align_corners != 0;
  GridPoint point{corners ? (at + 1) / 2 * (pixels - 1) : ((at + 1) * pixels - 1) / 2, (corners ? pixels - 1 : pixels) / 2};
  if (call.edge == kGridZeros) return point;
  if (call.edge == kGridReflection) {
    const GridPoint mirrored = corners ? reflected(point.position, 0, 2 * (size - 1)) : reflected(point.position, -1, 2 * size - 1);
    point = {mirrored.position, point.slope * mirrored.slope};
  }
  if (!(point.position > 0)) return {0, 0};
  if (point.position >= pixels - 1) return {pixels - 1, 0};
  return point;
}
/// The pixels that a point reads along an axis; weight and slope of the weight. -1: there is none.
struct GridTaps {
  int64_t pixel[2];
  float weight[2], slope[2];
};
GALLEY_DEVICE int64_t tap_at(double pixel, int64_t size) {
  return pixel >= 0 && pixel <= static_cast<double>(size - 1) ? static_cast<int64_t>(pixel) : -1;
}
GALLEY_DEVICE GridTaps taps_of(double position, int64_t size, GridMode mode) {
  if (position != position) {
    const float invalid = static_cast<float>(position);
    return {{0, -1}, {invalid, 0}, {invalid, 0}};
  }
  if (mode == kGridNearest) return {{tap_at(round(position), size), -1}, {1, 0}, {0, 0}};
  const double low = floor(position);
  const float fraction = static_cast<float>(position - low);
  return {{tap_at(low, size), tap_at(low + 1, size)}, {1 - fraction, fraction}, {-1, 1}};
}
/// What a point of the grid reads.
struct GridRead {
  GridPoint down, across;
  GridTaps rows, columns;
};
GALLEY_DEVICE GridRead read_at(const GridSampleCall& call, int64_t point) {
  const GridPoint down = grid_point(call, call.grid[2 * point + 1], call.in_size[0]),
                  across = grid_point(call, call.grid[2 * point], call.in_size[1]);
  return {down, across, taps_of(down.position, call.in_size[0], call.mode), taps_of(across.position, call.in_size[1], call.mode)};
}
/// visit(pixel of a plane, row tap, column tap)
template <class Visit>
GALLEY_DEVICE void each_tap(const GridSampleCall& call, const GridRead& read, const Visit& visit) {
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 2; ++x) {
      if (read.rows.pixel[y] >= 0 && read.columns.pixel[x] >= 0) visit(read.rows.pixel[y] * call.in_size[1] + read.columns.pixel[x], y, x);
    }
  }
}

GALLEY_KERNEL(grid_sample_pixels, (const GridSampleCall call)) {
  const int64_t pixels = call.out_size[0] * call.out_size[1], image = call.in_size[0] * call.in_size[1];
  for (int64_t i = first_element(); i < call.samples * call.channels * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, point = plane / call.channels * pixels + i % pixels;
    const GridRead read = read_at(call, point);
    float sum = 0;
    each_tap(call, read,
             [&](int64_t pixel, int y, int x) { sum += read.rows.weight[y] * read.columns.weight[x] * call.x[plane * image + pixel]; });
    call.to[i] = sum;
  }
}
/// sums are 0 at first.
GALLEY_KERNEL(grid_sample_backward_points, (const GridSampleCall call)) {
  const int64_t pixels = call.out_size[0] * call.out_size[1], image = call.in_size[0] * call.in_size[1];
  const double largest = largest_of(call.largest);
  for (int64_t i = first_element(); i < call.samples * call.channels * pixels; i += all_threads()) {
    const int64_t plane = i / pixels, point = plane / call.channels * pixels + i % pixels;
    const GridRead read = read_at(call, point);
    each_tap(call, read, [&](int64_t pixel, int y, int x) {
      add_fixed(call.sums, plane * image + pixel, read.rows.weight[y] * read.columns.weight[x] * call.grad[i], largest);
    });
  }
}
GALLEY_KERNEL(grid_sample_backward_grid_points, (const GridSampleCall call)) {
  const int64_t pixels = call.out_size[0] * call.out_size[1], image = call.in_size[0] * call.in_size[1];
  for (int64_t point = first_element(); point < call.samples * pixels; point += all_threads()) {
    const GridRead read = read_at(call, point);
    float down = 0, across = 0;
    for (int64_t c = 0; c < call.channels; ++c) {
      const int64_t plane = point / pixels * call.channels + c;
      const float grad = call.grad[plane * pixels + point % pixels];
      each_tap(call, read, [&](int64_t pixel, int y, int x) {
        const float value = call.x[plane * image + pixel] * grad;
        across += read.rows.weight[y] * read.columns.slope[x] * value;
        down += read.rows.slope[y] * read.columns.weight[x] * value;
      });
    }
    call.to[2 * point] = static_cast<float>(read.across.slope) * across;
    call.to[2 * point + 1] = static_cast<float>(read.down.slope) * down;
  }
}

GALLEY_DEVICE int64_t place_of(const ImageSteps& steps, int64_t n, int64_t c, int64_t p) {
  return n * steps.sample + c * steps.channel + p * steps.pixel;
}
struct ImagePlace {
  int64_t n, c, p;
};
/// The element with number i in the order of memory.
GALLEY_DEVICE ImagePlace image_place(const ImageSteps& steps, int64_t i, int64_t channels, int64_t pixels) {
  if (steps.channel == 1) return {i / (channels * pixels), i % channels, i / channels % pixels};
  return {i / (channels * pixels), i / pixels % channels, i % pixels};
}

/// The pixels of a level around the point to which pixel p moves, along one axis: the first of 2 radius + 2, and the weight of the next.
struct LookupAxis {
  bool inside, invalid;
  int64_t first;
  float fraction;
};
GALLEY_DEVICE LookupAxis lookup_axis(const CorrelationCall& call, int level, int axis, int64_t n, int64_t p) {
  const int64_t own = axis == 0 ? p / call.columns : p % call.columns;
  const float flow = call.flow[place_of(call.flow_steps, n, axis == 0 ? 1 : 0, p)];
  const double center = (static_cast<double>(own) + static_cast<double>(flow)) / static_cast<double>(int64_t{1} << level);
  const double low = floor(center), first = low - static_cast<double>(call.radius);
  const double size = static_cast<double>(call.sizes[level][axis]);
  if (!(first < size && first + 2 * static_cast<double>(call.radius) + 1 >= 0)) return {false, center != center, 0, 0};
  return {true, false, static_cast<int64_t>(first), static_cast<float>(center - low)};
}
/// visit(pixel of the level, weight) for the corners of value (i, j) of a look-up.
template <class Visit>
GALLEY_DEVICE void each_corner(const CorrelationCall& call, int level, const LookupAxis& down, const LookupAxis& across, int64_t value,
                               const Visit& visit) {
  const int64_t side = 2 * call.radius + 1, height = call.sizes[level][0], width = call.sizes[level][1];
  for (int corner = 0; down.inside && across.inside && corner < 4; ++corner) {
    const int64_t column = across.first + value / side + corner % 2, row = down.first + value % side + corner / 2;
    if (column < 0 || column >= width || row < 0 || row >= height) continue;
    visit(row * width + column,
          (corner % 2 == 1 ? across.fraction : 1 - across.fraction) * (corner / 2 == 1 ? down.fraction : 1 - down.fraction));
  }
}
/// NaN where the flow of a pixel is not finite, whose look-up is invalid.
GALLEY_DEVICE float invalid_flow(const CorrelationCall& call, int64_t n, int64_t p) {
  const float flow = call.flow[place_of(call.flow_steps, n, 0, p)] + call.flow[place_of(call.flow_steps, n, 1, p)];
  return flow - flow;
}
GALLEY_DEVICE float correlation_scale(const CorrelationCall& call) { return 1.0f / sqrt(static_cast<float>(call.channels)); }

GALLEY_KERNEL(correlation_values, (const CorrelationCall call)) {
  const int64_t pixels = call.rows * call.columns, per_level = (2 * call.radius + 1) * (2 * call.radius + 1);
  for (int64_t i = first_element(); i < call.samples * call.level_count * per_level * pixels; i += all_threads()) {
    const auto [n, row, p] = image_place(call.to_steps, i, per_level * call.level_count, pixels);
    const int level = static_cast<int>(row / per_level);
    const LookupAxis down = lookup_axis(call, level, 0, n, p), across = lookup_axis(call, level, 1, n, p);
    const ImageSteps steps = call.level_steps[level];
    const float *first = call.first + place_of(call.first_steps, n, 0, p), *of_level = call.levels[level] + n * steps.sample;
    float sum = 0;
    each_corner(call, level, down, across, row % per_level, [&](int64_t q, float weight) {
      float product = 0;
      for (int64_t c = 0; c < call.channels; ++c)
        product += first[c * call.first_steps.channel] * of_level[c * steps.channel + q * steps.pixel];
      sum += weight * product;
    });
    call.to[i] = sum * correlation_scale(call) + (down.invalid || across.invalid ? invalid_flow(call, n, p) : 0);
  }
}
GALLEY_KERNEL(correlation_backward_first_values, (const CorrelationCall call)) {
  const int64_t pixels = call.rows * call.columns, per_level = (2 * call.radius + 1) * (2 * call.radius + 1);
  for (int64_t i = first_element(); i < call.samples * call.channels * pixels; i += all_threads()) {
    const auto [n, c, p] = image_place(call.to_steps, i, call.channels, pixels);
    float sum = 0;
    for (int level = 0; level < call.level_count; ++level) {
      const LookupAxis down = lookup_axis(call, level, 0, n, p), across = lookup_axis(call, level, 1, n, p);
      const float* of_channel = call.levels[level] + place_of(call.level_steps[level], n, c, 0);
      if (down.invalid || across.invalid) sum += invalid_flow(call, n, p);
      for (int64_t value = 0; value < per_level; ++value) {
        const float grad = call.grad[place_of(call.grad_steps, n, level * per_level + value, p)];
        each_corner(call, level, down, across, value,
                    [&](int64_t q, float weight) { sum += weight * grad * of_channel[q * call.level_steps[level].pixel]; });
      }
    }
    call.to[i] = sum * correlation_scale(call);
  }
}
/// Of call.level; sums are 0 at first. grad has the values of call.level_count levels.
GALLEY_KERNEL(correlation_backward_level_values, (const CorrelationCall call)) {
  const int64_t pixels = call.rows * call.columns, per_level = (2 * call.radius + 1) * (2 * call.radius + 1);
  const double largest = largest_of(call.largest);
  for (int64_t i = first_element(); i < call.samples * call.channels * pixels; i += all_threads()) {
    const auto place = image_place(call.first_steps, i, call.channels, pixels);
    const int64_t n = place.n, c = place.c, p = place.p;  // names, since clang 14 captures no structured bindings
    const LookupAxis down = lookup_axis(call, call.level, 0, n, p), across = lookup_axis(call, call.level, 1, n, p);
    const float feature = call.first[i] * correlation_scale(call);
    for (int64_t value = 0; value < per_level; ++value) {
      const float grad = call.grad[place_of(call.grad_steps, n, call.level * per_level + value, p)];
      each_corner(call, call.level, down, across, value, [&](int64_t q, float weight) {
        add_fixed(call.sums, place_of(call.to_steps, n, c, q), weight * grad * feature, largest);
      });
    }
  }
}

/// The weights of the nine pixels around coarse pixel p for fine pixel `part` in it.
struct Convex {
  float weight[9];
};
/// Channel of the mask with the logit of pixel k of the nine.
GALLEY_DEVICE int64_t logit_of(const ConvexCall& call, int k, int64_t part) { return k * call.factor * call.factor + part; }
GALLEY_DEVICE Convex convex_of(const ConvexCall& call, int64_t n, int64_t p, int64_t part) {
  Convex convex;
  float largest = 0, total = 0;
  for (int k = 0; k < 9; ++k) {
    convex.weight[k] = call.mask[place_of(call.mask_steps, n, logit_of(call, k, part), p)];
    largest = k == 0 || convex.weight[k] > largest || is_nan(convex.weight[k]) ? convex.weight[k] : largest;
  }
  for (int k = 0; k < 9; ++k) total += convex.weight[k] = exp(convex.weight[k] - largest);
  for (int k = 0; k < 9; ++k) convex.weight[k] /= total;
  return convex;
}
/// The pixel at place k of the nine around p; -1: it is outside.
GALLEY_DEVICE int64_t neighbor_of(const ConvexCall& call, int64_t p, int k) {
  const int64_t row = p / call.columns + k / 3 - 1, column = p % call.columns + k % 3 - 1;
  return row < 0 || row >= call.rows || column < 0 || column >= call.columns ? -1 : row * call.columns + column;
}
/// The fine pixel `part` of coarse pixel p.
GALLEY_DEVICE int64_t fine_of(const ConvexCall& call, int64_t p, int64_t part) {
  const int64_t row = p / call.columns * call.factor + part / call.factor, column = p % call.columns * call.factor + part % call.factor;
  return row * call.columns * call.factor + column;
}

GALLEY_KERNEL(convex_pixels, (const ConvexCall call)) {
  const int64_t pixels = call.rows * call.columns, parts = call.factor * call.factor;
  for (int64_t i = first_element(); i < call.samples * pixels * parts; i += all_threads()) {
    const int64_t n = i / (pixels * parts), part = i / pixels % parts, p = i % pixels;
    const Convex convex = convex_of(call, n, p, part);
    for (int64_t c = 0; c < call.channels; ++c) {
      float sum = 0;
      for (int k = 0; k < 9; ++k) {
        const int64_t q = neighbor_of(call, p, k);
        if (q >= 0) sum += convex.weight[k] * call.flow[place_of(call.flow_steps, n, c, q)];
      }
      call.to[place_of(call.to_steps, n, c, fine_of(call, p, part))] = sum * static_cast<float>(call.factor);
    }
  }
}
/// The gradient of the coarse image: a thread adds up what reaches one pixel, from the nine around it.
GALLEY_KERNEL(convex_backward_pixels, (const ConvexCall call)) {
  const int64_t pixels = call.rows * call.columns, parts = call.factor * call.factor;
  for (int64_t i = first_element(); i < call.samples * call.channels * pixels; i += all_threads()) {
    const auto [n, c, q] = image_place(call.to_steps, i, call.channels, pixels);
    float sum = 0;
    for (int k = 0; k < 9; ++k) {
      const int64_t p = neighbor_of(call, q, 8 - k);  // whose place k is q
      for (int64_t part = 0; p >= 0 && part < parts; ++part)
        sum += convex_of(call, n, p, part).weight[k] * call.grad[place_of(call.grad_steps, n, c, fine_of(call, p, part))];
    }
    call.to[i] = sum * static_cast<float>(call.factor);
  }
}
GALLEY_KERNEL(convex_backward_logits, (const ConvexCall call)) {
  const int64_t pixels = call.rows * call.columns, parts = call.factor * call.factor;
  for (int64_t i = first_element(); i < call.samples * pixels * parts; i += all_threads()) {
    const int64_t n = i / (pixels * parts), part = i / pixels % parts, p = i % pixels;
    const Convex convex = convex_of(call, n, p, part);
    float slope[9] = {}, mean = 0;
    for (int64_t c = 0; c < call.channels; ++c) {
      const float grad = call.grad[place_of(call.grad_steps, n, c, fine_of(call, p, part))] * static_cast<float>(call.factor);
      for (int k = 0; k < 9; ++k) {
        const int64_t q = neighbor_of(call, p, k);
        if (q >= 0) slope[k] += grad * call.flow[place_of(call.flow_steps, n, c, q)];
      }
    }
    for (int k = 0; k < 9; ++k) mean += convex.weight[k] * slope[k];
    for (int k = 0; k < 9; ++k)
      call.mask_to[place_of(call.mask_to_steps, n, logit_of(call, k, part), p)] = convex.weight[k] * (slope[k] - mean);
  }
}

/// By one block, column by column (modified Gram-Schmidt; ops/orthonormal.h).
GALLEY_KERNEL(orthonormal_column_block, (const ColumnsCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const auto product = [&](int64_t a, int64_t b) {
    float sum = 0;
    for (int64_t row = threadIdx.x; row < call.rows; row += kThreads)
      sum += call.to[row * call.columns + a] * call.to[row * call.columns + b];
    return block_sum(sum, shared);
  };
  for (int64_t i = threadIdx.x; i < call.rows * call.columns; i += kThreads) call.to[i] = call.from[i];
  __syncthreads();
  for (int64_t c = 0; c < call.columns; ++c) {
    const float before = sqrt(product(c, c));
    for (int64_t earlier = 0; earlier < c; ++earlier) {
      const float part = product(earlier, c);
      for (int64_t row = threadIdx.x; row < call.rows; row += kThreads)
        call.to[row * call.columns + c] -= part * call.to[row * call.columns + earlier];
    }
    const float norm = sqrt(product(c, c));
    for (int64_t row = threadIdx.x; row < call.rows; row += kThreads) {
      float& value = call.to[row * call.columns + c];
      value = norm <= 1e-6f * before ? 0 : value / norm;
    }
    __syncthreads();
  }
}

}  // namespace galley::device
