#pragma once
// Resizing and affine sampling of images, with the numbers of torchvision's tensor path.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "libcore/data/image.h"

namespace galley {

enum class Interpolation { kNearest, kNearestExact, kBilinear, kBicubic };
inline constexpr std::string_view kInterpolationNames[] = {"nearest", "nearest_exact", "bilinear", "bicubic"};
/// Whose arithmetic an antialiased bicubic filter of u8 follows where it overshoots, at edges: Pillow (and torchvision's transforms.v2)
/// keeps 8 bits between the two passes, columns first, and cuts off there what passes 0 and 255; torchvision's first transforms of tensors
/// keep floats. They differ by up to 30 levels; all else is within one level.
enum class ResizeBackend { kPillow, kTensor };
inline constexpr std::string_view kResizeBackendNames[] = {"pillow", "tensor"};

/// A part of an image, in pixels; within its borders.
struct Region {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

struct ResizeTo {
  int64_t height = 0, width = 0;
  Interpolation interpolation = Interpolation::kBilinear;
  bool antialias = true;  ///< For bilinear and bicubic: the filter grows with the factor of reduction (as Pillow).
  ResizeBackend backend = ResizeBackend::kPillow;
};

/// Resizes a region (pixels outside of it are not looked at). u8 results are rounded to nearest even. bilinear and bicubic: separable
/// filters with half-pixel centres, normalised at the borders; bicubic has a = -0.5 with antialias, else -0.75 and repeated borders.
Image resize_region(const Image& image, const Region& region, const ResizeTo& to);
Image resize(const Image& image, const ResizeTo& to);

/// Pixels of `region`, which may reach over the borders: bytes of `fill` there.
Image crop(const Image& image, const Region& region, uint8_t fill = 0);

/// From output to input pixel, both measured from the image's centre: x' = m0 x + m1 y + m2, y' = m3 x + m4 y + m5.
using AffineMatrix = std::array<double, 6>;
/// Samples the image through the matrix, at the same size; nearest or bilinear. Outside is `fill` per channel (zeros where empty).
Image affine(const Image& image, const AffineMatrix& matrix, Interpolation interpolation, const std::vector<double>& fill);

/// Python's round(): halves go to the even neighbour.
int64_t round_half_even(double value);
/// A value to a pixel: u8 rounds half to even and saturates, f32 stays.
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
