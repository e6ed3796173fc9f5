#pragma once
// The model kind "onnx".

namespace galley {

/// Adds the kind to the table of models (nn/zoo.h), before `models()` is first called; a second time does nothing.
void add_onnx_models();

}  // namespace galley
