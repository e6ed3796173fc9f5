#pragma once
// Softmax and batch norm. A block computes a line or a channel; its threads' sums are added in a tree, so that bits do not depend on the
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

/// The place of element i of channel 0.
GALLEY_DEVICE int64_t element_of(const BatchNormCall& call, int64_t i) {
  int64_t place = 0;
  for (int d = call.dimensions - 1; d >= 0; --d) {
    const int64_t outer = d > 0 ? i / call.sizes[d] : 0;
    place += (i - outer * call.sizes[d]) * call.steps[d];
    i = outer;
  }
  return place;
}

GALLEY_KERNEL(batch_norm_channels, (const BatchNormCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float share = 1.0f / static_cast<float>(call.count > 0 ? call.count : 1);
  for (int64_t c = blockIdx.x; c < call.channels; c += gridDim.x) {
    const int64_t begin = c * call.channel_step;
    float sum = 0, square = 0;
    for (int64_t i = threadIdx.x; i < call.count; i += kThreads) sum += load<float>(call.x, begin + element_of(call, i), call.type);
    const float mean = block_sum(sum, shared) * share;
    for (int64_t i = threadIdx.x; i < call.count; i += kThreads) {
      const float d = load<float>(call.x, begin + element_of(call, i), call.type) - mean;
      square += d * d;
    }
    const float var = block_sum(square, shared) * share, rstd = 1.0f / sqrt(var + call.eps);
    const float gamma = factor_of(call.gamma, c, call.vector_type), beta = shift_of(call.beta, c, call.vector_type);
    for (int64_t i = threadIdx.x; i < call.count; i += kThreads) {
      const int64_t place = begin + element_of(call, i);
      const float y = (load<float>(call.x, place, call.type) - mean) * rstd * gamma + beta;
      store(activated(call.activation, y), call.y, place, call.type);
    }
    if (threadIdx.x == 0) {
      store(mean, call.mean, c, call.vector_type);
      store(var, call.var, c, call.vector_type);
    }
  }
}

GALLEY_KERNEL(batch_norm_backward_channels, (const BatchNormCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float share = 1.0f / static_cast<float>(call.count > 0 ? call.count : 1);
  for (int64_t c = blockIdx.x; c < call.channels; c += gridDim.x) {
    const int64_t begin = c * call.channel_step;
    const float mean = load<float>(call.mean, c, call.vector_type),
                rstd = 1.0f / sqrt(load<float>(call.var, c, call.vector_type) + call.eps);
    const float gamma = factor_of(call.gamma, c, call.vector_type), beta = shift_of(call.beta, c, call.vector_type);
    const auto normal_at = [&](int64_t place) { return (load<float>(call.x, place, call.type) - mean) * rstd; };
    const auto grad_at = [&](int64_t place, float normal) {
      const float grad = load<float>(call.grad, place, call.type);
      return activation_grad(call.activation, grad, normal * gamma + beta);
    };
    float sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < call.count; i += kThreads) {
      const int64_t place = begin + element_of(call, i);
      const float normal = normal_at(place), grad = grad_at(place, normal);
      sum += grad;
      product += grad * normal;
    }
    sum = block_sum(sum, shared);
    product = block_sum(product, shared);
    for (int64_t i = threadIdx.x; i < call.count; i += kThreads) {
      const int64_t place = begin + element_of(call, i);
      const float normal = normal_at(place), grad = grad_at(place, normal);
      store(rstd * gamma * (grad - sum * share - normal * product * share), call.y, place, call.type);
    }
    if (threadIdx.x == 0) {
      store(product, call.dgamma, c, call.vector_type);
      store(sum, call.dbeta, c, call.vector_type);
    }
  }
}

}  // namespace galley::device
