// Laws of every operator, over the tables of cases: hand values, gradient rules, kernels, completeness.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/base/processor.h"
#include "libcore/ops/registry.h"
#include "tests/ops/harness.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

// Central differences of fourth order with h = 1e-3 have errors of about 1e-10; a wrong rule differs in the first digits.
constexpr double kGradientTolerance = 1e-7;

class EveryCase : public testing::TestWithParam<OpCase> {};

TEST_P(EveryCase, GivesHandValues) {
  const OpCase& c = GetParam();
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF64, false);
  const std::map<ValueId, RefArray> values = interpret(made->graph, made->feeds);
  for (size_t o = 0; o < made->graph.nodes()[made->node].outputs.size(); ++o) {
    const ValueId id = made->graph.nodes()[made->node].outputs[o];
    ASSERT_EQ(values.at(id).v.size(), static_cast<size_t>(made->graph.type(id).elements()));
  }
  if (c.expected.empty()) return;
  const RefArray& got = values.at(made->graph.nodes()[made->node].outputs[0]);
  ASSERT_EQ(got.v.size(), c.expected.size());
  for (size_t i = 0; i < c.expected.size(); ++i) {
    // Hand values are written with at least seven digits.
    if (!(std::abs(got.v[i] - c.expected[i]) <= 1e-6 * std::max(1.0, std::abs(c.expected[i]))))
      ADD_FAILURE() << "element " << i << " is " << got.v[i] << ", by hand " << c.expected[i];
  }
}

TEST_P(EveryCase, GradientAgreesWithFiniteDifferences) {
  const OpCase& c = GetParam();
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF64, true);
  if (made->gradients.empty() || c.straight_through || c.large) return;  // the registry test requires a reason
  const double error = gradient_error(c);
  if (!(error <= kGradientTolerance)) ADD_FAILURE() << "relative error " << error;
  // Negative control: a gradient that is one per cent too large must fail, unless it is zero or empty.
  const std::map<ValueId, RefArray> values = interpret(made->graph, made->feeds);
  bool any = false;
  for (const auto& [input, gradient] : made->gradients) {
    if (!gradient) continue;
    for (double value : values.at(gradient.id()).v) any |= value != 0;
  }
  if (any && !(gradient_error(c, 1.01) > 1e-3)) ADD_FAILURE() << "a gradient scaled by 1.01 passes";
}

TEST_P(EveryCase, KernelsAgreeWithTheReference) {
  if (kSanitized && GetParam().large) GTEST_SKIP() << "large cases take minutes in a sanitizer's build";
  with_each_width([] {
    for (const std::string& failure : kernel_failures(cpu(), GetParam(), DType::kF32)) ADD_FAILURE() << failure;
    if (!GetParam().low_precision) return;
    for (const std::string& failure : kernel_failures(cpu(), GetParam(), DType::kBF16)) ADD_FAILURE() << failure;
  });
}

// Kernels are also compiled for the baseline, and convolutions and matrix products for 128-bit vectors, which this machine would not use by
// default.
TEST_P(EveryCase, KernelsAgreeWithTheReferenceOnNarrowVectors) {
  const OpCase& c = GetParam();
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF32, false);
  std::vector<int64_t> targets = {HWY_SCALAR};
  if (made->graph.nodes()[made->node].op->work == WorkClass::kProduct) targets.push_back(HWY_SSSE3);
  for (const int64_t target : targets) {
    const Targets narrow(target);
    for (const std::string& failure : kernel_failures(cpu(), c, DType::kF32)) ADD_FAILURE() << failure;
    if (!c.low_precision) continue;
    for (const std::string& failure : kernel_failures(cpu(), c, DType::kBF16)) ADD_FAILURE() << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryCase, testing::ValuesIn(all_cases()), [](const auto& info) { return info.param.name; });

TEST(Registry, EveryOpIsComplete) {
  cpu();  // registers its operators
  std::set<std::string_view> tried, differentiated;
  for (const OpCase& c : all_cases()) {
    const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF64, true);
    for (const Node& node : made->graph.nodes()) tried.insert(node.op->name);
    if (!made->gradients.empty()) differentiated.insert(made->graph.nodes()[made->node].op->name);
  }
  for (const OpDef* op : all_ops()) {
    EXPECT_FALSE(op->doc.empty()) << op->name << " has no line of documentation";
    EXPECT_TRUE(op->composite() || find_reference(op->name) != nullptr) << op->name << " has no reference";
    EXPECT_EQ(tried.count(op->name), 1u) << op->name << " is in no case";
    if (op->gradient != nullptr) {
      EXPECT_TRUE(op->no_gradient.empty()) << op->name << " has a gradient and a reason to have none";
      EXPECT_EQ(differentiated.count(op->name), 1u) << op->name << " has no gradient case";
    } else {
      EXPECT_FALSE(op->no_gradient.empty()) << op->name << " has neither a gradient nor a reason";
    }
  }
}

bool has_port(const std::vector<Port>& ports, PortKind kind) {
  return std::any_of(ports.begin(), ports.end(), [kind](const Port& port) { return port.kind == kind; });
}

TEST(Registry, EntriesAgreeWithThemselves) {
  ensure_ops_registered();
  for (const OpDef* op : all_ops()) {
    SCOPED_TRACE(op->name);
    // A product may write a state too: cached attention stores the new keys and values.
    EXPECT_TRUE(op->work != WorkClass::kState || !op->updates.empty());
    EXPECT_TRUE(op->updates.empty() || op->work == WorkClass::kState || op->work == WorkClass::kProduct);
    for (const InPlace& update : op->updates) {
      EXPECT_EQ(op->inputs[static_cast<size_t>(update.input)].kind, PortKind::kState);
      EXPECT_EQ(op->outputs[static_cast<size_t>(update.output)].kind, PortKind::kState);
      EXPECT_EQ(op->outputs[static_cast<size_t>(update.output)].name, op->inputs[static_cast<size_t>(update.input)].name);
    }
    EXPECT_TRUE(op->layout.weights == WeightFormat::kContiguous || has_port(op->inputs, PortKind::kWeight) ||
                has_port(op->outputs, PortKind::kWeight));
    EXPECT_TRUE(!op->layout.prefers_channels_last || op->layout.formats == FormatRule::kKeeps) << "asks for a format that it does not keep";
    EXPECT_TRUE(op->layout.with_format == nullptr || op->layout.formats == FormatRule::kExplicit);
    EXPECT_EQ(family_of(*op).work, op->work);
    const bool layer = op->quantize == QuantizeRule::kProduct || op->quantize == QuantizeRule::kRecurrent;
    if (layer) {
      EXPECT_EQ(op->work, WorkClass::kProduct);
      EXPECT_EQ(std::count_if(op->inputs.begin(), op->inputs.end(), [](const Port& port) { return port.kind == PortKind::kWeight; }),
                op->quantize == QuantizeRule::kProduct ? 1 : 2);
    }
  }
}

TEST(Registry, RulesOfQuantizationHaveTheirForms) {
  ensure_ops_registered();
  int forms = 0;
  for (const OpDef* op : all_ops()) {
    SCOPED_TRACE(op->name);
    const QuantizeRule rule = op->quantize;
    forms += op->integer_form != nullptr || op->dynamic_form != nullptr;
    EXPECT_TRUE(rule != QuantizeRule::kFloat || (op->integer_form == nullptr && op->dynamic_form == nullptr && op->quantizable == nullptr))
        << "a form that nothing asks for";
    const bool given = rule == QuantizeRule::kPassThrough || rule == QuantizeRule::kTable;  // the operator itself, a look-up
    if (rule == QuantizeRule::kRecurrent) {
      EXPECT_TRUE(op->integer_form == nullptr && op->dynamic_form != nullptr);
    } else if (rule != QuantizeRule::kFloat && !given) {
      EXPECT_NE(op->integer_form, nullptr);
    }
    EXPECT_EQ(op->channel_scale != nullptr, rule == QuantizeRule::kScale);
    // Operators on integers are created by the conversion and have no quantization rule.
    EXPECT_TRUE(op->integer != IntegerRole::kComputes || rule == QuantizeRule::kFloat);
  }
  EXPECT_GE(forms, 10);
}

TEST(Registry, EveryProductIsOne) {
  ensure_ops_registered();
  // Operators with more products than inputs: two flops per pair. Some cases are too small to show this.
  std::set<std::string_view> heavy;
  for (const OpCase& c : all_cases()) {
    const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF32, false);
    for (const Node& node : made->graph.nodes()) {
      const OpContext context = context_of(made->graph, node);
      double largest = 1;
      for (const TensorType* type : context.inputs)
        largest = type == nullptr ? largest : std::max(largest, static_cast<double>(type->elements()));
      for (const TensorType* type : context.outputs) largest = std::max(largest, static_cast<double>(type->elements()));
      if (cost_of(*node.op, context).flops > 24 * largest) heavy.insert(node.op->name);
    }
  }
  EXPECT_GE(heavy.size(), 10u);
  for (const std::string_view name : heavy) {
    const OpDef& op = find_op(name);
    EXPECT_TRUE(op.work == WorkClass::kProduct || has_port(op.outputs, PortKind::kWeight))
        << name << " has many operations per element, but is not a product";
  }
}

TEST(Registry, GatedUpdatesHaveFastKernels) {
  if (cpu().reference()) GTEST_SKIP() << "this build has no CPU back end";
  int gated = 0;
  for (const OpCase& c : all_cases()) {
    const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF32, false);
    for (const Node& node : made->graph.nodes()) {
      if (node.op->gate < 0 || node.input(static_cast<size_t>(node.op->gate)) == kNoValue) continue;
      const KernelChoice choice = cpu().choose(cpu().query(made->graph, node));
      EXPECT_FALSE(choice.kernel->reference) << c.name << ": "
                                             << (choice.declined.empty() ? "no kernel but the reference" : choice.declined.front());
      ++gated;
    }
  }
  EXPECT_GE(gated, 16);
}

TEST(Registry, EveryKernelIsTried) {
  std::set<std::string> tried;
  // Some support only one vector width.
  with_each_width([&] {
    for (const OpCase& c : all_cases()) {
      kernel_failures(cpu(), c, DType::kF32, &tried);
      if (c.low_precision) kernel_failures(cpu(), c, DType::kBF16, &tried);
    }
  });
  for (const OpDef* op : all_ops()) {
    for (const Kernel* kernel : cpu().kernels(*op)) {
      if (kernel->algorithm == "implicit_gemm_amx" && !tile_unit().bf16)
        continue;  // on other machines tests/backends/cpu tests its emulated form
      EXPECT_EQ(tried.count(cat(kernel->algorithm, " of ", op->name)), 1u)
          << kernel->algorithm << " of " << op->name << " supports no node of any case";
    }
  }
}

}  // namespace
}  // namespace galley::test
