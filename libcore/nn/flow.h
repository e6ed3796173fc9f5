#pragma once
// Names of the inputs and results of optical flow models.

#include <string_view>

namespace galley {

/// The images, [N,3,H,W] each, pixels in -1..1.
inline constexpr std::string_view kFirstImage = "image1";
inline constexpr std::string_view kSecondImage = "image2";
/// The main result, [N,2,H,W]: how far right and down each pixel of the first image moves, in pixels.
inline constexpr std::string_view kFlowResult = "flow";
/// Results of the updates before the last are called "flow.1", "flow.2", ... The last one is `flow`.
inline constexpr std::string_view kEarlierFlow = "flow.";

}  // namespace galley
