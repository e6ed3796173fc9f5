#pragma once
// Export of a captured model to ONNX (opset 17). Each operator of an inference graph has a row in a table of export functions.

#include <array>
#include <functional>
#include <map>
#include <string>

#include "libcore/graph/graph.h"
#include "libcore/onnx/write.h"
#include "libcore/passes/quantization_plan.h"

namespace galley {

struct OnnxExport {
  /// An inference graph; with `named_layers` or a plan it must be folded and fused.
  const Graph* graph = nullptr;
  /// The same model captured with another number of samples: sizes that differ depend on the batch, which the file then leaves open.
  /// nullptr: the batch is fixed.
  const Graph* other = nullptr;
  /// The same for models of text: captured with another number of tokens, and of earlier tokens (nn/attention.h). nullptr: these are fixed.
  const Graph* longer = nullptr;
  const Graph* later = nullptr;
  /// The positions of tokens are less than this.
  int64_t positions = 0;
  /// Names of the open sizes: samples, tokens, earlier tokens.
  std::array<std::string, 3> size_names{"N", "T", "P"};
  /// The file's names of inputs of the graph that have others.
  std::map<std::string, std::string> input_names;
  /// Returns the values of parameters and buffers and, for named layers, their tensors ("L.weight", "L.bias", with a plan "L.weight_scale",
  /// ...).
  std::function<Tensor(const std::string& name)> values;
  /// Layers with computed weights (after folding batch norms) read the arrays L.weight and L.bias instead.
  bool named_layers = false;
  /// The quantization plan. Static and qat export QuantizeLinear and DequantizeLinear around float operators; weight_only exports
  /// DequantizeLinear on weights. nullptr: float.
  const QuantizationPlan* plan = nullptr;
};

/// Returns the nodes, the initializers (named as the parameters), the inputs and the outputs (named as in the graph). Throws Error (exit
/// code 3) with the operator, its module and the reason if an operator has no ONNX equivalent.
OnnxDocument onnx_document(const OnnxExport& request);

}  // namespace galley
