#include "libcore/ops/elementwise_chain.h"

#include <algorithm>

#include "libcore/graph/attributes.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer(const OpContext& c) {
  const auto& attrs = c.attrs<ElementwiseChainAttrs>();
  GALLEY_CHECK(!attrs.steps.empty(), "a chain has no steps");
  check_floating(c.in(0), "x");
  const std::vector<ChainStep> steps = chain_steps(attrs, c.inputs.size());
  std::vector<TensorType> types;
  for (const TensorType* input : c.inputs) types.push_back(*input);
  for (const ChainStep& step : steps) {
    OpContext part;
    part.attributes = step.attributes.get();
    for (int64_t operand : step.operands) part.inputs.push_back(&types[static_cast<size_t>(operand)]);
    TensorType made = step.op->infer(part).front();
    types.push_back(std::move(made));
  }
  for (size_t k = c.inputs.size(); k < types.size(); ++k) {
    GALLEY_CHECK(types[k].dtype == types.back().dtype && types[k].shape == types.back().shape, "step ", k - c.inputs.size(),
                 " of a chain makes ", types[k], ", the chain ", types.back());
  }
  return {types.back()};
}

Cost cost(const OpContext& c) {
  int flops = 0;
  for (const ChainStep& step : chain_steps(c.attrs<ElementwiseChainAttrs>(), c.inputs.size())) {
    const ElementwiseRow& row = *find_elementwise(step.op->name, step.backward);
    flops += step.backward ? row.slope.flops : row.flops;
  }
  return operand_cost(c, static_cast<double>(flops) * static_cast<double>(c.out(0).elements()));
}

std::vector<InPlace> any_input() {
  std::vector<InPlace> pairs;
  for (int i = 0; i < kChainInputs; ++i) pairs.push_back({0, i});
  return pairs;
}

void define(Expansion& e) {
  std::vector<Value> values;
  for (size_t i = 0; i < e.input_count(); ++i) values.push_back(e.in(i));
  for (const ChainStep& step : chain_steps(e.attrs<ElementwiseChainAttrs>(), e.input_count())) {
    std::vector<Value> operands;
    for (int64_t operand : step.operands) operands.push_back(values[static_cast<size_t>(operand)]);
    values.push_back(emit_all(*step.op, step.attributes ? step.attributes->clone() : nullptr, operands).front());
  }
  e.set(0, values.back());
}

}  // namespace

const OpDef& elementwise_chain_op() {
  static const OpDef def{.name = "elementwise_chain",
                         .doc = "element-wise functions, each of inputs and of results of earlier ones",
                         .inputs = {"x*"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ElementwiseChainAttrs>,
                         .infer = infer,
                         .no_gradient = "made after differentiation",
                         .cost = cost,
                         .may_reuse = any_input(),
                         .definition = define};
  return def;
}

void ElementwiseChainAttrs::options(OptionVisitor& v) {
  v.option({.name = "steps", .doc = "operators with their attributes, in order"}, steps);
  v.option({.name = "operands",
            .doc = "of each step in turn: the number of an input, or, from the number of inputs on, of an earlier step",
            .min = 0},
           operands);
}

bool is_chain_step(const OpDef& op) {
  const ElementwiseRow* row = find_elementwise(op.name);
  if (row == nullptr) return find_elementwise(op.name, true) != nullptr;
  return row->arity() == 1 || (row->arity() == 2 && row->infer == nullptr);  // comparisons have a type of their own
}

std::vector<ChainStep> chain_steps(const ElementwiseChainAttrs& attrs, size_t inputs) {
  std::vector<ChainStep> steps;
  size_t at = 0;
  for (const std::string& text : attrs.steps) {
    const size_t end = std::min(text.find(' '), text.size());
    ChainStep step;
    step.op = find_op_or_null(text.substr(0, end));
    GALLEY_CHECK(step.op != nullptr && is_chain_step(*step.op), "'", text.substr(0, end), "' cannot be a step of a chain");
    step.attributes = parse_attributes(*step.op, end < text.size() ? std::string_view(text).substr(end + 1) : std::string_view());
    const ElementwiseRow* row = find_elementwise(step.op->name);
    step.backward = row == nullptr;
    if (step.backward) row = find_elementwise(step.op->name, true);
    step.formula = &row->formula(step.attributes.get());
    for (size_t count = step.op->inputs.size(); count > 0; --count, ++at) {
      GALLEY_CHECK(at < attrs.operands.size(), "a chain of ", attrs.steps.size(), " steps has ", attrs.operands.size(),
                   " operands, too few");
      const int64_t operand = attrs.operands[at];
      GALLEY_CHECK(operand >= 0 && operand < static_cast<int64_t>(inputs + steps.size()), "step ", steps.size(),
                   " of a chain reads operand ", operand, ", which is neither one of ", inputs, " inputs nor an earlier step");
      step.operands.push_back(operand);
    }
    steps.push_back(std::move(step));
  }
  GALLEY_CHECK(at == attrs.operands.size(), "a chain of ", attrs.steps.size(), " steps has ", attrs.operands.size(), " operands, too many");
  return steps;
}

OpTable elementwise_chain_ops() { return {&elementwise_chain_op()}; }

}  // namespace galley
