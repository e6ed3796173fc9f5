#pragma once
// The model kind "onnx".

namespace galley {

/// Adds the kind to the table of models (nn/zoo.h). Call it before the first call of `models()`; repeated calls do nothing.
void add_onnx_models();

}  // namespace galley
