#pragma once
// References of operators that stand for several others: one part after the other.

#include "libcore/backends/ref/reference.h"

namespace galley {

/// Zeros, for an output.
inline RefArray zeros(const Shape& shape) { return {shape, std::vector<double>(static_cast<size_t>(shape.elements()))}; }
/// nullptr where the input is not given.
inline const RefArray* given(const RefCall& call, size_t i) { return call.has(i) ? &call.in(i) : nullptr; }
/// What the operator's reference makes of these inputs; `outputs` come as zeros of their shapes.
inline std::vector<RefArray> run_part(std::string_view op, const Options& attrs, std::vector<const RefArray*> inputs, std::vector<RefArray> outputs) {
  std::vector<TensorType> types;
  types.reserve(inputs.size() + outputs.size());
  const auto typed = [&](const Shape& shape) { return &types.emplace_back(TensorType{DType::kF64, shape, {}, {}}); };
  OpContext context;
  context.attributes = &attrs;
  for (const RefArray* input : inputs) context.inputs.push_back(input ? typed(input->shape) : nullptr);
  for (const RefArray& output : outputs) context.outputs.push_back(typed(output.shape));
  const Reference reference(find_op(op), attrs.clone(), context);
  RefCall call(&attrs, context, std::move(inputs), outputs);
  reference.run(call);
  return outputs;
}

}  // namespace galley
