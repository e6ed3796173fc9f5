#pragma once
// Cross entropy of class indices with log-softmax, its gradient, and the norm of gradients. Sums are added in one order. Memory traffic
// bounds them: logits are read three times, and their gradient is written once.

#include "libcore/backends/cuda/kernels/rows.h"

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
GALLEY_KERNEL(cross_entropy_positions, (const CrossEntropyCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float spread = call.smoothing / static_cast<float>(call.classes);
  for (int64_t position = blockIdx.x; position < call.positions; position += gridDim.x) {
    const LossPosition at = loss_position(call, position);
    float largest = 0, logarithm = 0, sum = 0;
    log_sum(call, at.begin, shared, &largest, &logarithm);
    if (call.smoothing > 0) {
      for (int64_t c = threadIdx.x; c < call.classes; c += kThreads) {
        const float share = spread * factor_of(call.weight, c, call.weight_type);
        if (share != 0) sum += share * (load<float>(call.logits, at.begin + c * call.inner, call.type) - largest - logarithm);
      }
      sum = block_sum(sum, shared);
    }
    if (threadIdx.x == 0) {
      const float share = (1 - call.smoothing) * at.weight;
      if (share != 0) sum += share * (load<float>(call.logits, at.begin + at.target * call.inner, call.type) - largest - logarithm);
      const float loss = at.ignored ? 0.0f : -sum;
      if (call.sums == nullptr) {
        store(loss, call.to, position, call.type);
      } else {
        call.sums[position] = loss;
        call.sums[call.positions + position] = at.weight;
      }
    }
  }
}

/// The sum of `count` numbers by one block, in double.
GALLEY_DEVICE double sum_of(const float* values, int64_t count, double* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
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
  if (threadIdx.x == 0) store(loss, call.to, 0, call.type);
}

/// One block adds up the weights of the targets, which divide the gradient of a mean.
GALLEY_KERNEL(cross_entropy_weights, (const CrossEntropyCall call)) {
  GALLEY_SHARED(double, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = thread; i < call.positions; i += kThreads) sum += static_cast<double>(loss_position(call, i).weight);
  shared[thread] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  if (thread == 0) call.sums[0] = static_cast<float>(shared[0]);
}

/// A block computes the gradient of the logits of a position.
GALLEY_KERNEL(cross_entropy_backward_positions, (const CrossEntropyCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float spread = call.smoothing / static_cast<float>(call.classes);
  for (int64_t position = blockIdx.x; position < call.positions; position += gridDim.x) {
    const LossPosition at = loss_position(call, position);
    float largest = 0, logarithm = 0, share = 0;
    log_sum(call, at.begin, shared, &largest, &logarithm);
    if (call.smoothing > 0) {
      for (int64_t c = threadIdx.x; c < call.classes; c += kThreads) share += spread * factor_of(call.weight, c, call.weight_type);
      share = block_sum(share, shared);
    }
    share = at.ignored ? 0.0f : share + (1 - call.smoothing) * at.weight;
    float grad = load<float>(call.grad, call.each != 0 ? position : 0, call.type);
    if (call.mean != 0) grad /= call.sums[0];
    for (int64_t c = threadIdx.x; c < call.classes; c += kThreads) {
      const int64_t place = at.begin + c * call.inner;
      float own = call.smoothing > 0 && !at.ignored ? spread * factor_of(call.weight, c, call.weight_type) : 0.0f;
      if (c == at.target && !at.ignored) own += (1 - call.smoothing) * at.weight;
      const float slope = exp(load<float>(call.logits, place, call.type) - largest - logarithm) * share - own;  // NaN logits are seen
      store(slope == 0 ? 0.0f : grad * slope, call.to, place, call.type);
    }
  }
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
    double sum = 0;
    for (int64_t i = begin + thread; i < end; i += kThreads) {
      const double x = static_cast<double>(load<float>(call.from[array], i, call.types[array]));
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
