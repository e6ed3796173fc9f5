#pragma once
// Several element-wise functions as one operator, which reads its inputs and writes its result once. passes/fuse_chains makes them.

#include <memory>
#include <string>
#include <vector>

#include "libcore/ops/elementwise.h"

namespace galley {

/// The result may take the memory of one of so many inputs; kernels refuse chains of more.
inline constexpr int kChainInputs = 6;

/// Step k applies the operator and attributes that steps[k] names ("clamp min=0 max=6"; graph/attributes.h) to as many operands as the
/// operator takes. `operands` lists those of all steps in turn: i below the number of inputs is input i, inputs + j is the result of step
/// j < k. The last step's result is the operator's. Every step has the dtype and the shape of the result; inputs may broadcast.
struct ElementwiseChainAttrs : OptionsOf<ElementwiseChainAttrs> {
  std::vector<std::string> steps;
  std::vector<int64_t> operands;
  void options(OptionVisitor& v) override;
};

/// A step, looked up in the table of element-wise functions.
struct ChainStep {
  const OpDef* op = nullptr;
  std::shared_ptr<const Options> attributes;  // nullptr: the operator has none
  const Formula* formula = nullptr;
  bool backward = false;  // formula->backward of two operands: the gradient, and the value that the slope reads
  std::vector<int64_t> operands;
};

const OpDef& elementwise_chain_op();

/// May the operator be a step: an element-wise function of one or two values, or the backward operator of one, whose result has the dtype
/// of its inputs?
bool is_chain_step(const OpDef& op);

/// The steps; throws Error where they do not fit together or do not fit that many inputs.
std::vector<ChainStep> chain_steps(const ElementwiseChainAttrs& attrs, size_t inputs);

}  // namespace galley
