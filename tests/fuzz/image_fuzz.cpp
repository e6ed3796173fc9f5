// Decoder of image files: any bytes give an Error (BadSample) or an image within the limits.

#include <cstdint>
#include <cstdlib>

#include "libcore/base/error.h"
#include "libcore/data/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const galley::DecodeLimits limits{.max_dimension = 2048, .max_pixels = 1 << 20};
  try {
    const galley::Image image =
        galley::decode_image({reinterpret_cast<const std::byte*>(data), size}, galley::ColorMode::kRgb, "fuzz", limits);
    static_cast<void>(image);
  } catch (const galley::Error&) {
  }
  return 0;
}
