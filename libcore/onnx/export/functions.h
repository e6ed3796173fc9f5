#pragma once
// Functions that are exported alone or as part of another operator. Each returns the name of its result.

#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/attrs.h"
#include "libcore/tensor/quant_params.h"

namespace galley::onnx_export {

/// Applies the activation; returns x itself for kNone.
std::string activated(GraphWriter& w, const std::string& x, Activation activation);
/// Quantizes x. QuantizeLinear saturates at the limits of the type; narrower limits become a Clip before it.
std::string quantized(GraphWriter& w, const std::string& x, const QuantParams& map);
/// Dequantizes q.
std::string dequantized(GraphWriter& w, const std::string& q, const QuantParams& map);

}  // namespace galley::onnx_export
