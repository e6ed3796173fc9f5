// Evaluates nodes with constant inputs that fold.cpp does not handle, by running their graph on the reference back end.

#include <algorithm>
#include <cmath>

#include "libcore/onnx/import/import.h"
#include "libcore/runtime/engine.h"

namespace galley::onnx_import {
namespace {

constexpr double kExact = 9007199254740992.0;  // 2^53: the reference back end computes in double

bool is_small(const Tensor& x, int64_t largest) {
  if (!x.defined()) return true;
  if (x.elements() > (is_floating(x.dtype()) ? kMaxConstant : largest) || x.elements() == 0) return false;
  if (x.dtype() != DType::kI64) return true;
  const std::vector<int64_t> values = to_ints(x);
  return std::all_of(values.begin(), values.end(), [](int64_t value) { return std::fabs(static_cast<double>(value)) < kExact; });
}

/// Runs the graph (which is consumed) and returns its outputs by name.
std::map<std::string, Tensor> run_graph(Graph& graph, const std::vector<ParameterSpec>& parameters, const std::vector<Tensor>& inputs) {
  Engine engine(open_backend("ref"));
  for (const ParameterSpec& spec : parameters) {
    engine.store().declare(spec.name, spec.type, spec.role);
    engine.store().set(spec.name, initialize(spec, 0));
  }
  engine.follow_store();
  const std::vector<std::pair<std::string, ValueId>> outputs = graph.outputs();
  graph.remove_dead_nodes();
  const auto program = engine.program({.mode = "constants"}, "constants of an ONNX file", [&] { return std::move(graph); });
  const std::unique_ptr<Execution> execution = engine.bind(program);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && execution->takes(std::to_string(i))) execution->feed(std::to_string(i), inputs[i]);
  }
  execution->run();
  std::map<std::string, Tensor> results;
  for (const auto& [name, id] : outputs) results.emplace(name, execution->output(name).clone());
  return results;
}

}  // namespace

std::optional<std::vector<Tensor>> evaluate(const OnnxNode& node, MakeNode make, std::shared_ptr<const Source> source,
                                            const std::vector<Tensor>& inputs, int64_t largest) {
  // Quantized weights stay weights.
  if (node.op_type == "DequantizeLinear" ||
      !std::all_of(inputs.begin(), inputs.end(), [&](const Tensor& x) { return is_small(x, largest); }))
    return std::nullopt;
  try {
    Graph graph;
    Builder b(graph, {.mode = Mode::kEvaluation});
    Importer importer(b, std::move(source), {});
    const std::vector<Item> outputs = importer.run_node(node, make, inputs);
    std::vector<Tensor> results(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].constant.defined()) {
        results[i] = outputs[i].constant;
      } else if (outputs[i].value) {
        if (outputs[i].value.shape().elements() > largest || outputs[i].value.shape().elements() == 0) return std::nullopt;
        graph.add_output(cat("out", i), outputs[i].value);
      }
    }
    if (graph.outputs().empty()) return results;
    const std::map<std::string, Tensor> values = run_graph(graph, b.take_parameters(), inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      if (const auto found = values.find(cat("out", i)); found != values.end()) results[i] = found->second;
    }
    return results;
  } catch (const Error&) {
    return std::nullopt;  // the node is then imported normally, which reports the error with its place
  }
}

}  // namespace galley::onnx_import
