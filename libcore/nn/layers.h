#pragma once
// Builds models that a recipe lists layer by layer.

#include "libcore/nn/builder.h"
#include "libcore/nn/layer_spec.h"
#include "libcore/nn/zoo.h"

namespace galley {

/// Captures layers in sequence and returns the output of the last one. Each layer takes the output of the previous one, and the first takes
/// `input`, unless `inputs` names others: earlier layers of the group, layers of enclosing groups, or `in`, the input of the group. Errors
/// name the layer's path. Unnamed layers are named after their type, with a number from the second on: relu, relu2.
Value build_layers(Builder& b, const OptionList& layers, Value input);

}  // namespace galley
