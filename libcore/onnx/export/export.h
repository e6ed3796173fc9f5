#pragma once
// From a captured model to the nodes of an ONNX file (opset 17): every operator of an inference graph has its row in a table, as kernels
// have.

#include <functional>
#include <string>

#include "libcore/graph/graph.h"
#include "libcore/onnx/write.h"
#include "libcore/passes/quantization_plan.h"

namespace galley {

struct OnnxExport {
  /// An inference graph. With `named_layers`, or a plan: folded and fused.
  const Graph* graph = nullptr;
  /// The same model captured on another number of samples: what differs follows the batch, which the file leaves open. nullptr: the batch
  /// is fixed.
  const Graph* other = nullptr;
  /// Values of parameters, buffers and, where layers are named, their tensors ("L.weight", "L.bias", with a plan "L.weight_scale", ...).
  std::function<Tensor(const std::string& name)> values;
  /// Layers read L.weight and L.bias where their own are computed: batch norms folded in.
  bool named_layers = false;
  /// What the graph is quantized by: static (and qat) becomes QuantizeLinear and DequantizeLinear around operators on floats, weight_only
  /// DequantizeLinear on weights. nullptr: float.
  const QuantizationPlan* plan = nullptr;
};

/// Nodes, initializers (under the parameters' names), inputs and outputs (under the graph's names). Throws Error (exit code 3) naming an
/// operator without ONNX form, its module, and why.
OnnxDocument onnx_document(const OnnxExport& what);

}  // namespace galley
