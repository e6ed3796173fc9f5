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
  GALLEY_CHECK(!attrs.steps.empty(), "a chain needs at least one step");
  check_floating(c.in(0), "x");
  std::vector<TensorType> types;
  for (const TensorType* input : c.inputs) types.push_back(*input);
  for (const ChainStep& step : attrs.steps) {
    OpContext part;
    part.attributes = step.attributes.get();
    for (int64_t operand : step.operands) {
      GALLEY_CHECK(operand >= 0 && operand < static_cast<int64_t>(types.size()), "step ", types.size() - c.inputs.size(),
                   " of a chain reads operand ", operand, ", which is neither one of ", c.inputs.size(), " inputs nor an earlier step");
      part.inputs.push_back(&types[static_cast<size_t>(operand)]);
    }
    TensorType made = step.op->infer(part).front();
    types.push_back(std::move(made));
  }
  for (size_t k = c.inputs.size(); k < types.size(); ++k) {
    GALLEY_CHECK(types[k].dtype == types.back().dtype && types[k].shape == types.back().shape, "step ", k - c.inputs.size(),
                 " of a chain gives ", types[k], ", but the chain gives ", types.back());
  }
  return {types.back()};
}

Cost cost(const OpContext& c) {
  int flops = 0;
  for (const ChainStep& step : c.attrs<ElementwiseChainAttrs>().steps) flops += step.backward ? step.row->slope.flops : step.row->flops;
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
  for (const ChainStep& step : e.attrs<ElementwiseChainAttrs>().steps) {
    std::vector<Value> operands;
    for (int64_t operand : step.operands) operands.push_back(values[static_cast<size_t>(operand)]);
    values.push_back(emit_all(*step.op, step.attributes ? step.attributes->clone() : nullptr, operands).front());
  }
  e.set(0, values.back());
}

}  // namespace

const OpDef& elementwise_chain_op() {
  static const OpDef def{.name = "elementwise_chain",
                         .doc = "a sequence of element-wise functions of inputs and of results of earlier steps",
                         .inputs = {"x*"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ElementwiseChainAttrs>,
                         .infer = infer,
                         .no_gradient = "fusion creates it after differentiation",
                         .cost = cost,
                         .place = keeps_ranges,
                         .may_reuse = any_input(),
                         .definition = define};
  return def;
}

ChainStep::ChainStep(const OpDef& def, std::shared_ptr<const Options> options, std::vector<int64_t> reads)
    : op(&def), attributes(std::move(options)), row(find_elementwise(def.name)), backward(row == nullptr), operands(std::move(reads)) {
  GALLEY_CHECK(is_chain_step(def), "'", def.name, "' cannot be a step of a chain");
  GALLEY_CHECK(operands.size() == def.inputs.size(), "the step '", def.name, "' of a chain has ", operands.size(), " operands, not ",
               def.inputs.size());
  if (backward) row = find_elementwise(def.name, true);
  formula = &row->formula(attributes.get());
}

void ElementwiseChainAttrs::options(OptionVisitor& v) {
  std::vector<std::string> texts;
  std::vector<int64_t> operands;
  for (const ChainStep& step : steps) {
    const std::string attributes = print_attributes(*step.op, step.attributes.get());
    texts.push_back(cat(step.op->name, attributes.empty() ? "" : " ", attributes));
    operands.insert(operands.end(), step.operands.begin(), step.operands.end());
  }
  const auto texts_before = texts;
  const auto operands_before = operands;
  v.option({.name = "steps", .doc = "operators with their attributes, in order"}, texts);
  v.option({.name = "operands",
            .doc = "operands of each step in turn: index of an input, or number of inputs + index of an earlier step",
            .min = 0},
           operands);
  if (texts != texts_before || operands != operands_before) steps = parse_chain_steps(texts, operands);
}

bool is_chain_step(const OpDef& op) {
  const ElementwiseRow* row = find_elementwise(op.name);
  if (row == nullptr) return find_elementwise(op.name, true) != nullptr;
  return row->arity() == 1 || (row->arity() == 2 && row->infer == nullptr);  // comparisons have another output type
}

std::vector<ChainStep> parse_chain_steps(const std::vector<std::string>& texts, const std::vector<int64_t>& operands) {
  std::vector<ChainStep> steps;
  auto next = operands.begin();
  for (const std::string& text : texts) {
    const size_t end = std::min(text.find(' '), text.size());
    const OpDef* op = find_op_or_null(text.substr(0, end));
    GALLEY_CHECK(op != nullptr, "'", text.substr(0, end), "' cannot be a step of a chain: no operator has this name");
    const auto count = static_cast<std::ptrdiff_t>(op->inputs.size());
    GALLEY_CHECK(operands.end() - next >= count, "a chain of ", texts.size(), " steps has ", operands.size(),
                 " operands, which is too few");
    steps.emplace_back(*op, parse_attributes(*op, std::string_view(text).substr(std::min(end + 1, text.size()))),
                       std::vector<int64_t>(next, next + count));
    next += count;
  }
  GALLEY_CHECK(next == operands.end(), "a chain of ", texts.size(), " steps has ", operands.size(), " operands, which is too many");
  return steps;
}

OpTable elementwise_chain_ops() { return {&elementwise_chain_op()}; }

}  // namespace galley
