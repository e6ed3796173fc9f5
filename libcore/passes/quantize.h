#pragma once
// Quantization of an inference graph with folded batch norms and fused activations and residuals (inference_passes): first a plan, which
// gives the integers of each layer and value; then the conversion, a pure function of graph and plan, so that a file with plan and weights
// loads into the same graph.

#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/passes/quantization_plan.h"
#include "libcore/quant/calibration.h"
#include "libcore/quant/config.h"

namespace galley {

/// A layer that the config's selectors may name.
struct QuantizableLayer {
  std::string name, type;
  std::string value;  // quant_name of its result
};
/// Layers with weights that a method can quantize, in the order of the graph. batch_norm: only those that were not folded, of rank 4.
std::vector<QuantizableLayer> quantizable_layers(const Graph& fused);

/// A table of embeddings. A plan stores it as integers where the config has a scheme for its value that does not keep it in float.
struct TableLayer {
  std::string value;    // quant_name of the result of its first lookup
  bool shared = false;  // whether a layer (a tied head) has it as its weight
};
/// The tables of embeddings by the names of their layers.
std::map<std::string, TableLayer> table_layers(const Graph& fused);

/// The plan for this graph. Only kStatic and kQat need `calibration`. The keys of QuantizeConfig::layers are the
/// quant_names of layers' results. Throws (kInput) for a value without statistics and, with fallback kError,
/// (kRecipe) if the scheme of a layer has no kernel; it names all such layers.
///
/// Layers with weights of f8_e4m3 round their input by a scale of its own and have a real result.
///
/// Operators that run on integers (static): convolutions and linear layers by their schemes; others if they have an integer form, read at
/// least one integer value, and an operator on integers reads their result. So every quantized value has a reader, and results stay
/// integers from layer to layer. Inputs of a concat take the scale of its result unless they would lose more than two bits.
QuantizationPlan plan_quantization(const Graph& fused, const QuantizeConfig& config, const Calibration* calibration);

/// A named array of a quantized model's file: read by the converted graph, or stored for other readers of the file.
struct QuantizedTensor {
  std::string name;
  TensorType type;
  ValueRole role = ValueRole::kParameter;
  std::string layer, layer_type;  // "" if it belongs to no layer
  bool read = true;               // by the graph; false: L.input_scale and the like, whose values are in the plan
};

struct ConvertReport {
  int quantize_nodes = 0, dequantize_nodes = 0;
  /// How many of these are neither at an input nor at an output of the graph.
  int inner_quantize = 0, inner_dequantize = 0;
  /// A line for each quantize and dequantize node, with its reason: "layer1.0.conv2: dequantize for layer_norm at layer1.0.norm".
  std::vector<std::string> nodes;
  /// Operators that stay in float, with their number: "layer_norm" 25. Layers with weights are not counted.
  std::map<std::string, int> float_operators;
  /// The tensors of a file of its weights.
  std::vector<QuantizedTensor> tensors;
};

/// Rewrites the graph. Tensors of a layer L: L.weight (i8; 4 bits: u8, packed), L.weight_scale, L.weight_zero_point, L.bias; of f8_e4m3
/// L.weight, L.weight_scale, L.bias and L.input_scale; and of a layer left in float L.weight and L.bias with the batch norm folded in;
/// L.input_scale, L.input_zero_point, L.output_scale, L.output_zero_point repeat the scales and zero points of the plan. Throws (kInput) if
/// the plan does not fit this graph.
ConvertReport convert_quantized(Graph& fused, const QuantizationPlan& plan);

/// How conversion gets weights from the parameters of the float model: a graph that reads parameters and buffers only, with outputs
/// "L.weight" and "L.bias" for each layer whose weight is computed (folded), and the names of the parameters of all other layers.
struct LayerConstants {
  Graph graph;
  std::map<std::string, std::string> parameters;  // by tensor ("fc.weight"): the name of the parameter
};
LayerConstants layer_constants(const Graph& fused);

/// Scales and zero points of layers in the plan: the tensors of ConvertReport that the graph does not read.
std::map<std::string, double> plan_tensors(const Graph& fused, const QuantizationPlan& plan);

}  // namespace galley
