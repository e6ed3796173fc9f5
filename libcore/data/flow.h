#pragma once
// Optical flow as arrays, as .flo files (Baker et al. 2011, "A Database and Evaluation Methodology for Optical Flow") and as colors.

#include <span>
#include <string>
#include <string_view>

#include "libcore/data/image.h"
#include "libcore/data/pixel_grid.h"

namespace galley {

/// Components of a .flo file that exceed this stand for an unknown flow.
inline constexpr float kUnknownFlow = 1e9f;

/// The flow of a .flo file: f32 [3,H,W] with 1 where it is known, else 0 (Flow). Throws BadSample if the file is not one, or has another
/// size than its header says; its message starts with `name`.
Image parse_flo(std::span<const std::byte> file, std::string_view name);
/// A .flo file of f32 [3,H,W].
std::string encode_flo(const Image& flow);

/// The flow, f32 [3,H,W], on another grid of its pixels: bilinear between known pixels, otherwise the nearest; unknown outside.
Image moved_flow(const Image& flow, const PixelGrid& grid);

/// A color for each direction, paler for smaller flows, white for none: the wheel of Baker et al., as torchvision's flow_to_image. The
/// largest known flow has full colors. Unknown pixels are black. u8 [3,H,W].
Image flow_colors(const Image& flow);

}  // namespace galley
