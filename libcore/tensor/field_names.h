#pragma once
// Names of fields that transforms add and models read.

#include <string_view>

namespace galley {

/// The rows and columns of an image on a larger canvas, f32 [2].
inline constexpr std::string_view kImageSize = "image_size";
/// The same rounded up to the multiple of pixels that its network needs, i64 [2]: by `data.padding: image`, pixels beyond have no effect.
inline constexpr std::string_view kImageExtents = "image_extents";

}  // namespace galley
