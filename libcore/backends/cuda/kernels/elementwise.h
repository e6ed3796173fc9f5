#pragma once
// Kernels of element-wise functions and of their backward operators. A launch computes one function, which all threads choose in the same
// way, so the choice costs little beside the memory traffic that bounds these kernels.

#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

template <class F>
GALLEY_DEVICE float value_of(const float* x, const float* numbers) {
  if constexpr (F::values == 1 && F::numbers == 0) return F::value(x[0]);
  if constexpr (F::values == 1 && F::numbers == 1) return F::value(x[0], numbers[0]);
  if constexpr (F::values == 1 && F::numbers == 2) return F::value(x[0], numbers[0], numbers[1]);
  if constexpr (F::values == 2) return F::value(x[0], x[1]);
  if constexpr (F::values == 3) return F::value(x[0], x[1], x[2]);
}

template <class F, class... N>
GALLEY_DEVICE float backward_of(float grad, float from, N... numbers) {
  if constexpr (requires { F::backward(grad, from, from, numbers...); }) {
    return F::backward(grad, from, from, numbers...);
  } else if constexpr (requires { F::slope(from, from, numbers...); }) {
    return grad * F::slope(from, from, numbers...);
  } else {
    return 0;  // no backward operator
  }
}
template <class F>
GALLEY_DEVICE float backward_of(float grad, float from, const float* numbers) {
  if constexpr (F::numbers == 0) return backward_of<F>(grad, from);
  if constexpr (F::numbers == 1) return backward_of<F>(grad, from, numbers[0]);
  if constexpr (F::numbers == 2) return backward_of<F>(grad, from, numbers[0], numbers[1]);
}

/// The value of the function at that position of the list, one of `kInputs` values.
template <int kInputs, class... F>
GALLEY_DEVICE float choose_value(int function, const float* x, const float* numbers, FunctionList<F...>) {
  float y = 0;
  int position = 0;
  const auto consider = [&]<class Candidate>(const Candidate*) {
    if constexpr (Candidate::values == kInputs) {
      if (function == position) y = value_of<Candidate>(x, numbers);
    }
    ++position;
  };
  (consider(static_cast<const F*>(nullptr)), ...);
  return y;
}
template <class... F>
GALLEY_DEVICE float choose_backward(int function, float grad, float from, const float* numbers, FunctionList<F...>) {
  float dx = 0;
  int position = 0;
  ((function == position++ ? static_cast<void>(dx = backward_of<F>(grad, from, numbers)) : static_cast<void>(0)), ...);
  return dx;
}

template <class T, int kInputs>
GALLEY_DEVICE void elementwise(const ElementwiseCall& call) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < call.elements; i += stride) {
    int64_t at[3] = {0, 0, 0}, rest = i;
    for (int d = call.dimensions - 1; d >= 0; --d) {
      const int64_t outer = d > 0 ? rest / call.sizes[d] : 0, place = rest - outer * call.sizes[d];
      for (int j = 0; j < kInputs; ++j) at[j] += place * call.steps[j][d];
      rest = outer;
    }
    float x[3] = {0, 0, 0};
    for (int j = 0; j < kInputs; ++j) x[j] = load(static_cast<const T*>(call.inputs[j]) + at[j]);
    store(choose_value<kInputs>(call.function, x, call.numbers, Functions()), static_cast<T*>(call.output) + i);
  }
}

template <class T>
GALLEY_DEVICE void elementwise_backward(const ElementwiseBackwardCall& call) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < call.elements; i += stride) {
    const float grad = load(static_cast<const T*>(call.grad) + i), from = load(static_cast<const T*>(call.from) + i);
    store(choose_backward(call.function, grad, from, call.numbers, Functions()), static_cast<T*>(call.output) + i);
  }
}

GALLEY_KERNEL(elementwise1_f32, (const ElementwiseCall call)) { elementwise<float, 1>(call); }
GALLEY_KERNEL(elementwise1_bf16, (const ElementwiseCall call)) { elementwise<BFloat16, 1>(call); }
GALLEY_KERNEL(elementwise2_f32, (const ElementwiseCall call)) { elementwise<float, 2>(call); }
GALLEY_KERNEL(elementwise2_bf16, (const ElementwiseCall call)) { elementwise<BFloat16, 2>(call); }
GALLEY_KERNEL(elementwise3_f32, (const ElementwiseCall call)) { elementwise<float, 3>(call); }
GALLEY_KERNEL(elementwise3_bf16, (const ElementwiseCall call)) { elementwise<BFloat16, 3>(call); }
GALLEY_KERNEL(elementwise_backward_f32, (const ElementwiseBackwardCall call)) { elementwise_backward<float>(call); }
GALLEY_KERNEL(elementwise_backward_bf16, (const ElementwiseBackwardCall call)) { elementwise_backward<BFloat16>(call); }

}  // namespace galley::device
