#pragma once
// Resolves the recipe's section `quantize` for each value of one model.

#include "libcore/graph/graph.h"
#include "libcore/quant/config.h"
#include "libcore/recipe/quantize_section.h"

namespace galley {

/// The config for a folded and fused inference graph. Overrides select by quant_name and operator ("layer1.0.conv2", type:add); each key is
/// taken from the first matching item that sets it. Throws (kRecipe), with similar names, for a pattern without a match.
///
/// saturation: reduce removes one bit of the weights (-64..64), or of the activations if activations.reduce_range is true.
QuantizeConfig resolve_quantize(const QuantizeSection& section, const Graph& fused);
/// The scheme of activations that no override selects.
ActivationScheme default_activations(const QuantizeSection& section);

}  // namespace galley
