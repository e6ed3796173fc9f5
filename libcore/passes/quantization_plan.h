#pragma once
// QuantizationPlan: together with the captured model it determines the quantized graph. A file of quantized weights contains it as
// `galley.quantization`.

#include <algorithm>
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
  std::string name;    // the module's path, with ".2" for the second layer of a path; recurrent: the name of the weight, "rnn.weight_hh_l0"
  std::string type;    // "conv2d", "linear", "batch_norm", "lstm", "gru", "rnn"
  std::string scheme;  // for reports: "int8 per channel symmetric, uint8 affine (mse)"; "float"
  std::string float_reason;  // "": quantized; else "override", "goal", "no kernel: ..."
  int64_t bits = 8;          // 8, or 4: two per byte
  bool f8 = false;           // the weight is f8_e4m3, and x is rounded to it with input_scale; else integers
  double input_scale = 0;    // f8: a float32 value
  int64_t group_size = 0;    // weights that share a scale; 0: an output channel
  bool reduced = false;      // |w| <= 64: the sum of two products with 8-bit activations fits 16 bits
  /// Names of its tensors: "conv1.weight" with "conv1.weight_scale"; "rnn.weight_hh_l0" and "rnn.weight_hh_l0_scale".
  bool recurrent() const;
  std::string weight() const { return recurrent() ? name : name + ".weight"; }
  std::string weight_scale() const { return weight() + "_scale"; }
  std::string weight_zero_point() const { return weight() + "_zero_point"; }
  double sqnr_activation_db = 0;  // of the quantized output, over the values of the calibration; NaN if it is real or unknown
};

/// How layers of that type (LayerPlan::type) are quantized; kFloat if there is no such type.
QuantizeRule layer_rule(std::string_view type);

struct QuantizationPlan {
  QuantMethod method = QuantMethod::kStatic;
  std::vector<LayerPlan> layers;  // in the order of the graph
  /// Scales and zero points of integer values, by quant_name. Operators that move integers unchanged share those of their input.
  std::map<std::string, QuantParams> values;
  std::string file;  // that it was read from, for messages; "": it was made here

  /// nullptr if there is no such layer.
  const LayerPlan* find(std::string_view name) const;
  /// The number of layers that run on integers or f8_e4m3 (weight_only: are stored as integers).
  int64_t quantized_layers() const;
  /// Does a layer run on f8_e4m3?
  bool has_f8() const {
    return std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) { return layer.f8; });
  }
  /// "int8", "int8 and int4", "f8_e4m3": of the layers that are quantized.
  std::string dtype() const;
  /// "static: 53 of 54 layers in int8"
  std::string str() const;
};

}  // namespace galley
