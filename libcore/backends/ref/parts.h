#pragma once
// References of operators that stand for several others: one part after the other.

#include "libcore/backends/ref/ref.h"

namespace galley {

/// Zeros, for an output.
inline RefArray zeros(const Shape& shape) { return {shape, std::vector<double>(static_cast<size_t>(shape.elements()))}; }
/// nullptr where the input is not given.
inline const RefArray* given(const RefCall& call, size_t i) { return call.has(i) ? &call.in(i) : nullptr; }
/// What the operator's reference makes of these inputs; `outputs` come as zeros of their shapes.
inline std::vector<RefArray> run_part(std::string_view op, const Options& attrs, std::vector<const RefArray*> inputs, std::vector<RefArray> outputs) {
  RefCall call(&attrs, {}, std::move(inputs), outputs);
  find_reference(op)(call);
  return outputs;
}

}  // namespace galley
