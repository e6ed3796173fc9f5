#pragma once
// QuantizationPlan: all that a converted graph is made from besides the captured model: what a file of quantized weights carries as
// `galley.quantization`.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/op_def.h"
#include "libcore/quant/config.h"

namespace galley {

/// A layer with weights: a convolution, a linear layer, a batch norm that was not folded and runs on integers as a depthwise product, or
/// one of the two weights of a recurrent layer.
struct LayerPlan {
  std::string name;  // the module's path, with ".2" where a path has several; of recurrent layers the weight's own name: "rnn.weight_hh_l0"
  std::string type;  // "conv2d", "linear", "batch_norm", "lstm", "gru", "rnn"
  std::string scheme;        // for people: "int8 per channel symmetric, uint8 affine (mse)"; "float"
  std::string float_reason;  // "": quantized; else "override", "goal", "no kernel: ..."
  int64_t bits = 8;          // 8, or 4: two a byte
  int64_t group_size = 0;    // weights that share a scale; 0: an output channel
  bool reduced = false;      // no weight passes 64: pairs of products with 8-bit activations fit 16 bits
  /// Names of its tensors: "conv1.weight" and, beside it, "conv1.weight_scale"; "rnn.weight_hh_l0" and "rnn.weight_hh_l0_scale".
  bool recurrent() const;
  std::string weight() const { return recurrent() ? name : name + ".weight"; }
  std::string weight_scale() const { return weight() + "_scale"; }
  std::string weight_zero_point() const { return weight() + "_zero_point"; }
  double sqnr_activation_db = 0;  // of the layer's result in its integers over the calibration's values; NaN where it is real or unknown
};

/// How layers of that type (LayerPlan::type) are quantized; kFloat where it is the type of none.
QuantizeRule layer_rule(std::string_view type);

struct QuantizationPlan {
  QuantMethod method = QuantMethod::kStatic;
  std::vector<LayerPlan> layers;  // in the order of the graph
  /// Maps of values that are made as, or turned into, integers, by quant_name. What moves integers unchanged shares its input's.
  std::map<std::string, QuantParams> values;

  /// nullptr where there is no such layer.
  const LayerPlan* find(std::string_view name) const;
  /// Layers that run on integers (weight_only: are stored as such).
  int64_t quantized_layers() const;
  /// "int8", "int4", or "int8 and int4": of the layers that are quantized.
  std::string dtype() const;
  /// "static: 53 of 54 layers in int8"
  std::string str() const;
};

}  // namespace galley
