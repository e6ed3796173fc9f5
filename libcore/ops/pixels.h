#pragma once
// normalize_pixels: bytes of images become normalized numbers. A device takes batches as bytes, a quarter of the numbers in f32.

#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// Constants of normalize_pixels: one for all channels, or one for each of so many.
inline constexpr int64_t kMostPixelChannels = 4;

struct NormalizePixelsAttrs : OptionsOf<NormalizePixelsAttrs> {
  std::vector<double> mean{0}, std{1};  // one for all channels, or one for each
  bool scale = true;                    // divide by 255 first
  DType dtype = DType::kF32;            // f32, bf16 or f16
  void options(OptionVisitor& v) override;
};

const OpDef& normalize_pixels_op();

/// x u8 [N,C,...] -> floating [N,C,...]: (x / 255 - mean) / std, or (x - mean) / std without `scale`.
Value normalize_pixels(Value x, const NormalizePixelsAttrs& attrs = {});

OpTable pixel_ops();

/// The number of a byte in a channel: the f32 arithmetic of the host's pipeline (Normalize::table).
inline float normalized_pixel(const NormalizePixelsAttrs& attrs, int64_t channel, int byte) {
  const size_t at = attrs.mean.size() == 1 ? 0 : static_cast<size_t>(channel);
  const float x = attrs.scale ? static_cast<float>(byte) / 255.0f : static_cast<float>(byte);
  return (x - static_cast<float>(attrs.mean[at])) / static_cast<float>(attrs.std[at]);
}

}  // namespace galley
