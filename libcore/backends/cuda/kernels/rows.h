#pragma once
// Softmax. A block computes a line; its threads' sums are added in a tree, so that bits do not depend on the GPU. Memory traffic bounds it.

#include "libcore/backends/cuda/kernels/activations.h"

namespace galley::device {

/// The sum of the threads' values, for all threads. `shared` has a place for each thread.
GALLEY_DEVICE float block_sum(float value, float* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // the result of the last sum has been read
  shared[thread] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  __syncthreads();
  return shared[0];
}
/// The largest of the values of the first `count` threads, NaN if one is, for all threads.
GALLEY_DEVICE float block_max(float value, int64_t count, float* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half && thread + half < count) {
      const float other = shared[thread + half];
      shared[thread] = other > shared[thread] || is_nan(other) ? other : shared[thread];
    }
  }
  __syncthreads();
  return shared[0];
}

GALLEY_KERNEL(softmax_lines, (const SoftmaxCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  for (int64_t line = blockIdx.x; line < call.outer * call.inner; line += gridDim.x) {
    const int64_t begin = line / call.inner * call.size * call.inner + line % call.inner;
    float largest = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float x = load<float>(call.from, begin + i * call.inner, call.type);
      largest = i == static_cast<int64_t>(threadIdx.x) || x > largest || is_nan(x) ? x : largest;
    }
    largest = block_max(largest, call.size, shared);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads)
      sum += exp(load<float>(call.from, begin + i * call.inner, call.type) - largest);
    sum = block_sum(sum, shared);
    const float logarithm = log(sum);
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const int64_t place = begin + i * call.inner;
      const float x = load<float>(call.from, place, call.type) - largest;
      store(call.kind == kSoftmax ? exp(x) / sum : x - logarithm, call.to, place, call.type);
    }
  }
}

GALLEY_KERNEL(softmax_backward_lines, (const SoftmaxCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  for (int64_t line = blockIdx.x; line < call.outer * call.inner; line += gridDim.x) {
    const int64_t begin = line / call.inner * call.size * call.inner + line % call.inner;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const int64_t place = begin + i * call.inner;
      const float grad = load<float>(call.grad, place, call.type);
      sum += call.kind == kSoftmax ? grad * load<float>(call.from, place, call.type) : grad;
    }
    sum = block_sum(sum, shared);
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const int64_t place = begin + i * call.inner;
      const float grad = load<float>(call.grad, place, call.type), y = load<float>(call.from, place, call.type);
      store(call.kind == kSoftmax ? y * (grad - sum) : grad - exp(y) * sum, call.to, place, call.type);
    }
  }
}

GALLEY_DEVICE float factor_of(const void* vector, int64_t i, Type type) { return vector != nullptr ? load<float>(vector, i, type) : 1.0f; }
GALLEY_DEVICE float shift_of(const void* vector, int64_t i, Type type) { return vector != nullptr ? load<float>(vector, i, type) : 0.0f; }

}  // namespace galley::device
