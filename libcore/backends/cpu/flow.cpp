// Operators of optical flow in f32.
//
// correlation_lookup computes, for a pixel and a level, the dot products with all pixels of its window, then blends them: the offsets in a
// window are whole pixels, so all its values have one fraction. Features of a pixel are consecutive (channels_last; contiguous arrays are
// transposed into scratch first). Bound by the loads of the second image's features, which stay in the second-level cache from pixel to
// pixel. The gradient of a level gives each task some channels of a sample, so that no two tasks add to one pixel, and sums keep their
// order.
//
// convex_upsample reads each mask once: softmax over nine values for the factor^2 fine pixels of a coarse one, which are consecutive in
// channels_last. Its gradient first computes what each coarse pixel gives to its neighbors, then each pixel gathers what it gets.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/flow.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "libcore/backends/cpu/vector_math.h"

#ifndef GALLEY_FLOW_ONCE
#define GALLEY_FLOW_ONCE

namespace galley::flow_loops {

/// The window of a pixel in a level [rows, columns, channels]: `size` x `size` pixels from (x, y) on.
struct Window {
  int64_t x, y, size, rows, columns, channels;
};

/// A mask of nine logits for each of `parts` fine pixels, `stride` apart.
struct MaskOfPixel {
  const float* logits;
  int64_t parts, stride;
};

}  // namespace galley::flow_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::flow_loops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// out[i * step] = the dot product of a and b + i * channels, for i < count.
void dots(const float* a, const float* b, int64_t channels, int64_t count, int64_t step, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = channels - channels % lanes;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4, b += 4 * channels) {
    const float *b1 = b + channels, *b2 = b1 + channels, *b3 = b2 + channels;
    auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    for (int64_t c = 0; c < whole; c += lanes) {
      const auto v = hn::LoadU(d, a + c);
      s0 = hn::MulAdd(v, hn::LoadU(d, b + c), s0);
      s1 = hn::MulAdd(v, hn::LoadU(d, b1 + c), s1);
      s2 = hn::MulAdd(v, hn::LoadU(d, b2 + c), s2);
      s3 = hn::MulAdd(v, hn::LoadU(d, b3 + c), s3);
    }
    float t0 = hn::GetLane(hn::SumOfLanes(d, s0)), t1 = hn::GetLane(hn::SumOfLanes(d, s1));
    float t2 = hn::GetLane(hn::SumOfLanes(d, s2)), t3 = hn::GetLane(hn::SumOfLanes(d, s3));
    for (int64_t c = whole; c < channels; ++c) {
      t0 += a[c] * b[c];
      t1 += a[c] * b1[c];
      t2 += a[c] * b2[c];
      t3 += a[c] * b3[c];
    }
    out[i * step] = t0;
    out[(i + 1) * step] = t1;
    out[(i + 2) * step] = t2;
    out[(i + 3) * step] = t3;
  }
  for (; i < count; ++i, b += channels) {
    auto s = hn::Zero(d);
    for (int64_t c = 0; c < whole; c += lanes) s = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), s);
    float t = hn::GetLane(hn::SumOfLanes(d, s));
    for (int64_t c = whole; c < channels; ++c) t += a[c] * b[c];
    out[i * step] = t;
  }
}

/// products[i * size + j]: of the features of a pixel and those of column x + i, row y + j of the level; 0 outside.
void window_products(const float* feature, const float* level, Window w, float* products) {
  for (int64_t k = 0; k < w.size * w.size; ++k) products[k] = 0;
  const int64_t from = w.x < 0 ? -w.x : 0, to = w.x + w.size > w.columns ? w.columns - w.x : w.size;
  for (int64_t j = 0; j < w.size; ++j) {
    const int64_t row = w.y + j;
    if (row < 0 || row >= w.rows || from >= to) continue;
    dots(feature, level + (row * w.columns + w.x + from) * w.channels, w.channels, to - from, w.size, products + from * w.size + j);
  }
}

/// out[i * (size-1) + j] = the blend of four products, times scale. `line` has room for `size` values.
void blend_window(const float* products, int64_t size, float across, float down, float scale, float* line, float* out) {
  const float left = scale * (1 - across), right = scale * across;
  for (int64_t i = 0; i + 1 < size; ++i, products += size, out += size - 1) {
    for (int64_t j = 0; j < size; ++j) line[j] = left * products[j] + right * products[size + j];
    for (int64_t j = 0; j + 1 < size; ++j) out[j] = (1 - down) * line[j] + down * line[j + 1];
  }
}

/// The transpose of blend_window: what each product gets of the values' gradient.
void spread_window(const float* grad, int64_t size, float across, float down, float scale, float* line, float* products) {
  for (int64_t k = 0; k < size * size; ++k) products[k] = 0;
  const float left = scale * (1 - across), right = scale * across;
  for (int64_t i = 0; i + 1 < size; ++i, products += size, grad += size - 1) {
    for (int64_t j = 0; j < size; ++j) line[j] = 0;
    for (int64_t j = 0; j + 1 < size; ++j) line[j] += (1 - down) * grad[j];
    for (int64_t j = 0; j + 1 < size; ++j) line[j + 1] += down * grad[j];
    for (int64_t j = 0; j < size; ++j) products[j] += left * line[j];
    for (int64_t j = 0; j < size; ++j) products[size + j] += right * line[j];
  }
}

/// to[c] += factor * from[c]
void add_scaled(float factor, const float* __restrict from, int64_t channels, float* __restrict to) {
  for (int64_t c = 0; c < channels; ++c) to[c] += factor * from[c];
}

/// weight[k * parts + part]: softmax over k. `line` has room for 2 * parts values.
void mask_weights(MaskOfPixel mask, float* __restrict line, float* __restrict weight) {
  const int64_t parts = mask.parts;
  float *largest = line, *total = line + parts;
  for (int64_t k = 0; k < 9; ++k) {
    float* to = weight + k * parts;
    const float* from = mask.logits + k * parts * mask.stride;
    for (int64_t i = 0; i < parts; ++i) to[i] = from[i * mask.stride];
  }
  for (int64_t i = 0; i < parts; ++i) largest[i] = weight[i];
  for (int64_t k = 1; k < 9; ++k)
    for (int64_t i = 0; i < parts; ++i) largest[i] = largest[i] < weight[k * parts + i] ? weight[k * parts + i] : largest[i];
  for (int64_t i = 0; i < parts; ++i) total[i] = 0;
  for (int64_t k = 0; k < 9; ++k) {
    float* to = weight + k * parts;
    for (int64_t i = 0; i < parts; ++i) to[i] = exp_of(to[i] - largest[i]);
    for (int64_t i = 0; i < parts; ++i) total[i] += to[i];
  }
  for (int64_t i = 0; i < parts; ++i) total[i] = 1 / total[i];
  for (int64_t k = 0; k < 9; ++k)
    for (int64_t i = 0; i < parts; ++i) weight[k * parts + i] *= total[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::flow_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/flow.h"

namespace galley {
namespace flow_loops {

HWY_EXPORT(window_products);
HWY_EXPORT(blend_window);
HWY_EXPORT(spread_window);
HWY_EXPORT(add_scaled);
HWY_EXPORT(mask_weights);

}  // namespace flow_loops

namespace {

constexpr size_t kMostLevels = 16;

using flow_loops::MaskOfPixel;
using flow_loops::Window;

/// An array [N,C,H,W] whose pixels are read one by one.
struct Maps {
  explicit Maps(const TensorType& type)
      : channels(type.shape[1]),
        rows(type.shape[2]),
        columns(type.shape[3]),
        pixels(rows * columns),
        size(type.shape[0] * channels * pixels),
        last(type.format.is_channels_last()) {}
  int64_t channels, rows, columns, pixels, size;
  bool last;  // channels_last: the values of a pixel are consecutive
  /// The first value of a pixel, and the distance between its channels.
  int64_t at(int64_t n, int64_t pixel) const { return n * channels * pixels + (last ? pixel * channels : pixel); }
  int64_t step() const { return last ? 1 : pixels; }
  /// Floats of scratch for `consecutive`.
  int64_t room() const { return last ? 0 : size; }
  /// The array with consecutive channels: itself, or a transposed copy in `scratch`, which moves past it.
  const float* consecutive(const float* x, float*& scratch) const {
    if (last) return x;
    float* to = std::exchange(scratch, scratch + size);
    for (int64_t first = 0; first < size; first += channels * pixels) {
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < pixels; ++p) to[first + p * channels + c] = x[first + c * pixels + p];
    }
    return to;
  }
};

/// Where the look-up of a pixel lies in a level.
struct Place {
  bool inside = false, nan = false;
  Window window{};
  float across = 0, down = 0;
};

/// Shared parts of correlation_lookup and its gradients.
class Lookup : public PreparedKernel {
 protected:
  Lookup(const TensorType& flow, int64_t radius, int64_t channels)
      : flow_(flow), radius_(radius), side_(2 * radius + 1), size_(2 * radius + 2), channels_(channels) {}

  Place place(const float* flow, int64_t n, int64_t pixel, int64_t level, const Maps& map) const {
    const double scale = std::exp2(-static_cast<double>(level));
    const int64_t at = flow_.at(n, pixel);
    const double x = (static_cast<double>(pixel % flow_.columns) + static_cast<double>(flow[at])) * scale;
    const double y = (static_cast<double>(pixel / flow_.columns) + static_cast<double>(flow[at + flow_.step()])) * scale;
    const LookupAxis across = lookup_axis(x, radius_, map.columns), down = lookup_axis(y, radius_, map.rows);
    return {.inside = across.inside && down.inside,
            .nan = std::isnan(x) || std::isnan(y),
            .window = {across.first, down.first, size_, map.rows, map.columns, channels_},
            .across = static_cast<float>(across.fraction),
            .down = static_cast<float>(down.fraction)};
  }
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(channels_))); }
  /// Floats of scratch of a task: values, products, a line.
  int64_t task_room() const { return side_ * side_ + size_ * size_ + size_; }

  Maps flow_;
  int64_t radius_, side_, size_, channels_;
};

class CorrelationLookup : public Lookup {
 public:
  explicit CorrelationLookup(const KernelQuery& q)
      : Lookup(q.in(0), q.attrs<CorrelationLookupAttrs>().radius, q.in(1).shape[1]),
        first_(q.in(1)),
        y_(q.out(0)),
        samples_(q.in(0).shape[0]),
        threads_(q.threads) {
    for (size_t i = 2; i < q.node.inputs.size(); ++i) levels_.emplace_back(q.in(static_cast<int>(i)));
  }
  int64_t scratch_bytes() const override {
    int64_t floats = threads_ * task_room() + first_.room();
    for (const Maps& level : levels_) floats += level.room();
    return 4 * floats;
  }

  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<float*>(args.scratch);
    float* free = scratch + threads_ * task_room();
    const float* first = first_.consecutive(args.in<float>(1), free);
    std::array<const float*, kMostLevels> levels{};
    for (size_t l = 0; l < levels_.size(); ++l) levels[l] = levels_[l].consecutive(args.in<float>(l + 2), free);
    parallel_tasks(samples_ * flow_.rows, threads_, [&](int64_t task, int64_t slot) {
      const int64_t n = task / flow_.rows, begin = task % flow_.rows * flow_.columns;
      for (int64_t p = begin; p < begin + flow_.columns; ++p) {
        for (size_t l = 0; l < levels_.size(); ++l) pixel(args, first, levels[l], n, p, l, scratch + slot * task_room());
      }
    });
  }

 private:
  void pixel(const KernelArgs& args, const float* first, const float* level, int64_t n, int64_t p, size_t l, float* scratch) const {
    const int64_t values = side_ * side_;
    float *out = scratch, *products = out + values, *line = products + size_ * size_;
    const Maps& map = levels_[l];
    const Place at = place(args.in<float>(0), n, p, static_cast<int64_t>(l), map);
    if (at.inside) {
      HWY_DYNAMIC_DISPATCH(flow_loops::window_products)
      (first + (n * first_.pixels + p) * channels_, level + n * map.pixels * channels_, at.window, products);
      HWY_DYNAMIC_DISPATCH(flow_loops::blend_window)(products, size_, at.across, at.down, scale(), line, out);
    }
    float* y = args.out<float>(0) + y_.at(n, p) + static_cast<int64_t>(l) * values * y_.step();
    const float elsewhere = at.nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (int64_t v = 0; v < values; ++v) y[v * y_.step()] = at.inside ? out[v] : elsewhere;
  }

  Maps first_, y_;
  std::vector<Maps> levels_;
  int64_t samples_, threads_;
};

class LookupBackwardFirst : public Lookup {
 public:
  explicit LookupBackwardFirst(const KernelQuery& q)
      : Lookup(q.in(1), q.attrs<CorrelationLookupAttrs>().radius, q.in(2).shape[1]),
        grad_(q.in(0)),
        dfirst_(q.out(0)),
        samples_(q.in(0).shape[0]),
        threads_(q.threads) {
    for (size_t i = 2; i < q.node.inputs.size(); ++i) levels_.emplace_back(q.in(static_cast<int>(i)));
  }
  int64_t scratch_bytes() const override {
    int64_t floats = threads_ * (task_room() + channels_);
    for (const Maps& level : levels_) floats += level.room();
    return 4 * floats;
  }

  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<float*>(args.scratch);
    const int64_t room = task_room() + channels_;
    float* free = scratch + threads_ * room;
    std::array<const float*, kMostLevels> levels{};
    for (size_t l = 0; l < levels_.size(); ++l) levels[l] = levels_[l].consecutive(args.in<float>(l + 2), free);
    parallel_tasks(samples_ * flow_.rows, threads_, [&](int64_t task, int64_t slot) {
      const int64_t n = task / flow_.rows, begin = task % flow_.rows * flow_.columns;
      float *own = scratch + slot * room, *sums = own + task_room();
      for (int64_t p = begin; p < begin + flow_.columns; ++p) {
        std::fill_n(sums, channels_, 0.0f);
        for (size_t l = 0; l < levels_.size(); ++l) add_level(args, levels[l], n, p, l, own, sums);
        float* to = args.out<float>(0) + dfirst_.at(n, p);
        for (int64_t c = 0; c < channels_; ++c) to[c * dfirst_.step()] = sums[c];
      }
    });
  }

 private:
  void add_level(const KernelArgs& args, const float* level, int64_t n, int64_t p, size_t l, float* scratch, float* sums) const {
    const int64_t values = side_ * side_;
    float *grad = scratch, *products = grad + values, *line = products + size_ * size_;
    const Maps& map = levels_[l];
    const Place at = place(args.in<float>(1), n, p, static_cast<int64_t>(l), map);
    if (at.nan) std::fill_n(sums, channels_, std::numeric_limits<float>::quiet_NaN());
    if (!at.inside) return;
    const float* from = args.in<float>(0) + grad_.at(n, p) + static_cast<int64_t>(l) * values * grad_.step();
    for (int64_t v = 0; v < values; ++v) grad[v] = from[v * grad_.step()];
    HWY_DYNAMIC_DISPATCH(flow_loops::spread_window)(grad, size_, at.across, at.down, scale(), line, products);
    const Window& w = at.window;
    for (int64_t j = std::max<int64_t>(0, -w.y); j < std::min(size_, w.rows - w.y); ++j) {
      for (int64_t i = std::max<int64_t>(0, -w.x); i < std::min(size_, w.columns - w.x); ++i) {
        const float* pixel = level + ((n * map.rows + w.y + j) * map.columns + w.x + i) * channels_;
        HWY_DYNAMIC_DISPATCH(flow_loops::add_scaled)(products[i * size_ + j], pixel, channels_, sums);
      }
    }
  }

  Maps grad_, dfirst_;
  std::vector<Maps> levels_;
  int64_t samples_, threads_;
};

class LookupBackwardLevel : public Lookup {
 public:
  explicit LookupBackwardLevel(const KernelQuery& q)
      : Lookup(q.in(1), q.attrs<CorrelationLookupBackwardAttrs>().radius, q.in(2).shape[1]),
        level_(q.attrs<CorrelationLookupBackwardAttrs>().level),
        grad_(q.in(0)),
        first_(q.in(2)),
        dlevel_(q.out(0)),
        samples_(q.in(0).shape[0]),
        threads_(q.threads) {}
  int64_t scratch_bytes() const override { return 4 * (threads_ * task_room() + first_.room() + dlevel_.room()); }

  void run(Stream&, const KernelArgs& args) const override {
    constexpr int64_t kChannels = 64;  // of a task: the products' gradients are computed once for them
    auto* scratch = static_cast<float*>(args.scratch);
    float* free = scratch + threads_ * task_room();
    const float* first = first_.consecutive(args.in<float>(2), free);
    float* sums = dlevel_.last ? args.out<float>(0) : free;
    std::fill_n(sums, dlevel_.size, 0.0f);
    const int64_t blocks = (channels_ + kChannels - 1) / kChannels;
    parallel_tasks(samples_ * blocks, threads_, [&](int64_t task, int64_t slot) {
      const int64_t n = task / blocks, begin = task % blocks * kChannels, count = std::min(kChannels, channels_ - begin);
      for (int64_t p = 0; p < flow_.pixels; ++p)
        add_pixel(args, first + (n * flow_.pixels + p) * channels_ + begin, n, p, count, scratch + slot * task_room(),
                  sums + n * dlevel_.pixels * channels_ + begin);
    });
    if (dlevel_.last) return;
    for (int64_t n = 0; n < samples_; ++n) {
      for (int64_t c = 0; c < channels_; ++c) {
        float* to = args.out<float>(0) + (n * channels_ + c) * dlevel_.pixels;
        for (int64_t p = 0; p < dlevel_.pixels; ++p) to[p] = sums[(n * dlevel_.pixels + p) * channels_ + c];
      }
    }
  }

 private:
  void add_pixel(const KernelArgs& args, const float* feature, int64_t n, int64_t p, int64_t count, float* scratch, float* sums) const {
    const int64_t values = side_ * side_;
    float *grad = scratch, *products = grad + values, *line = products + size_ * size_;
    const Place at = place(args.in<float>(1), n, p, level_, dlevel_);
    if (!at.inside) return;
    const float* from = args.in<float>(0) + grad_.at(n, p) + level_ * values * grad_.step();
    for (int64_t v = 0; v < values; ++v) grad[v] = from[v * grad_.step()];
    HWY_DYNAMIC_DISPATCH(flow_loops::spread_window)(grad, size_, at.across, at.down, scale(), line, products);
    const Window& w = at.window;
    for (int64_t j = std::max<int64_t>(0, -w.y); j < std::min(size_, w.rows - w.y); ++j) {
      for (int64_t i = std::max<int64_t>(0, -w.x); i < std::min(size_, w.columns - w.x); ++i) {
        float* to = sums + ((w.y + j) * w.columns + w.x + i) * channels_;
        HWY_DYNAMIC_DISPATCH(flow_loops::add_scaled)(products[i * size_ + j], feature, count, to);
      }
    }
  }

  int64_t level_;
  Maps grad_, first_, dlevel_;
  int64_t samples_, threads_;
};

/// Shared parts of convex_upsample and its gradient.
class Upsample : public PreparedKernel {
 protected:
  Upsample(const KernelQuery& q, const TensorType& flow, const TensorType& mask, const TensorType& fine)
      : factor_(q.attrs<ConvexUpsampleAttrs>().factor),
        parts_(factor_ * factor_),
        flow_(flow),
        mask_(mask),
        fine_(fine),
        samples_(flow.shape[0]),
        threads_(q.threads) {}

  /// The neighbor k of a pixel; -1 outside.
  int64_t neighbor(int64_t pixel, int64_t k) const {
    const int64_t row = pixel / flow_.columns + k / 3 - 1, column = pixel % flow_.columns + k % 3 - 1;
    return row < 0 || row >= flow_.rows || column < 0 || column >= flow_.columns ? -1 : row * flow_.columns + column;
  }
  void weights(const float* mask, int64_t n, int64_t pixel, float* line, float* weight) const {
    HWY_DYNAMIC_DISPATCH(flow_loops::mask_weights)(MaskOfPixel{mask + mask_.at(n, pixel), parts_, mask_.step()}, line, weight);
  }
  /// The fine pixel `part` of a coarse one.
  int64_t fine_pixel(int64_t pixel, int64_t part) const {
    const int64_t row = pixel / flow_.columns, column = pixel % flow_.columns;
    return (row * factor_ + part / factor_) * fine_.columns + column * factor_ + part % factor_;
  }

  int64_t factor_, parts_;
  Maps flow_, mask_, fine_;
  int64_t samples_, threads_;
};

class ConvexUpsample : public Upsample {
 public:
  explicit ConvexUpsample(const KernelQuery& q) : Upsample(q, q.in(0), q.in(1), q.out(0)) {}
  int64_t scratch_bytes() const override { return threads_ * room() * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    const float *flow = args.in<float>(0), *mask = args.in<float>(1);
    parallel_tasks(samples_ * flow_.rows, threads_, [&](int64_t task, int64_t slot) {
      const int64_t n = task / flow_.rows, begin = task % flow_.rows * flow_.columns;
      float *weight = static_cast<float*>(args.scratch) + slot * room(), *line = weight + 9 * parts_;
      for (int64_t p = begin; p < begin + flow_.columns; ++p) {
        weights(mask, n, p, line, weight);
        for (int64_t c = 0; c < flow_.channels; ++c) {
          std::fill_n(line, parts_, 0.0f);
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t other = neighbor(p, k);
            if (other < 0) continue;
            const float value = static_cast<float>(factor_) * flow[flow_.at(n, other) + c * flow_.step()];
            HWY_DYNAMIC_DISPATCH(flow_loops::add_scaled)(value, weight + k * parts_, parts_, line);
          }
          for (int64_t part = 0; part < parts_; ++part)
            args.out<float>(0)[fine_.at(n, fine_pixel(p, part)) + c * fine_.step()] = line[part];
        }
      }
    });
  }

 private:
  int64_t room() const { return 11 * parts_; }
};

class ConvexUpsampleBackward : public Upsample {
 public:
  explicit ConvexUpsampleBackward(const KernelQuery& q) : Upsample(q, q.in(1), q.in(2), q.in(0)) {}
  int64_t scratch_bytes() const override { return 4 * (threads_ * room() + samples_ * flow_.pixels * 9 * flow_.channels); }
  void run(Stream&, const KernelArgs& args) const override {
    float* given = static_cast<float*>(args.scratch) + threads_ * room();  // [N, pixel, 9, channel]: what neighbor k gets of a pixel
    parallel_tasks(samples_ * flow_.rows, threads_, [&](int64_t task, int64_t slot) {
      const int64_t n = task / flow_.rows, begin = task % flow_.rows * flow_.columns;
      for (int64_t p = begin; p < begin + flow_.columns; ++p)
        give(args, n, p, static_cast<float*>(args.scratch) + slot * room(), given + (n * flow_.pixels + p) * 9 * flow_.channels);
    });
    float* dflow = args.out<float>(0);
    parallel_for(samples_ * flow_.pixels, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const int64_t n = at / flow_.pixels, p = at % flow_.pixels;
        for (int64_t c = 0; c < flow_.channels; ++c) {
          float sum = 0;
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t giver = neighbor(p, 8 - k);  // p is its neighbor k
            if (giver >= 0) sum += given[((n * flow_.pixels + giver) * 9 + k) * flow_.channels + c];
          }
          dflow[flow_.at(n, p) + c * flow_.step()] = sum;
        }
      }
    });
  }

 private:
  /// weights, slopes in them, the gradient of the fine pixels, a mean.
  int64_t room() const { return 20 * parts_; }

  void give(const KernelArgs& args, int64_t n, int64_t p, float* scratch, float* given) const {
    const float *grad = args.in<float>(0), *flow = args.in<float>(1);
    float *weight = scratch, *slope = weight + 9 * parts_, *fine = slope + 9 * parts_, *mean = fine + parts_;
    weights(args.in<float>(2), n, p, fine, weight);
    std::fill_n(slope, 9 * parts_, 0.0f);
    for (int64_t c = 0; c < flow_.channels; ++c) {
      for (int64_t part = 0; part < parts_; ++part)
        fine[part] = static_cast<float>(factor_) * grad[fine_.at(n, fine_pixel(p, part)) + c * fine_.step()];
      for (int64_t k = 0; k < 9; ++k) {
        const int64_t other = neighbor(p, k);
        float sum = 0;
        for (int64_t part = 0; part < parts_ && other >= 0; ++part) sum += fine[part] * weight[k * parts_ + part];
        given[k * flow_.channels + c] = sum;
        if (other >= 0)
          HWY_DYNAMIC_DISPATCH(flow_loops::add_scaled)(flow[flow_.at(n, other) + c * flow_.step()], fine, parts_, slope + k * parts_);
      }
    }
    std::fill_n(mean, parts_, 0.0f);
    for (int64_t i = 0; i < 9 * parts_; ++i) mean[i % parts_] += weight[i] * slope[i];
    float* dmask = args.out<float>(1) + mask_.at(n, p);
    for (int64_t i = 0; i < 9 * parts_; ++i) dmask[i * mask_.step()] = weight[i] * (slope[i] - mean[i % parts_]);
  }
};

class Detach : public PreparedKernel {
 public:
  explicit Detach(const KernelQuery& q) : bytes_(q.in(0).elements() * dtype_size(q.in(0).dtype)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const auto* x = args.in<std::byte>(0);
    if (x != args.out<std::byte>(0)) std::copy_n(x, bytes_, args.out<std::byte>(0));
  }

 private:
  int64_t bytes_;
};

Support supports_detach(const KernelQuery& q) {
  if (!(q.in(0).format == q.out(0).format)) return Support::no(cat("format ", q.in(0).format, ", output ", q.out(0).format));
  return Support::yes();
}

Support supports(const KernelQuery& q) {
  if (q.node.inputs.size() > kMostLevels) return Support::no("more than 14 levels");
  const auto check = [](const TensorType& x) {
    if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
    if (!x.format.is_contiguous() && !x.format.is_channels_last()) return Support::no(cat("format ", x.format));
    return Support::yes();
  };
  for (int i = 0; i < static_cast<int>(q.node.inputs.size()); ++i) {
    if (const Support answer = check(q.in(i)); !answer) return answer;
  }
  for (int i = 0; i < static_cast<int>(q.node.outputs.size()); ++i) {
    if (const Support answer = check(q.out(i)); !answer) return answer;
  }
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 6> kKernels{{
    {"detach", "copy", supports_detach, prepare<Detach>},
    {"correlation_lookup", "windows", supports, prepare<CorrelationLookup>},
    {"correlation_lookup_backward_first", "windows", supports, prepare<LookupBackwardFirst>},
    {"correlation_lookup_backward_level", "channel_parts", supports, prepare<LookupBackwardLevel>},
    {"convex_upsample", "pixels", supports, prepare<ConvexUpsample>},
    {"convex_upsample_backward", "pixels", supports, prepare<ConvexUpsampleBackward>},
}};

}  // namespace

std::span<const Kernel> cpu_flow() { return kKernels; }

}  // namespace galley

#endif
