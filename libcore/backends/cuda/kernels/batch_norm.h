#pragma once
// Batch norm by the batch's statistics. Blocks walk parts of the elements of some channels (channels.h); a second kernel merges the results
// of parts in their order, a third one writes the array. Parts depend on the shape alone. Memory traffic bounds them: forward 6 bytes of an
// element in bf16, backward 10; with a residual 8 and 14, of a sum of gradients 16.

#include "libcore/backends/cuda/kernels/channels.h"
#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

/// How many, their mean, and the sum of the squares of their distances to it.
struct Moments {
  float count, mean, squares;
};
/// Chan, Golub, LeVeque 1979.
GALLEY_DEVICE Moments merged(const Moments& a, const Moments& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const float count = a.count + b.count, share = b.count / count, distance = b.mean - a.mean;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}
struct TwoSums {
  float first, second;
};
GALLEY_DEVICE TwoSums merged(const TwoSums& a, const TwoSums& b) { return {a.first + b.first, a.second + b.second}; }

/// The partial results of a block: [parts, 2, channels].
template <int kWidth>
GALLEY_DEVICE void store_partial(const BatchNormCall& call, const ChannelShare& share, const float (&first)[kWidth],
                                 const float (&second)[kWidth]) {
  if (share.row != 0 || share.channel >= call.walk.channels) return;
  float* to = call.partial + static_cast<int64_t>(share.part) * 2 * call.walk.channels + share.channel;
  GALLEY_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    if (j > 0 && call.walk.planes != 0) return;
    to[j] = first[j];
    to[call.walk.channels + j] = second[j];
  }
}

struct BatchNormParts {
  template <int kWidth, Type kType>
  GALLEY_DEVICE static void run(const BatchNormCall& call, Moments* shared) {
    const ChannelShare share = channel_share(call.walk, kWidth, static_cast<int>(blockIdx.x));
    const auto read = [&](int64_t place) { return read_unit<kWidth, kType>(call.x, place, call.type); };
    // Sums of the distances to the thread's first value, so that large means cancel nothing.
    float first[kWidth], sum[kWidth], square[kWidth];
    set_all(first, 0);
    set_all(sum, 0);
    set_all(square, 0);
    if (share.begin < share.end) unpack(read(place_of(call.walk, share.channel, share.begin)), first);
    each_unit<kType == kF32 ? 2 : 4>(call.walk, share, read, [&](int64_t, const Unit<kWidth, kType>& unit) {
      float x[kWidth];
      unpack(unit, x);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        const float d = x[j] - first[j];
        sum[j] += d;
        square[j] += d * d;
      }
    });
    const float count = static_cast<float>(units_of(share)), each = count > 0 ? 1 / count : 0;
    Moments own[kWidth];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      const float squares = square[j] - sum[j] * sum[j] * each;
      own[j] = {count, first[j] + sum[j] * each, squares < 0 ? 0 : squares};
    }
    merge_share(own, call.walk, share, shared);
    float mean[kWidth], squares[kWidth];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      mean[j] = own[j].mean;
      squares[j] = own[j].squares;
    }
    store_partial(call, share, mean, squares);
  }
};
GALLEY_KERNEL_OF(4, batch_norm_parts, (const BatchNormCall call)) {
  GALLEY_SHARED(Moments, shared, kThreads * kPack);
  by_packs<BatchNormParts>(call, shared);
}

/// mean, gamma / sqrt(var + eps) and beta of a channel in call.table, [kNormRows, channels].
GALLEY_DEVICE void store_scales(const BatchNormCall& call, int channel, float mean, float var) {
  const float gamma = call.gamma != nullptr ? load<float>(call.gamma, channel, call.gamma_type) : 1.0f;
  float* to = call.table + channel;
  to[0] = mean;
  to[call.walk.channels] = gamma / sqrt(var + call.eps);
  to[2 * call.walk.channels] = call.beta != nullptr ? load<float>(call.beta, channel, call.beta_type) : 0.0f;
}
template <int kWidth>
GALLEY_DEVICE void load_row(const BatchNormCall& call, int row, int channel, float (&x)[kWidth]) {
  load_vector(call.table + row * call.walk.channels, kF32, call.walk, channel, 0, x);
}

GALLEY_KERNEL(batch_norm_statistics, (const BatchNormCall call)) {
  GALLEY_SHARED(Moments, shared, kThreads);
  const ChannelWalk& walk = call.walk;
  const int channel = static_cast<int>(merged_channel()), row = merged_row();
  const int each = walk.planes != 0 && walk.packs != 0 ? kPack : 1;
  Moments own[1] = {{0, 0, 0}};
  if (channel < walk.channels) {
    GALLEY_UNROLL_BY_4
    for (int part = row; part < walk.parts; part += kMergeRows) {
      const int begin = part * walk.part_units, left = walk.units - begin;
      const float* from = call.partial + static_cast<int64_t>(part) * 2 * walk.channels + channel;
      const Moments other = {static_cast<float>(left < walk.part_units ? left : walk.part_units) * static_cast<float>(each), from[0],
                             from[walk.channels]};
      own[0] = merged(own[0], other);
    }
  }
  merge_rows(own, row, kMergeRows, kMergeLanes, shared);
  if (row != 0 || channel >= walk.channels) return;
  const float var = own[0].squares / static_cast<float>(call.count > 0 ? call.count : 1);
  store(own[0].mean, call.mean, channel, call.statistics_type);
  store(var, call.var, channel, call.statistics_type);
  store_scales(call, channel, own[0].mean, var);
}

/// The statistics by sums that a convolution made.
GALLEY_KERNEL(batch_norm_of_sums, (const BatchNormCall call)) {
  const float share = 1 / static_cast<float>(call.count > 0 ? call.count : 1);
  for (int64_t channel = first_element(); channel < call.walk.channels; channel += all_threads()) {
    const float mean = call.sum[channel] * share, difference = call.squares[channel] * share - mean * mean;
    const float var = difference < 0 ? 0 : difference;  // NaN stays
    store(mean, call.mean, channel, call.statistics_type);
    store(var, call.var, channel, call.statistics_type);
    store_scales(call, static_cast<int>(channel), mean, var);
  }
}

enum NormActivation : int { kClamped, kHardswished };  // kClamped: also none
GALLEY_DEVICE NormActivation norm_activation(int activation) { return activation == 3 ? kHardswished : kClamped; }
/// The range to which an activation clamps.
GALLEY_DEVICE float lowest_of(int activation) { return activation == 1 || activation == 2 ? 0.0f : -infinity(); }
GALLEY_DEVICE float highest_of(int activation) { return activation == 2 ? 6.0f : infinity(); }

/// The blocks of a second pass begin with what the first one read last, which is still in the cache.
GALLEY_DEVICE int last_first() { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }

template <NormActivation kActivation, bool kResidual>
struct BatchNormValues {
  template <int kWidth, Type kType>
  GALLEY_DEVICE static void run(const BatchNormCall& call) {
    struct Read {
      Unit<kWidth, kType> x, residual;
    };
    const ChannelShare share = channel_share(call.walk, kWidth, last_first());
    if (share.begin >= share.end) return;
    const float low = lowest_of(call.activation), high = highest_of(call.activation);
    float mean[kWidth], scale[kWidth], beta[kWidth];
    load_row(call, 0, share.channel, mean);
    load_row(call, 1, share.channel, scale);
    load_row(call, 2, share.channel, beta);
    const auto read = [&](int64_t place) {
      Read values;
      values.x = read_unit<kWidth, kType>(call.x, place, call.type);
      if constexpr (kResidual) values.residual = read_unit<kWidth, kType>(call.residual, place, call.type);
      return values;
    };
    each_unit<(kResidual ? 2 : 4) / (kType == kF32 ? 2 : 1)>(call.walk, share, read, [&](int64_t place, const Read& values) {
      float x[kWidth], residual[kWidth];
      unpack(values.x, x);
      if constexpr (kResidual) unpack(values.residual, residual);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        float y = (x[j] - mean[j]) * scale[j] + beta[j];
        if constexpr (kResidual) y += residual[j];
        x[j] = kActivation == kHardswished ? Hardswish::value(y) : at_most(at_least(y, low), high);
      }
      write_unit<kWidth, kType>(x, call.y, place, call.type);
    });
  }
};
GALLEY_KERNEL_OF(3, batch_norm_values, (const BatchNormCall call)) {
  if (norm_activation(call.activation) == kHardswished) return by_packs<BatchNormValues<kHardswished, false>>(call);
  if (call.residual != nullptr) return by_packs<BatchNormValues<kClamped, true>>(call);
  by_packs<BatchNormValues<kClamped, false>>(call);
}

/// How the gradient of the result passes the activation: as it is, by the input of the activation, or where the result is positive; or the
/// sum of two gradients so.
enum NormSlope : int { kSlopeOne, kSlopeClamped, kSlopeHardswish, kSlopeMask, kSlopeMaskOfSum };
template <NormSlope kSlope>
inline constexpr bool kHasMask = kSlope == kSlopeMask || kSlope == kSlopeMaskOfSum;

template <int kWidth, Type kType>
struct GradientUnit {
  Unit<kWidth, kType> x, grad, mask, addend;
};
template <NormSlope kSlope, Type kType>
inline constexpr int kGradientsAtOnce = (kHasMask<kSlope> ? 2 : 4) / (kType == kF32 ? 2 : 1);  // that fit into registers
template <NormSlope kSlope, int kWidth, Type kType>
GALLEY_DEVICE GradientUnit<kWidth, kType> read_gradient(const BatchNormCall& call, int64_t place) {
  GradientUnit<kWidth, kType> values;
  values.x = read_unit<kWidth, kType>(call.x, place, call.type);
  values.grad = read_unit<kWidth, kType>(call.grad, place, call.type);
  if constexpr (kHasMask<kSlope>) values.mask = read_unit<kWidth, kType>(call.mask, place, call.type);
  if constexpr (kSlope == kSlopeMaskOfSum) values.addend = read_unit<kWidth, kType>(call.addend, place, call.type);
  return values;
}
/// The distances of x to its mean, and the gradients of the activation's input.
template <NormSlope kSlope, int kWidth, Type kType>
GALLEY_DEVICE void take_gradient(const GradientUnit<kWidth, kType>& values, const float (&mean)[kWidth], const float (&scale)[kWidth],
                                 const float (&beta)[kWidth], float low, float high, float (&distance)[kWidth], float (&grad)[kWidth]) {
  float mask[kWidth], addend[kWidth];
  unpack(values.x, distance);
  unpack(values.grad, grad);
  if constexpr (kHasMask<kSlope>) unpack(values.mask, mask);
  if constexpr (kSlope == kSlopeMaskOfSum) unpack(values.addend, addend);
  GALLEY_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    distance[j] -= mean[j];
    const float normal = distance[j] * scale[j] + beta[j];
    if constexpr (kSlope == kSlopeMaskOfSum) grad[j] += addend[j];
    if constexpr (kHasMask<kSlope>) grad[j] = mask[j] > 0 ? grad[j] : 0;
    if constexpr (kSlope == kSlopeClamped) grad[j] = normal > low && normal < high ? grad[j] : 0;
    if constexpr (kSlope == kSlopeHardswish) grad[j] *= Hardswish::slope(normal, 0.0f);
  }
}

/// mean, gamma / sqrt(var + eps) and beta of the channels of a thread.
template <int kWidth>
GALLEY_DEVICE void load_scales(const BatchNormCall& call, int channel, float (&mean)[kWidth], float (&scale)[kWidth],
                               float (&beta)[kWidth]) {
  float gamma[kWidth];
  load_vector(call.mean, call.statistics_type, call.walk, channel, 0, mean);
  load_vector(call.var, call.statistics_type, call.walk, channel, 1, scale);
  load_vector(call.gamma, call.gamma_type, call.walk, channel, 1, gamma);
  load_vector(call.beta, call.beta_type, call.walk, channel, 0, beta);
  GALLEY_UNROLL
  for (int j = 0; j < kWidth; ++j) scale[j] = gamma[j] / sqrt(scale[j] + call.eps);
}

/// Sums of the gradient and of its products with the distances of x to its mean. Writes the residual's gradient.
template <NormSlope kSlope>
struct BatchNormBackwardParts {
  template <int kWidth, Type kType>
  GALLEY_DEVICE static void run(const BatchNormCall& call, TwoSums* shared) {
    const ChannelShare share = channel_share(call.walk, kWidth, static_cast<int>(blockIdx.x));
    const float low = lowest_of(call.activation), high = highest_of(call.activation);
    float mean[kWidth], scale[kWidth], beta[kWidth];
    load_scales(call, share.channel, mean, scale, beta);
    TwoSums own[kWidth];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) own[j] = {0, 0};
    const auto read = [&](int64_t place) { return read_gradient<kSlope, kWidth, kType>(call, place); };
    each_unit<kGradientsAtOnce<kSlope, kType>>(call.walk, share, read, [&](int64_t place, const GradientUnit<kWidth, kType>& values) {
      float x[kWidth], grad[kWidth];
      take_gradient<kSlope>(values, mean, scale, beta, low, high, x, grad);
      if (call.dresidual != nullptr) write_unit<kWidth, kType>(grad, call.dresidual, place, call.type);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        own[j].first += grad[j];
        own[j].second += grad[j] * x[j];
      }
    });
    merge_share(own, call.walk, share, shared);
    float sum[kWidth], product[kWidth];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      sum[j] = own[j].first;
      product[j] = own[j].second;
    }
    store_partial(call, share, sum, product);
  }
};
GALLEY_DEVICE NormSlope norm_slope(const BatchNormCall& call) {
  if (call.mask != nullptr) return call.addend != nullptr ? kSlopeMaskOfSum : kSlopeMask;
  return call.activation == 0 ? kSlopeOne : call.activation == 3 ? kSlopeHardswish : kSlopeClamped;
}
GALLEY_KERNEL_OF(2, batch_norm_backward_parts, (const BatchNormCall call)) {
  GALLEY_SHARED(TwoSums, shared, kThreads * kPack);
  const NormSlope slope = norm_slope(call);
  if (slope == kSlopeMask) return by_packs<BatchNormBackwardParts<kSlopeMask>>(call, shared);
  if (slope == kSlopeMaskOfSum) return by_packs<BatchNormBackwardParts<kSlopeMaskOfSum>>(call, shared);
  if (slope == kSlopeClamped) return by_packs<BatchNormBackwardParts<kSlopeClamped>>(call, shared);
  if (slope == kSlopeHardswish) return by_packs<BatchNormBackwardParts<kSlopeHardswish>>(call, shared);
  by_packs<BatchNormBackwardParts<kSlopeOne>>(call, shared);
}

/// The sums of all parts, as they are, and as the gradients of beta and gamma.
GALLEY_KERNEL(batch_norm_backward_sums, (const BatchNormCall call)) {
  GALLEY_SHARED(TwoSums, shared, kThreads);
  const ChannelWalk& walk = call.walk;
  const int channel = static_cast<int>(merged_channel()), row = merged_row();
  TwoSums own[1] = {{0, 0}};
  if (channel < walk.channels) {
    GALLEY_UNROLL_BY_4
    for (int part = row; part < walk.parts; part += kMergeRows) {
      const float* from = call.partial + static_cast<int64_t>(part) * 2 * walk.channels + channel;
      own[0] = merged(own[0], TwoSums{from[0], from[walk.channels]});
    }
  }
  merge_rows(own, row, kMergeRows, kMergeLanes, shared);
  if (row != 0 || channel >= walk.channels) return;
  const float var = load<float>(call.var, channel, call.statistics_type), each = 1 / static_cast<float>(call.count > 0 ? call.count : 1);
  store(own[0].first, call.dbeta, channel, call.gradient_type);
  store(own[0].second / sqrt(var + call.eps), call.dgamma, channel, call.gradient_type);
  store_scales(call, channel, load<float>(call.mean, channel, call.statistics_type), var);
  float* to = call.table + channel;
  const float scale = to[walk.channels] * each;
  to[3 * walk.channels] = scale * own[0].first;
  to[4 * walk.channels] = scale * own[0].second / (var + call.eps);
}

template <NormSlope kSlope>
struct BatchNormBackwardValues {
  template <int kWidth, Type kType>
  GALLEY_DEVICE static void run(const BatchNormCall& call) {
    const ChannelShare share = channel_share(call.walk, kWidth, last_first());
    if (share.begin >= share.end) return;
    const float low = lowest_of(call.activation), high = highest_of(call.activation);
    // dx = scale * g - constant - (x - mean) * factor
    float mean[kWidth], scale[kWidth], beta[kWidth], constant[kWidth], factor[kWidth];
    load_row(call, 0, share.channel, mean);
    load_row(call, 1, share.channel, scale);
    load_row(call, 2, share.channel, beta);
    load_row(call, 3, share.channel, constant);
    load_row(call, 4, share.channel, factor);
    const auto read = [&](int64_t place) { return read_gradient<kSlope, kWidth, kType>(call, place); };
    each_unit<kGradientsAtOnce<kSlope, kType>>(call.walk, share, read, [&](int64_t place, const GradientUnit<kWidth, kType>& values) {
      float dx[kWidth], grad[kWidth];
      take_gradient<kSlope>(values, mean, scale, beta, low, high, dx, grad);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) dx[j] = scale[j] * grad[j] - constant[j] - dx[j] * factor[j];
      write_unit<kWidth, kType>(dx, call.y, place, call.type);
    });
  }
};
GALLEY_KERNEL_OF(2, batch_norm_backward_values, (const BatchNormCall call)) {
  const NormSlope slope = norm_slope(call);
  if (slope == kSlopeMask) return by_packs<BatchNormBackwardValues<kSlopeMask>>(call);
  if (slope == kSlopeClamped) return by_packs<BatchNormBackwardValues<kSlopeClamped>>(call);
  if (slope == kSlopeHardswish) return by_packs<BatchNormBackwardValues<kSlopeHardswish>>(call);
  by_packs<BatchNormBackwardValues<kSlopeOne>>(call);
}

GALLEY_KERNEL(batch_norm_update_channels, (const BatchNormUpdateCall call)) {
  if (call.gate != nullptr && *call.gate == 0) return;
  for (int64_t c = first_element(); c < call.channels; c += all_threads()) {
    const float mean = load_real(call.running_mean, c, call.type), var = load_real(call.running_var, c, call.type);
    store_real(call.keep * mean + call.take * call.mean[c], call.running_mean, c, call.type);
    store_real(call.keep * var + call.take_var * call.var[c], call.running_var, c, call.type);
  }
  if (call.count != nullptr && first_element() == 0) *call.count += 1;
}

}  // namespace galley::device
