#pragma once
// Functions that are written alone or as part of another operator.

#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/attrs.h"
#include "libcore/tensor/quant_params.h"

namespace galley::onnx_export {

/// The activation of x; x itself for kNone.
std::string activated(GraphWriter& w, const std::string& x, Activation activation);
/// The integers of x. QuantizeLinear saturates at the type's limits; narrower ones are a clip of the values before.
std::string quantized(GraphWriter& w, const std::string& x, const QuantParams& map);
/// The values of integers.
std::string dequantized(GraphWriter& w, const std::string& q, const QuantParams& map);

}  // namespace galley::onnx_export
