// Every operator is a primitive listed in ops/README.md or has a definition; definitions expand to primitives and have the results and the
// gradient of the operator. The definition of a back end's operator is the subgraph that it replaces.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "libcore/backends/ref/reference.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/registry.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/expand.h"
#include "tests/ops/harness.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// The element-wise functions, and the names between back quotes of the paragraph of libcore/ops/README.md that begins with "Primitives:".
const std::set<std::string>& listed_primitives() {
  static const std::set<std::string> names = [] {
    std::ifstream file(GALLEY_SOURCE_DIR "/libcore/ops/README.md");
    std::set<std::string> found;
    for (const OpDef* op : elementwise_ops()) found.insert(std::string(op->name));
    bool inside = false;
    for (std::string line; std::getline(file, line);) {
      inside = line.starts_with("Primitives:") || (inside && !line.empty());
      if (!inside) continue;
      std::istringstream words(line);
      for (std::string word; words >> word;) {
        const size_t end = word.rfind('`');
        if (word[0] == '`' && end > 1) found.insert(word.substr(1, end - 1));
      }
    }
    return found;
  }();
  return names;
}

bool keep_none(const Node&) { return false; }

/// Largest difference, relative to the largest value; infinity if a value is NaN or infinite and the other one is not the same.
double definition_difference(const RefArray& a, const RefArray& b) {
  double largest = 0, worst = 0;
  for (double value : b.v) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0);
  for (size_t i = 0; i < a.v.size(); ++i) {
    if ((std::isnan(a.v[i]) && std::isnan(b.v[i])) || a.v[i] == b.v[i]) continue;
    const double error = std::abs(a.v[i] - b.v[i]) / std::max(largest, 1e-300);
    worst = std::isfinite(error) ? std::max(worst, error) : HUGE_VAL;
  }
  return worst;
}

TEST(Definitions, EveryOperatorHasOneOrigin) {
  cpu();  // registers its operators
  std::set<std::string> known;
  for (const OpDef* op : all_ops()) {
    const bool listed = listed_primitives().count(std::string(op->name)) == 1;
    known.insert(std::string(op->name));
    EXPECT_FALSE(op->made_by_rewrite && listed) << op->name << " belongs to a back end, and is a primitive";
    EXPECT_TRUE(listed || op->composite()) << op->name << " is neither a primitive of ops/README.md nor defined";
    EXPECT_TRUE(!listed || find_reference(op->name) != nullptr) << op->name << " has no reference";
  }
  for (const std::string& name : listed_primitives())
    EXPECT_EQ(known.count(name), 1u) << "ops/README.md lists " << name << ", which no operator is called";
}

class EveryDefinition : public testing::TestWithParam<OpCase> {};

TEST_P(EveryDefinition, EndsInPrimitivesWithTheSameResults) {
  const std::unique_ptr<CaseGraph> made = make_graph(GetParam(), DType::kF32, true);
  Graph expanded = made->graph;
  for (size_t n = 0; n < made->graph.nodes().size(); ++n) {
    for (size_t o = 0; o < made->graph.nodes()[n].outputs.size(); ++o)
      expanded.add_output(cat("value", n, "_", o), made->graph.nodes()[n].outputs[o]);
  }
  for (ValueId id : expanded.inputs()) {  // the harness feeds states as inputs
    if (expanded.value(id).role == ValueRole::kInput) expanded.value(id).role = ValueRole::kState;
  }
  const PassReport report = expand(expanded, keep_none, DType::kF64);
  verify(expanded);
  for (const Node& node : expanded.nodes()) {
    EXPECT_TRUE(listed_primitives().count(std::string(node.op->name)) == 1) << node.op->name << " is left, and not a primitive";
  }
  const std::map<ValueId, RefArray> want = interpret(made->graph, made->feeds), got = interpret(expanded, made->feeds);
  for (size_t n = 0; n < made->graph.nodes().size(); ++n) {
    const Node& node = made->graph.nodes()[n];
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = expanded.find_output(cat("value", n, "_", o));
      TensorType type = made->graph.type(node.outputs[o]);
      if (node.op->composite()) type.format = {};  // definitions know no formats
      EXPECT_EQ(expanded.type(id), type) << node.op->name << " output " << o;
      // Both are in double; sums may have another order.
      EXPECT_LE(definition_difference(got.at(id), want.at(node.outputs[o])), 1e-12) << node.op->name << " output " << o;
    }
  }
}

TEST_P(EveryDefinition, HasTheGradientOfTheOperator) {
  const OpCase& c = GetParam();
  if (c.straight_through) return;  // by design, the rule is not the slope of the definition
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF64, true);
  if (made->gradients.empty() || made->cotangents.empty()) return;
  const std::unique_ptr<CaseGraph> forward = make_graph(c, DType::kF64, false);
  Graph graph = forward->graph;
  Value objective;
  for (const auto& [output, cotangent] : made->cotangents) {
    const Value weight = graph.add_input(made->graph.value(cotangent).name, graph.type(output), ValueRole::kInput);
    const Value part = sum(mul(graph.at(output), weight));
    objective = objective ? add(objective, part) : part;
  }
  graph.add_output("objective", objective);
  expand(graph, keep_none);
  std::vector<ValueId> wanted;
  for (const auto& [input, gradient] : made->gradients) {
    if (made->graph.value(input).role != ValueRole::kActivation) wanted.push_back(input);
  }
  const std::map<ValueId, ValueId> gradients = differentiate(graph, graph.find_output("objective"), wanted);
  verify(graph);
  const std::map<ValueId, RefArray> want = interpret(made->graph, made->feeds), got = interpret(graph, made->feeds);
  for (const auto& [input, gradient] : made->gradients) {
    if (!gradient || made->graph.value(input).role == ValueRole::kActivation) continue;
    const RefArray& rule = want.at(gradient.id());
    const auto found = gradients.find(input);
    const RefArray zeros{rule.shape, std::vector<double>(rule.v.size())};
    // Products and quotients of the expanded form lose a few digits of double's 16 where terms cancel.
    EXPECT_LE(definition_difference(found == gradients.end() ? zeros : got.at(found->second), rule), 1e-9)
        << "gradient of " << made->graph.value(input).name;
  }
}

/// The definition of a node in a separate graph, with the inputs that the node has in its graph.
std::map<ValueId, RefArray> expanded_alone(const Graph& graph, const Node& node, const std::map<ValueId, RefArray>& values,
                                           std::vector<ValueId>& outputs) {
  Graph alone;
  std::map<std::string, RefArray> feeds;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    inputs.push_back(kNoValue);
    if (node.inputs[i] == kNoValue) continue;
    TensorType type = graph.type(node.inputs[i]);
    type.format = {};  // definitions know no formats
    inputs.back() = alone.add_input(cat(i), type, ValueRole::kState).id();
    feeds[cat(i)] = values.at(node.inputs[i]);
  }
  size_t o = 0;
  for (const Value& output : alone.add_node_like(node, inputs)) alone.add_output(cat(o++), output);
  expand(alone, keep_none);
  for (const auto& [name, id] : alone.outputs()) outputs.push_back(id);
  return interpret(alone, feeds, /*round=*/true);
}

/// Low precision concerns only memory: an operator computes in f32 and rounds its outputs once, and so does its definition. If a result in
/// f32 is near the middle of two bf16 numbers, its last bits decide, so a few elements may differ by one bf16 step. If a definition rounded
/// between its steps, a third of the elements would.
TEST_P(EveryDefinition, RoundsItsResultsOnce) {
  const OpCase& c = GetParam();
  if (!c.low_precision || c.large) return;
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kBF16, true);
  const std::map<ValueId, RefArray> values = interpret(made->graph, made->feeds, /*round=*/true);
  for (const Node& node : made->graph.nodes()) {
    if (!node.op->composite()) continue;
    std::vector<ValueId> outputs;
    const std::map<ValueId, RefArray> got = expanded_alone(made->graph, node, values, outputs);
    for (size_t o = 0; o < outputs.size(); ++o) {
      const RefArray &mine = got.at(outputs[o]), &want = values.at(node.outputs[o]);
      ASSERT_EQ(mine.v.size(), want.v.size());
      double largest = 0;
      for (double value : want.v) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0);
      const bool low = made->graph.type(node.outputs[o]).dtype == DType::kBF16;
      size_t apart = 0;
      for (size_t i = 0; i < want.v.size(); ++i) {
        if (mine.v[i] == want.v[i] || (std::isnan(mine.v[i]) && std::isnan(want.v[i]))) continue;
        const double error = std::abs(mine.v[i] - want.v[i]), f32_error = c.kernel_tolerance * largest;
        if (error <= f32_error) continue;
        ++apart;
        EXPECT_TRUE(low && error <= 0x1p-7 * std::abs(want.v[i]) + f32_error)
            << node.op->name << " output " << o << " element " << i << ": " << mine.v[i] << " for " << want.v[i];
      }
      EXPECT_LE(apart, 1 + want.v.size() / 50) << node.op->name << " output " << o << ": " << apart << " of " << want.v.size()
                                               << " are apart";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryDefinition, testing::ValuesIn(all_cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace galley::test
