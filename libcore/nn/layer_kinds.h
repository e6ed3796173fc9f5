#pragma once
// The layers that a recipe may name. layer_spec.h declares their list, layer_kinds().

#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

/// Captures the layer `name` in the builder's current scope. Throws Error if the layer takes another number of inputs.
Value build_layer(Builder& b, const Component& layer, std::string_view name, const std::vector<Value>& inputs);

}  // namespace galley
