#pragma once
// Cross entropy of class indices with log-softmax, its gradient, and the norm of gradients. Sums are added in one order. Memory traffic
// bounds them: logits are read once forward and twice backward, the second time from the cache, and their gradient is written once.

#include "libcore/backends/cuda/kernels/packs.h"
#include "libcore/backends/cuda/kernels/rows.h"
#include "libcore/backends/cuda/kernels/warps.h"

namespace galley::device {

/// A position of the loss: its target and its share in the sums.
struct LossPosition {
  int64_t begin, target;  // of the logits; the class, -1: none
  bool ignored;
  float weight;  // of the target's class; 0: ignored or none
};
GALLEY_DEVICE LossPosition loss_position(const CrossEntropyCall& call, int64_t position) {
  const int64_t target = load<int64_t>(call.target, position, call.target_type);
  LossPosition at{};
  at.begin = position / call.inner * call.classes * call.inner + position % call.inner;
  at.ignored = target == call.ignored;
  at.target = target >= 0 && target < call.classes ? target : -1;
  at.weight = at.ignored || at.target < 0 ? 0.0f : factor_of(call.weight, at.target, call.weight_type);
  return at;
}

/// The largest logit and log sum exp(x - largest), for all threads.
GALLEY_DEVICE void log_sum(const CrossEntropyCall& call, int64_t begin, float* shared, float* largest, float* logarithm) {
  float most = 0;
  for (int64_t c = threadIdx.x; c < call.classes; c += kThreads) {
    const float x = load<float>(call.logits, begin + c * call.inner, call.type);
    most = c == static_cast<int64_t>(threadIdx.x) || x > most || is_nan(x) ? x : most;
  }
  most = block_max(most, call.classes, shared);
  float sum = 0;
  for (int64_t c = threadIdx.x; c < call.classes; c += kThreads)
    sum += exp(load<float>(call.logits, begin + c * call.inner, call.type) - most);
  *largest = most;
  *logarithm = log(block_sum(sum, shared));
}

/// A block computes the loss of a position: to `to`, or with its weight to `sums`.
GALLEY_DEVICE void position_loss(const CrossEntropyCall& call, int64_t position, const LossPosition& at, float largest, float logarithm,
                                 float* shared) {
  float sum = 0;
  if (call.smoothing > 0) {
    const float spread = call.smoothing / static_cast<float>(call.classes);
    for (int64_t c = threadIdx.x; c < call.classes; c += kThreads) {
      const float share = spread * factor_of(call.weight, c, call.weight_type);
      if (share != 0) sum += share * (load<float>(call.logits, at.begin + c * call.inner, call.type) - largest - logarithm);
    }
    sum = block_sum(sum, shared);
  }
  if (threadIdx.x != 0) return;
  const float share = (1 - call.smoothing) * at.weight;
  if (share != 0) sum += share * (load<float>(call.logits, at.begin + at.target * call.inner, call.type) - largest - logarithm);
  const float loss = at.ignored ? 0.0f : -sum;
  if (call.sums == nullptr) {
    store_real(loss, call.to, position, call.loss_type);
  } else {
    call.sums[position] = loss;
    call.sums[call.positions + position] = at.weight;
  }
}
GALLEY_KERNEL(cross_entropy_positions, (const CrossEntropyCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  for (int64_t position = blockIdx.x; position < call.positions; position += gridDim.x) {
    const LossPosition at = loss_position(call, position);
    float largest = 0, logarithm = 0;
    log_sum(call, at.begin, shared, &largest, &logarithm);
    position_loss(call, position, at, largest, logarithm, shared);
  }
}

/// log_sum of a contiguous row, which is read once: a thread's sum shrinks when it finds a larger number. The sum is NaN if a logit is.
template <Type kType>
GALLEY_DEVICE void log_sum_of_row(const CrossEntropyCall& call, int64_t begin, float* shared, float* largest, float* logarithm) {
  float most = -3.402823466e+38f, sum = 0;  // of floats the lowest: an infinity less itself is NaN
  const auto of_pack = [&](int64_t, const Packed<kType>& pack) {
    float x[kPack], higher = most;
    unpack(pack, x);
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) higher = ::fmaxf(x[j], higher);  // of a number and NaN, the number
    sum *= exp(most - higher);
    most = higher;
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) sum += exp(x[j] - most);
  };
  const auto of_one = [&](int64_t c) {
    const float x = load_real(call.logits, begin + c, kType), higher = ::fmaxf(x, most);
    sum = sum * exp(most - higher) + exp(x - higher);
    most = higher;
  };
  each_of_row<kType>(call.logits, begin, call.classes, of_pack, of_one);
  __syncthreads();  // `shared` has been read
  *largest = block_largest(most, shared);
  *logarithm = log(row_sum(sum * exp(most - *largest), kWarps, shared + kWarps));
}

GALLEY_KERNEL_OF(3, cross_entropy_rows, (const CrossEntropyCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  for (int64_t position = blockIdx.x; position < call.positions; position += gridDim.x) {
    const LossPosition at = loss_position(call, position);
    float largest = 0, logarithm = 0;
    with_type(call.type, [&]<Type kType>() { log_sum_of_row<kType>(call, at.begin, shared, &largest, &logarithm); });
    position_loss(call, position, at, largest, logarithm, shared);
  }
}

/// The sum of `count` numbers by one block, in double.
GALLEY_DEVICE double sum_of(const float* values, int64_t count, double* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  GALLEY_UNROLL_BY_4
  for (int64_t i = thread; i < count; i += kThreads) sum += static_cast<double>(values[i]);
  __syncthreads();
  shared[thread] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  __syncthreads();
  return shared[0];
}

/// One block adds up the losses, and divides them by the sum of the weights for a mean.
GALLEY_KERNEL(cross_entropy_total, (const CrossEntropyCall call)) {
  GALLEY_SHARED(double, shared, kThreads);
  double loss = sum_of(call.sums, call.positions, shared);
  if (call.mean != 0) loss /= sum_of(call.sums + call.positions, call.positions, shared);
  if (threadIdx.x == 0) store_real(static_cast<float>(loss), call.to, 0, call.loss_type);
}

/// One block adds up the weights of the targets, which divide the gradient of a mean.
GALLEY_KERNEL(cross_entropy_weights, (const CrossEntropyCall call)) {
  GALLEY_SHARED(double, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  GALLEY_UNROLL_BY_4
  for (int64_t i = thread; i < call.positions; i += kThreads) sum += static_cast<double>(loss_position(call, i).weight);
  shared[thread] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  if (thread == 0) call.sums[0] = static_cast<float>(shared[0]);
}

/// What the gradient of a position's logits is computed from.
struct LossSlope {
  float largest, logarithm, share, grad, spread, target_share;
  int64_t target;
  bool spreads;
  /// The part of class c that does not depend on its logit.
  GALLEY_DEVICE float own(const CrossEntropyCall& call, int64_t c) const {
    const float spread_to = !spreads ? 0.0f : call.weight == nullptr ? spread : spread * load_real(call.weight, c, call.weight_type);
    return c == target ? spread_to + target_share : spread_to;
  }
  GALLEY_DEVICE float of(float x, float own_share) const {
    const float slope = exp(x - largest - logarithm) * share - own_share;  // NaN logits are seen
    return slope == 0 ? 0.0f : grad * slope;
  }
};
/// All threads of the block must come.
GALLEY_DEVICE LossSlope loss_slope(const CrossEntropyCall& call, int64_t position, const LossPosition& at, float* shared) {
  LossSlope slope{};
  slope.spread = call.smoothing / static_cast<float>(call.classes);
  slope.spreads = call.smoothing > 0 && !at.ignored;
  if (call.smoothing > 0) {
    for (int64_t c = threadIdx.x; c < call.classes; c += kThreads)
      slope.share += slope.spread * factor_of(call.weight, c, call.weight_type);
    slope.share = block_sum(slope.share, shared);
  }
  slope.target_share = (1 - call.smoothing) * at.weight;
  slope.share = at.ignored ? 0.0f : slope.share + slope.target_share;
  slope.target = at.ignored ? -1 : at.target;
  slope.grad = load_real(call.grad, call.each != 0 ? position : 0, call.loss_type);
  if (call.mean != 0) slope.grad /= call.sums[0];
  return slope;
}

/// A block computes the gradient of the logits of a position.
GALLEY_KERNEL(cross_entropy_backward_positions, (const CrossEntropyCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  for (int64_t position = blockIdx.x; position < call.positions; position += gridDim.x) {
    const LossPosition at = loss_position(call, position);
    LossSlope slope = loss_slope(call, position, at, shared);
    log_sum(call, at.begin, shared, &slope.largest, &slope.logarithm);
    for (int64_t c = threadIdx.x; c < call.classes; c += kThreads) {
      const int64_t place = at.begin + c * call.inner;
      store(slope.of(load<float>(call.logits, place, call.type), slope.own(call, c)), call.to, place, call.type);
    }
  }
}

/// The same of contiguous rows. The gradient begins at the same place of a word as the logits.
template <Type kType>
GALLEY_DEVICE void row_gradients(const CrossEntropyCall& call, int64_t begin, const LossSlope& slope) {
  const auto of_pack = [&](int64_t c, const Packed<kType>& pack) {
    float x[kPack], own[kPack] = {};
    unpack(pack, x);
    if (slope.spreads || (slope.target >= c && slope.target < c + kPack)) {
      GALLEY_UNROLL
      for (int j = 0; j < kPack; ++j) own[j] = slope.own(call, c + j);
    }
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) x[j] = slope.of(x[j], own[j]);
    stream_pack(packed<kType>(x), call.to, begin + c);
  };
  const auto of_one = [&](int64_t c) {
    store_real(slope.of(load_real(call.logits, begin + c, kType), slope.own(call, c)), call.to, begin + c, kType);
  };
  each_of_row<kType>(call.logits, begin, call.classes, of_pack, of_one);
}
GALLEY_KERNEL_OF(2, cross_entropy_backward_rows, (const CrossEntropyCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  for (int64_t position = blockIdx.x; position < call.positions; position += gridDim.x) {
    const LossPosition at = loss_position(call, position);
    LossSlope slope = loss_slope(call, position, at, shared);
    with_type(call.type, [&]<Type kType>() {
      log_sum_of_row<kType>(call, at.begin, shared, &slope.largest, &slope.logarithm);
      row_gradients<kType>(call, at.begin, slope);
    });
  }
}

/// The squares of a thread's packs: eight are added in float, those of packs in double.
template <Type kType>
GALLEY_DEVICE double squares_of_packs(const void* from, int64_t begin, int64_t end) {
  double sum = 0;
  GALLEY_UNROLL_BY_4
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kPack; i < end; i += kThreads * kPack) {
    float x[kPack], squares = 0;
    unpack(read_pack<kType>(from, i), x);
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) squares += x[j] * x[j];
    sum += static_cast<double>(squares);
  }
  return sum;
}
/// A block adds up the squares of a part of an array; part p of all arrays is sums[p]. Part begins at call.begin.
GALLEY_KERNEL(square_parts, (const SquaresCall call)) {
  GALLEY_SHARED(double, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t part = blockIdx.x; part < call.parts; part += gridDim.x) {
    int array = 0;
    while (array + 1 < call.arrays && call.first_part[array + 1] <= call.begin + part) ++array;
    const int64_t begin = (call.begin + part - call.first_part[array]) * call.part_size;
    const int64_t end = begin + call.part_size < call.elements[array] ? begin + call.part_size : call.elements[array];
    const int64_t whole = has_packs(call.from[array]) ? begin + (end - begin) / kPack * kPack : begin;
    double sum = 0;
    with_type(call.types[array], [&]<Type kType>() { sum = squares_of_packs<kType>(call.from[array], begin, whole); });
    for (int64_t i = whole + thread; i < end; i += kThreads) {
      const double x = static_cast<double>(load_real(call.from[array], i, call.types[array]));
      sum += x * x;
    }
    __syncthreads();  // the last result has been read
    shared[thread] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half) shared[thread] += shared[thread + half];
    }
    if (thread == 0) call.sums[call.begin + part] = shared[0];
  }
}

/// One block adds up the sums of all parts.
GALLEY_KERNEL(square_total, (const SquaresCall call)) {
  GALLEY_SHARED(double, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = thread; i < call.parts; i += kThreads) sum += call.sums[i];
  shared[thread] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  if (thread == 0) store(shared[0], call.to, 0, kF32);
}

}  // namespace galley::device
