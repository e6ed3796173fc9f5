#pragma once
// Quantization of an inference graph whose batch norms are folded and whose activations and residuals are fused (fold_batch_norm,
// fuse_inference): first a plan, which says for each layer and value which integers it has; then the conversion, a pure function of graph
// and plan, so that a file that carries plan and weights loads into the very same graph.

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
/// Layers with weights that the method can be asked about, in the graph's order. batch_norm: only those not folded, of rank 4.
std::vector<QuantizableLayer> quantizable_layers(const Graph& fused);

/// How this graph is converted. Only kStatic and kQat need `calibration`. QuantizeConfig::layers is looked up by
/// the quant_name of a layer's result. Throws (kRecipe) naming every layer without a kernel for its scheme
/// where fallback is kError, (kInput) for a value without statistics.
///
/// Which operators run on integers (static): convolutions and linear layers as their schemes say; of the others, those that have an integer
/// form, read at least one integer value, and whose result an operator on integers reads. So no value is quantized without a reader, and a
/// result goes from layer to layer as integers. Inputs of a concat take over its map unless they would lose more than two bits.
QuantizationPlan plan_quantization(const Graph& fused, const QuantizeConfig& config, const Calibration* calibration);

/// A named array that a converted graph reads, or that its file holds beside for readers of it.
struct QuantizedTensor {
  std::string name;
  TensorType type;
  ValueRole role = ValueRole::kParameter;
  std::string layer, layer_type;  // "" for what is no layer's
  bool read = true;               // by the graph; false: L.input_scale and the like, whose values are the plan's
};

struct ConvertReport {
  int quantize_nodes = 0, dequantize_nodes = 0;
  /// Of these, how many stand neither at an input nor at an output of the graph.
  int inner_quantize = 0, inner_dequantize = 0;
  /// A line for each quantize and dequantize node, and why: "layer1.0.conv2: dequantize for layer_norm at layer1.0.norm".
  std::vector<std::string> nodes;
  /// Operators that stay in float and their number, layers with weights not counted: "layer_norm" 25.
  std::map<std::string, int> float_operators;
  /// What a file of its weights holds, exactly.
  std::vector<QuantizedTensor> tensors;
};

/// Rewrites the graph. Tensors of a layer L: L.weight (i8; 4 bits: u8, packed), L.weight_scale, L.weight_zero_point, L.bias, and of a layer
/// left in float L.weight and L.bias with the batch norm folded in; L.input_scale, L.input_zero_point, L.output_scale, L.output_zero_point
/// repeat the plan's maps. Throws (kInput) where the plan is not of this graph.
ConvertReport convert_quantized(Graph& fused, const QuantizationPlan& plan);

/// The values that conversion needs, from the float model's parameters: a graph of parameters and buffers alone with outputs "L.weight" and
/// "L.bias" for each layer whose values are computed (folded), and the names of the parameters that the others are.
struct LayerConstants {
  Graph graph;
  std::map<std::string, std::string> parameters;  // by tensor ("fc.weight"): the model's own name
};
LayerConstants layer_constants(const Graph& fused);

/// Scales and zero points that the plan gives layers: the tensors of ConvertReport that the graph does not read.
std::map<std::string, double> plan_tensors(const Graph& fused, const QuantizationPlan& plan);

}  // namespace galley
