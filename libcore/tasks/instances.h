#pragma once
// Masks and key points of detections in the original image.

#include <array>
#include <vector>

#include "libcore/data/draw.h"
#include "libcore/data/objects.h"
#include "libcore/data/run_lengths.h"

namespace galley {

/// The pixels of an image whose probability exceeds 0.5, where `cells` [side,side] are probabilities in cells of a box (left, top, right,
/// bottom in pixels). torchvision's rule: a border of zeros is added, the box grows with it, its corners are truncated to pixels, both
/// included, and the cells are resized to it by bilinear interpolation.
RunLengths mask_in_image(const float* cells, int64_t side, const std::array<double, 4>& box, int64_t height, int64_t width);

/// COCO's key points of persons for 17 points; otherwise points without names and lines.
KeypointNames usual_keypoints(size_t count);

/// Tints the pixels of a mask on a u8 image with 3 channels of its size.
void draw_mask(Image& image, const RunLengths& mask, Color color);
/// Draws points x, y, and the lines that connect them. `shown`: of each point whether it is drawn; a line needs both of its ends.
void draw_keypoints(Image& image, const std::vector<double>& points, const std::vector<bool>& shown, const KeypointNames& names,
                    Color color, int64_t thickness);

}  // namespace galley
