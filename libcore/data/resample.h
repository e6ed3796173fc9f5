#pragma once
// Resizing and affine sampling of images. Results agree with torchvision's tensor path.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "libcore/data/image.h"

namespace galley {

/// How pixel values are interpolated. kNearestExact samples at pixel centers.
enum class Interpolation { kNearest, kNearestExact, kBilinear, kBicubic };
inline constexpr std::string_view kInterpolationNames[] = {"nearest", "nearest_exact", "bilinear", "bicubic"};
/// Which library's arithmetic antialiased bicubic resizing of u8 images follows. kPillow (and torchvision.transforms.v2): horizontal pass
/// first, rounded and clamped to 8 bits between the two passes. kTensor (torchvision's first tensor transforms): floats between the passes.
/// The two differ by up to 30 levels where the filter overshoots at edges; otherwise by at most one level.
enum class ResizeBackend { kPillow, kTensor };
inline constexpr std::string_view kResizeBackendNames[] = {"pillow", "tensor"};

/// A rectangle of an image, in pixels, within its borders.
struct Region {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

/// Size and method of a resize.
struct ResizeTo {
  int64_t height = 0, width = 0;
  Interpolation interpolation = Interpolation::kBilinear;
  bool antialias = true;  ///< Bilinear and bicubic: the filter widens with the reduction factor (as Pillow).
  ResizeBackend backend = ResizeBackend::kPillow;
};

/// Resizes a region of an image; pixels outside the region are not read. u8 results are rounded half to even. bilinear and bicubic are
/// separable filters with half-pixel centers, normalized at the borders. bicubic uses a = -0.5 with antialias, else a = -0.75 and repeated
/// border pixels.
Image resize_region(const Image& image, const Region& region, const ResizeTo& to);
/// Resizes the whole image.
Image resize(const Image& image, const ResizeTo& to);

/// Copies `region`, which may extend beyond the image; bytes outside the image are `fill`.
Image crop(const Image& image, const Region& region, uint8_t fill = 0);

/// Maps output to input pixels, both measured from the image's center: x' = m0 x + m1 y + m2, y' = m3 x + m4 y + m5.
using AffineMatrix = std::array<double, 6>;
/// Samples the image through the matrix; the size stays. `interpolation` is nearest or bilinear. Pixels outside the image are `fill`, one
/// value per channel (zero if empty).
Image affine(const Image& image, const AffineMatrix& matrix, Interpolation interpolation, const std::vector<double>& fill);

/// Rounds half to even, as Python's round().
int64_t round_half_even(double value);
/// Converts a value to a pixel: u8 rounds half to even and saturates, f32 keeps the value.
template <class T>
T to_pixel(float value);
template <>
inline float to_pixel<float>(float value) {
  return value;
}
template <>
inline uint8_t to_pixel<uint8_t>(float value) {
  // Adding 2^23 rounds half to even in the default rounding mode.
  const float clamped = value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value;
  const float shifted = clamped + 8388608.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, 4);
  return static_cast<uint8_t>(bits);
}

}  // namespace galley
