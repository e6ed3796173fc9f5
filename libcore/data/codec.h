#pragma once
// Image files to pixels: JPEG by libjpeg-turbo, PNG and BMP by stb_image after checks of our own. Damaged data is refused:
// truncated files, JPEG warnings that concern pixels, PNG checksums, sizes beyond the limits.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "libcore/data/image.h"
#include "libcore/data/sample.h"

namespace galley {

enum class ColorMode { kRgb, kGray };
inline constexpr std::string_view kColorModeNames[] = {"rgb", "gray"};

/// Checked against the header, before anything is allocated.
struct DecodeLimits {
  int64_t max_dimension = 16384;
  int64_t max_pixels = int64_t{1} << 26;
};

/// Decodes a JPEG, PNG or BMP file in memory to u8 [3,H,W] or [1,H,W]; transparency is dropped. `name` is for the message of
/// the BadSample that is thrown where the data is damaged, too large or of another format (which is named).
/// A JPEG with extraneous bytes between its parts, an unknown revision in its header, or no end marker after complete data has the pixels
/// of the correct file: it is decoded, and `irregularity` (where given) says so; of other files it becomes empty.
Image decode_image(std::span<const std::byte> file, ColorMode mode, std::string_view name, const DecodeLimits& limits = {},
                   Irregularity* irregularity = nullptr);

/// Whether a file name ends like an image: "jpg", "png", ... or of a kind that we know but cannot decode ("webp"), so that such
/// files are an error and not left out in silence.
bool has_image_suffix(std::string_view file_name);

/// Decoders of one format each; native channels (1 or 3). For decode_image and tests.
Image decode_jpeg(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits, Irregularity* irregularity = nullptr);
Image decode_png(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits);
Image decode_bmp(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits);

/// The stored values of a PNG of one value a pixel, u8 [1,H,W]: indices of a palette, or grey values as they are (of 1, 2, 4 or 8 bits, not
/// scaled). Throws BadSample for PNGs of other kinds, as for damaged ones.
Image decode_png_values(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits = {});

using Color = std::array<uint8_t, 3>;
/// The bytes of a PNG whose pixels `indices` (u8 [1,H,W], each below the palette's size) stand for colours of `palette` (at most 256).
std::string encode_palette_png(const Image& indices, std::span<const Color> palette);

}  // namespace galley
