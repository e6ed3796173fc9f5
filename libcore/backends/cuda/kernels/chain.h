#pragma once
// Sequences of element-wise functions as one kernel, which reads its inputs and writes its result once. A thread interprets the steps:
// their values are in memory of the thread. Where NVRTC is installed, compiled_chains.h has a kernel of its own for each sequence.

#include "libcore/backends/cuda/kernels/elementwise.h"

namespace galley::device {

GALLEY_DEVICE float chain_step(const ChainStepCall& step, const float* values) {
  const float x[3] = {values[step.operands[0]], values[step.operands[1]], 0}, first = step.numbers[0], second = step.numbers[1];
  if (step.kind == ChainStepCall::kBackward) return choose_backward(step.function, x[0], x[1], first, second, Functions());
  if (step.kind == ChainStepCall::kTwo) return choose_value<2>(step.function, x, first, second, Functions());
  return choose_value<1>(step.function, x, first, second, Functions());
}

GALLEY_KERNEL(chain_elements, (const ChainCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    int64_t at[kMostChainInputs] = {}, rest = i;
    for (int d = call.dimensions - 1; d >= 0; --d) {
      const int64_t outer = d > 0 ? rest / call.sizes[d] : 0, place = rest - outer * call.sizes[d];
      GALLEY_UNROLL
      for (int j = 0; j < kMostChainInputs; ++j) at[j] += place * call.steps[j][d];
      rest = outer;
    }
    float values[kMostChainInputs + kMostChainSteps];
    for (int j = 0; j < call.inputs_count; ++j) values[j] = load<float>(call.inputs[j], at[j], call.type);
    for (int k = 0; k < call.steps_count; ++k) values[kMostChainInputs + k] = rounded(chain_step(call.chain[k], values), call.type);
    store(values[kMostChainInputs + call.steps_count - 1], call.output, i, call.type);
  }
}

}  // namespace galley::device
