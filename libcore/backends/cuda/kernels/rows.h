#pragma once
// Softmax and layer norm. A block computes a row or a line; its threads' sums are added in a tree, so that bits do not depend on the
// GPU. Memory traffic bounds them.

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

GALLEY_KERNEL(layer_norm_rows, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float share = 1.0f / static_cast<float>(call.size);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t begin = row * call.size;
    float sum = 0, square = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) sum += load<float>(call.x, begin + i, call.type);
    const float mean = block_sum(sum, shared) * share;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float d = load<float>(call.x, begin + i, call.type) - mean;
      square += d * d;
    }
    const float rstd = 1.0f / sqrt(block_sum(square, shared) * share + call.eps);
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float normal = (load<float>(call.x, begin + i, call.type) - mean) * rstd;
      store(normal * factor_of(call.gamma, i, call.vector_type) + shift_of(call.beta, i, call.vector_type), call.y, begin + i, call.type);
    }
    if (threadIdx.x == 0) {
      store(mean, call.mean, row, call.statistics_type);
      store(rstd, call.rstd, row, call.statistics_type);
    }
  }
}

GALLEY_KERNEL(layer_norm_backward_rows, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float share = 1.0f / static_cast<float>(call.size);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t begin = row * call.size;
    const float mean = load<float>(call.mean, row, call.statistics_type), rstd = load<float>(call.rstd, row, call.statistics_type);
    float sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float d = load<float>(call.grad, begin + i, call.type) * factor_of(call.gamma, i, call.vector_type);
      sum += d;
      product += d * (load<float>(call.x, begin + i, call.type) - mean) * rstd;
    }
    sum = block_sum(sum, shared) * share;
    product = block_sum(product, shared) * share;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float d = load<float>(call.grad, begin + i, call.type) * factor_of(call.gamma, i, call.vector_type);
      const float normal = (load<float>(call.x, begin + i, call.type) - mean) * rstd;
      store(rstd * (d - sum - normal * product), call.y, begin + i, call.type);
    }
  }
}

/// Sums over rows of grad * normal and of grad: part p adds rows p, p + parts, ...
GALLEY_KERNEL(layer_norm_partial_sums, (const LayerNormCall call)) {
  for (int64_t part = blockIdx.x; part < call.parts; part += gridDim.x) {
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      float dgamma = 0, dbeta = 0;
      for (int64_t row = part; row < call.rows; row += call.parts) {
        const float grad = load<float>(call.grad, row * call.size + i, call.type);
        const float mean = load<float>(call.mean, row, call.statistics_type), rstd = load<float>(call.rstd, row, call.statistics_type);
        dgamma += grad * (load<float>(call.x, row * call.size + i, call.type) - mean) * rstd;
        dbeta += grad;
      }
      call.partial[part * 2 * call.size + i] = dgamma;
      call.partial[(part * 2 + 1) * call.size + i] = dbeta;
    }
  }
}
GALLEY_KERNEL(layer_norm_sums, (const LayerNormCall call)) {
  for (int64_t i = first_element(); i < call.size; i += all_threads()) {
    float dgamma = 0, dbeta = 0;
    for (int64_t part = 0; part < call.parts; ++part) {
      dgamma += call.partial[part * 2 * call.size + i];
      dbeta += call.partial[(part * 2 + 1) * call.size + i];
    }
    store(dgamma, call.dgamma, i, call.vector_type);
    store(dbeta, call.dbeta, i, call.vector_type);
  }
}

}  // namespace galley::device
