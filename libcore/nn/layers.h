#pragma once
// Layers by name, as torch.nn.functional calls them, and models written out layer by layer.

#include "libcore/nn/builder.h"
#include "libcore/nn/layer_spec.h"
#include "libcore/nn/zoo.h"

namespace galley {

/// Captures layers in sequence: each takes the output of the one before, the first the `input` of the list, unless `inputs` names
/// others: siblings before it, layers of enclosing groups, or `in`, the input of its own group. Returns the last one's output.
/// Errors name the layer's path. Layers without a name are called by their type, from the second on with a number: relu, relu2.
Value build_layers(Builder& b, const OptionList& layers, Value input);

}  // namespace galley
