#pragma once
// apply_extents: images of different size in one array, each as if it were alone.

#include <string_view>

#include "libcore/graph/graph.h"

namespace galley {

/// Rewrites the graph so that the results for each image of `images` [N,C,H,W] are those for an array of the image's own size. Image n is
/// in the first extents[n,0] rows and extents[n,1] columns (i64 [N,2]); the other pixels are 0. Pixels outside are 0 before every layer
/// that combines pixels, averages are of the pixels inside, and the extents follow the shape rule of each operator (ops/extent_builder.h),
/// until an operator makes something else of the images. `training`: a backward pass follows. Throws Error (kRecipe) at an operator that
/// cannot take extents.
void apply_extents(Graph& graph, Value images, Value extents, bool training = false);

/// Throws Error (kRecipe, data.padding) at the first batch norm whose statistics are those of the pixels inside images. `reason` completes
/// "the batch norm at PATH has the statistics of pixels inside the images, ", `cure` says what to set besides data.padding: batch and
/// frozen_norm: true ("": nothing else helps).
void refuse_norms_inside_extents(const Graph& graph, std::string_view reason, std::string_view cure);

}  // namespace galley
