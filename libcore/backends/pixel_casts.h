#pragma once
// Pixels that become numbers in bf16 or f16 without an array in f32, for the rewrites of back ends.

#include "libcore/passes/target.h"

namespace galley {

/// kBeforeLayout: normalize_pixels whose result is only cast to bf16 or f16 writes that type itself, with the same bits.
PassReport fold_pixel_casts(Graph& graph, const Target& target);

}  // namespace galley
