#pragma once
// Kernels of element-wise functions and of their backward operators. A launch computes one function of operands of given types, which all
// threads choose in the same way, so the choice costs little beside the memory traffic that bounds these kernels. They compute in float,
// and in double where an operand is an integer of 32 or 64 bits, or a double.

#include "libcore/backends/cuda/kernels/functions.h"
#include "libcore/backends/cuda/kernels/packs.h"

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

/// The function of each element of packs: it is chosen once for a pack.
template <int kInputs, class... F>
GALLEY_DEVICE void choose_values(int function, const float (&x)[2][kPack], float first, float second, float (&y)[kPack],
                                 FunctionList<F...>) {
  int position = 0;
  const auto consider = [&]<class Candidate>(const Candidate*) {
    if constexpr (Candidate::values == kInputs) {
      if (function == position) {
        GALLEY_UNROLL
        for (int j = 0; j < kPack; ++j) {
          const float operands[3] = {x[0][j], x[1][j], 0};
          y[j] = value_of<Candidate>(operands, first, second);
        }
      }
    }
    ++position;
  };
  (consider(static_cast<const F*>(nullptr)), ...);
}
template <class... F>
GALLEY_DEVICE void choose_backwards(int function, const float (&x)[2][kPack], float first, float second, float (&dx)[kPack],
                                    FunctionList<F...>) {
  int position = 0;
  const auto consider = [&]<class Candidate>(const Candidate*) {
    if (function == position++) {
      GALLEY_UNROLL
      for (int j = 0; j < kPack; ++j) dx[j] = backward_of<Candidate>(x[0][j], x[1][j], first, second);
    }
  };
  (consider(static_cast<const F*>(nullptr)), ...);
}
/// Operands of one type, f32, bf16 or f16, that are walked alike.
template <int kInputs, class Choose>
GALLEY_DEVICE void walk_packs(const void* const (&inputs)[kInputs], void* output, Type type, int64_t elements, const Choose& choose) {
  const int64_t whole = elements / kPack * kPack;
  float x[2][kPack] = {}, y[kPack] = {};
  for (int64_t i = first_element() * kPack; i < whole; i += all_threads() * kPack) {
    with_type(type, [&]<Type kType>() {
      Packed<kType> packs[kInputs];
      GALLEY_UNROLL
      for (int k = 0; k < kInputs; ++k) packs[k] = read_pack<kType>(inputs[k], i);
      GALLEY_UNROLL
      for (int k = 0; k < kInputs; ++k) unpack(packs[k], x[k]);
    });
    choose(x, y);
    store_pack(y, output, i, type);
  }
  if (first_element() > 0 || whole == elements) return;
  for (int64_t i = whole; i < elements; ++i) {  // fewer than a pack: one thread
    for (int k = 0; k < kInputs; ++k) x[k][0] = load_real(inputs[k], i, type);
    choose(x, y);
    store_real(y[0], output, i, type);
  }
}
template <int kInputs>
GALLEY_DEVICE void elementwise_of_packs(const ElementwiseCall& call) {
  const float first = static_cast<float>(call.numbers[0]), second = static_cast<float>(call.numbers[1]);
  const void* inputs[kInputs];
  GALLEY_UNROLL
  for (int k = 0; k < kInputs; ++k) inputs[k] = call.inputs[k];
  walk_packs(inputs, call.output, call.output_type, call.elements,
             [&](const float(&x)[2][kPack], float(&y)[kPack]) { choose_values<kInputs>(call.function, x, first, second, y, Functions()); });
}

GALLEY_KERNEL(elementwise1_packs, (const ElementwiseCall call)) { elementwise_of_packs<1>(call); }
GALLEY_KERNEL(elementwise2_packs, (const ElementwiseCall call)) { elementwise_of_packs<2>(call); }
GALLEY_KERNEL(elementwise_backward_packs, (const ElementwiseBackwardCall call)) {
  const float first = static_cast<float>(call.numbers[0]), second = static_cast<float>(call.numbers[1]);
  const void* const inputs[] = {call.grad, call.from};
  walk_packs(inputs, call.output, call.type, call.elements,
             [&](const float(&x)[2][kPack], float(&dx)[kPack]) { choose_backwards(call.function, x, first, second, dx, Functions()); });
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
