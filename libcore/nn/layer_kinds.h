#pragma once
// The layers that a recipe may name; layer_spec.h declares their list, layer_kinds().

#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

/// Captures one layer called `name` in the builder's present scope. Throws where the number of inputs is not the layer's.
Value build_layer(Builder& b, const Component& layer, std::string_view name, const std::vector<Value>& inputs);

}  // namespace galley
