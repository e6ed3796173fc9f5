#pragma once
// Kernels of element-wise functions and of their backward operators. A launch computes one function of operands of given types, which all
// threads choose in the same way, so the choice costs little beside the memory traffic that bounds these kernels. They compute in float,
// and in double where an operand is an integer of 32 or 64 bits, or a double.

#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

/// The value of the function at that position of the list, one of `kInputs` values.
template <int kInputs, class V, class... F>
GALLEY_DEVICE V choose_value(int function, const V* x, V first, V second, FunctionList<F...>) {
  V y = 0;
  int position = 0;
  const auto consider = [&]<class Candidate>(const Candidate*) {
    if constexpr (Candidate::values == kInputs) {
      if (function == position) y = value_of<Candidate>(x, first, second);
    }
    ++position;
  };
  (consider(static_cast<const F*>(nullptr)), ...);
  return y;
}
template <class V, class... F>
GALLEY_DEVICE V choose_backward(int function, V grad, V from, V first, V second, FunctionList<F...>) {
  V dx = 0;
  int position = 0;
  ((function == position++ ? static_cast<void>(dx = backward_of<F>(grad, from, first, second)) : static_cast<void>(0)), ...);
  return dx;
}

template <class V, int kInputs>
GALLEY_DEVICE void elementwise(const ElementwiseCall& call) {
  const V first = static_cast<V>(call.numbers[0]), second = static_cast<V>(call.numbers[1]);
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    int64_t at[3] = {0, 0, 0}, rest = i;
    for (int d = call.dimensions - 1; d >= 0; --d) {
      const int64_t outer = d > 0 ? rest / call.sizes[d] : 0, place = rest - outer * call.sizes[d];
      for (int j = 0; j < kInputs; ++j) at[j] += place * call.steps[j][d];
      rest = outer;
    }
    V x[3] = {0, 0, 0};
    for (int j = 0; j < kInputs; ++j) x[j] = load<V>(call.inputs[j], at[j], call.input_types[j]);
    store(choose_value<kInputs>(call.function, x, first, second, Functions()), call.output, i, call.output_type);
  }
}

template <class V>
GALLEY_DEVICE void compute_backward(const ElementwiseBackwardCall& call) {
  const V first = static_cast<V>(call.numbers[0]), second = static_cast<V>(call.numbers[1]);
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const V grad = load<V>(call.grad, i, call.type), from = load<V>(call.from, i, call.type);
    store(choose_backward(call.function, grad, from, first, second, Functions()), call.output, i, call.type);
  }
}

GALLEY_KERNEL(elementwise1, (const ElementwiseCall call)) { elementwise<float, 1>(call); }
GALLEY_KERNEL(elementwise2, (const ElementwiseCall call)) { elementwise<float, 2>(call); }
GALLEY_KERNEL(elementwise3, (const ElementwiseCall call)) { elementwise<float, 3>(call); }
GALLEY_KERNEL(elementwise1_double, (const ElementwiseCall call)) { elementwise<double, 1>(call); }
GALLEY_KERNEL(elementwise2_double, (const ElementwiseCall call)) { elementwise<double, 2>(call); }
GALLEY_KERNEL(elementwise3_double, (const ElementwiseCall call)) { elementwise<double, 3>(call); }
GALLEY_KERNEL(elementwise_backward, (const ElementwiseBackwardCall call)) { compute_backward<float>(call); }
GALLEY_KERNEL(elementwise_backward_double, (const ElementwiseBackwardCall call)) { compute_backward<double>(call); }

}  // namespace galley::device
