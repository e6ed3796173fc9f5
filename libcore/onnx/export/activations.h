#pragma once
// Activations, alone or fused into another operator.

#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/attrs.h"

namespace galley::onnx_export {

/// The activation of x; x itself for kNone.
std::string activated(GraphWriter& w, const std::string& x, Activation activation);

}  // namespace galley::onnx_export
