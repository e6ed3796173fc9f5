// The operators of the table in elementwise.cpp, and queries about its rows.

#include <deque>

#include "libcore/ops/elementwise.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kBackward = "_backward";
constexpr int kMaxFlops = 15;

const ElementwiseRow& row_of(std::string_view op) {
  const ElementwiseRow* row = find_elementwise(op);
  GALLEY_ASSERT(row != nullptr, op, " is not an element-wise function");
  return *row;
}

/// Visits only options that are real numbers.
class RealOptions : public OptionVisitor {
 public:
  void option(const OptionInfo&, bool&) override {}
  void option(const OptionInfo&, int64_t&) override {}
  void option(const OptionInfo&, std::string&) override {}
  void option(const OptionInfo&, std::vector<int64_t>&) override {}
  void option(const OptionInfo&, std::vector<double>&) override {}
  void option(const OptionInfo&, std::vector<std::string>&) override {}
  void choice(const OptionInfo&, int&, std::span<const std::string_view>) override {}
};

/// Collects the values of real options.
class Numbers : public RealOptions {
 public:
  using RealOptions::option;
  void option(const OptionInfo&, double& value) override { numbers.at(count++) = value; }

  FunctionNumbers numbers{};

 private:
  size_t count = 0;
};

/// Finds a real option by name.
class Named : public RealOptions {
 public:
  using RealOptions::option;
  explicit Named(std::string_view name) : name_(name) {}
  void option(const OptionInfo& info, double& value) override {
    if (info.name == name_) found = &value;
  }

  double* found = nullptr;

 private:
  std::string_view name_;
};

double& named_option(Options& attributes, std::string_view name) {
  Named named(name);
  attributes.options(named);
  GALLEY_ASSERT(named.found != nullptr, "there is no real option ", name);
  return *named.found;
}

// ---- types, by the number of inputs and the types that a row accepts

std::vector<TensorType> infer_floating(const OpContext& c) {
  check_floating(c.in(0), "x");
  return {c.in(0)};
}
std::vector<TensorType> infer_number(const OpContext& c) {
  check_not_bool(c.in(0), "x");
  return {c.in(0)};
}
std::vector<TensorType> infer_pair(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype == c.in(1).dtype, "a and b must have the same dtype: a ", c.in(0), ", b ", c.in(1), "; cast one");
  return {broadcast_types(c.in(0), c.in(1))};
}
std::vector<TensorType> infer_floating_pair(const OpContext& c) {
  check_floating(c.in(0), "a");
  return infer_pair(c);
}
std::vector<TensorType> infer_number_pair(const OpContext& c) {
  check_not_bool(c.in(0), "a");
  return infer_pair(c);
}
std::vector<TensorType> infer_backward(const OpContext& c) {
  check_floating(c.in(0), "grad");
  check_like(c.in(0), "grad", c.in(1), "the forward value");
  return {c.in(0)};
}

using Infer = std::vector<TensorType> (*)(const OpContext&);
Infer infer_of(const ElementwiseRow& row) {
  if (row.infer != nullptr) return row.infer;
  const bool floating = row.types == ElementTypes::kFloating;
  if (row.arity() == 1) return floating ? infer_floating : infer_number;
  GALLEY_ASSERT(row.arity() == 2, row.name, " needs its own infer");
  return floating ? infer_floating_pair : infer_number_pair;
}

using CostRule = Cost (*)(const OpContext&);
template <int... kFlops>
CostRule cost_rule(int flops, std::integer_sequence<int, kFlops...>) {
  static constexpr CostRule rules[] = {elementwise_cost<kFlops>...};
  GALLEY_ASSERT(flops >= 0 && flops <= kMaxFlops, flops, " flops per element");
  return rules[flops];
}
CostRule cost_of_flops(int flops) { return cost_rule(flops, std::make_integer_sequence<int, kMaxFlops + 1>()); }

/// Captures the gradient with the backward operator of the node's row.
void slope_gradient(GradientBuilder& g) {
  const Node& node = g.node();
  const ElementwiseRow& row = row_of(node.op->name);
  const Value inputs[] = {g.grad(), row.slope.reads == SlopeReads::kOutput ? g.out() : g.in(0)};
  g.set(0, emit_all(cat(row.name, kBackward), node.attributes ? node.attributes->clone() : nullptr, inputs).front());
}

OpDef operator_of(const ElementwiseRow& row) {
  OpDef op{.name = row.name,
           .doc = row.doc,
           .outputs = {"y"},
           .make_attrs = row.make_attrs,
           .infer = infer_of(row),
           .cost = cost_of_flops(row.flops),
           .place = keeps_ranges,
           .precision = row.precision,
           .quantize = row.quantize,
           .quantizable = row.quantizable,
           .integer_form = row.integer_form,
           .cases = row.cases};
  switch (row.arity()) {
    case 1: op.inputs = {"x"}; break;
    case 2: op.inputs = {"a", "b"}; break;
    case 3: op.inputs = {"condition", "a", "b"}; break;
    default: GALLEY_ASSERT(false, row.name, " takes ", row.arity(), " inputs; expected 1 to 3");
  }
  op.gradient = row.slope.reads != SlopeReads::kNothing ? slope_gradient : row.gradient;
  op.no_gradient = row.no_gradient;
  // Outputs have the type of the inputs, except for comparisons, which have no gradient, and except for where's condition.
  if (op.gradient != nullptr) {
    for (int i = row.arity() == 3 ? 1 : 0; i < row.arity(); ++i) op.may_reuse.push_back({0, i});
  }
  return op;
}

OpDef backward_of(const ElementwiseRow& row, std::string_view name) {
  return {.name = name,
          .doc = row.slope.doc,
          .inputs = {"grad", row.slope.reads == SlopeReads::kOutput ? "y" : "x"},
          .outputs = {"dx"},
          .make_attrs = row.make_attrs,
          .infer = infer_backward,
          .no_gradient = kNoSecondDerivative,
          .cost = cost_of_flops(row.slope.flops),
          .may_reuse = {{0, 0}, {0, 1}}};
}

/// The operators and their names; a deque, because the operators refer to the names and a deque does not move them.
struct Operators {
  std::deque<std::string> names;
  std::deque<OpDef> ops;
};

const Operators& operators() {
  static const Operators all = [] {
    Operators made;
    for (const ElementwiseRow& row : elementwise_rows()) made.ops.push_back(operator_of(row));
    for (const ElementwiseRow& row : elementwise_rows()) {
      if (row.slope.reads == SlopeReads::kNothing) continue;
      made.names.push_back(cat(row.name, kBackward));
      made.ops.push_back(backward_of(row, made.names.back()));
    }
    return made;
  }();
  return all;
}

}  // namespace

OpTable elementwise_ops() {
  OpTable table;
  for (const OpDef& op : operators().ops) table.push_back(&op);
  return table;
}

const ElementwiseRow* find_elementwise(std::string_view op, bool backward) {
  if (backward) {
    if (!op.ends_with(kBackward)) return nullptr;
    op.remove_suffix(kBackward.size());
  }
  for (const ElementwiseRow& row : elementwise_rows()) {
    if (row.name == op) return !backward || row.slope.reads != SlopeReads::kNothing ? &row : nullptr;
  }
  return nullptr;
}

const ElementwiseRow& elementwise_row(Activation activation) {
  static const std::vector<const ElementwiseRow*> rows = [] {
    std::vector<const ElementwiseRow*> by_activation(kActivationNames.size());
    for (const ElementwiseRow& row : elementwise_rows()) by_activation[static_cast<size_t>(row.activation)] = &row;
    return by_activation;
  }();
  const auto index = static_cast<size_t>(activation);
  GALLEY_ASSERT(activation != Activation::kNone && index < rows.size() && rows[index] != nullptr);
  return *rows[index];
}

FunctionNumbers function_numbers(const Options* attributes) {
  Numbers numbers;
  if (attributes != nullptr) attributes->clone()->options(numbers);
  return numbers.numbers;
}

double number_option(const Options& attributes, std::string_view name) { return named_option(*attributes.clone(), name); }

void set_number_option(Options& attributes, std::string_view name, double value) { named_option(attributes, name) = value; }

std::optional<Activation> activation_of(const Node& node) {
  const ElementwiseRow* row = find_elementwise(node.op->name);
  if (row == nullptr || row->activation == Activation::kNone) return std::nullopt;
  return &row->formula(node.attributes.get()) == &row->formulas.front() ? std::optional(row->activation) : std::nullopt;
}

double activate(Activation activation, double x) {
  return activation == Activation::kNone ? x : elementwise_row(activation).formulas.front().value(&x, {});
}

ScalarFunction scalar_function(const OpDef& op, const Options* attributes) {
  return
      [value = row_of(op.name).formula(attributes).value, numbers = function_numbers(attributes)](double x) { return value(&x, numbers); };
}

}  // namespace galley
