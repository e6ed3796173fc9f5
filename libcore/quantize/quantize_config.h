#pragma once
// What the recipe's section `quantize` says, resolved for each value of one model.

#include "libcore/graph/graph.h"
#include "libcore/quant/config.h"
#include "libcore/recipe/quantize_section.h"

namespace galley {

/// The config of a folded and fused inference graph. Overrides select by quant_name and operator ("layer1.0.conv2", type:add); each key
/// comes from the first item that matches and sets it. Throws (kRecipe), with near names, for a pattern that matches nothing.
///
/// saturation: reduce takes one bit from the weights (-64..64), unless activations.reduce_range is true: then from the activations.
QuantizeConfig resolve_quantize(const QuantizeSection& section, const Graph& fused);
/// The scheme of activations without overrides.
ActivationScheme default_activations(const QuantizeSection& section);

}  // namespace galley
