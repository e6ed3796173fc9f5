#pragma once
// Names of fields that transforms add and models read.

#include <string_view>

namespace galley {

/// The rows and columns of an image on a larger canvas, f32 [2].
inline constexpr std::string_view kImageSize = "image_size";

}  // namespace galley
