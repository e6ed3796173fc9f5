#pragma once
// elementwise_chain: several element-wise functions as one operator, which reads its inputs once and writes its result once. The pass
// fuse_chains makes it.

#include <memory>
#include <string>
#include <vector>

#include "libcore/ops/elementwise.h"

namespace galley {

/// The result may take the memory of one of at most this number of inputs; kernels refuse chains of more inputs.
inline constexpr int kChainInputs = 6;

/// One function of a chain.
struct ChainStep {
  /// `op` must be a step (is_chain_step), `attributes` its attributes (nullptr where it has none). Throws Error where it is none, or where
  /// the number of operands is not the operator's.
  ChainStep(const OpDef& op, std::shared_ptr<const Options> attributes, std::vector<int64_t> operands);

  const OpDef* op;
  std::shared_ptr<const Options> attributes;
  const ElementwiseRow* row;  ///< Of the function, or of the function whose backward operator this is.
  const Formula* formula;     ///< Of the row, as the attributes choose.
  bool backward;              ///< formula->backward of two operands: the gradient, and the value that the slope reads.
  /// A number below the number of the chain's inputs is that input, `inputs + j` the result of step j, which must come before.
  std::vector<int64_t> operands;
};

/// The last step's result is the operator's. Every step has the dtype and the shape of the result; inputs may broadcast. As text, `steps`
/// lists operators with their attributes ("clamp min=0 max=6"; graph/attributes.h), and `operands` those of all steps in turn. The text is
/// parsed once, when the attributes are read.
struct ElementwiseChainAttrs : OptionsOf<ElementwiseChainAttrs> {
  std::vector<ChainStep> steps;
  void options(OptionVisitor& v) override;
};

const OpDef& elementwise_chain_op();

/// May the operator be a step: an element-wise function of one or two values, or the backward operator of one, whose result has the dtype
/// of its inputs?
bool is_chain_step(const OpDef& op);

/// Steps from their text. Throws Error where a text is no step, or where there are too few or too many operands.
std::vector<ChainStep> parse_chain_steps(const std::vector<std::string>& texts, const std::vector<int64_t>& operands);

}  // namespace galley
