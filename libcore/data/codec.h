#pragma once
// Decodes image files: JPEG with libjpeg-turbo, PNG and BMP with stb_image, PPM and PGM. Damaged files are rejected: truncated files, JPEG
// warnings that affect pixels, wrong PNG checksums, sizes above the limits.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "libcore/data/image.h"
#include "libcore/data/sample.h"

namespace galley {

/// Channels of a decoded image: 3 or 1.
enum class ColorMode { kRgb, kGray };
inline constexpr std::string_view kColorModeNames[] = {"rgb", "gray"};

/// Limits on the size in a file's header. They are checked before any memory is allocated.
struct DecodeLimits {
  int64_t max_dimension = 16384;
  int64_t max_pixels = int64_t{1} << 26;
};

/// Decodes a JPEG, PNG, BMP, PPM or PGM file in memory to u8 [3,H,W] or [1,H,W]; transparency is dropped. Throws BadSample if the data is
/// damaged, too large or in another format; its message starts with `name` and names the format. A JPEG with extraneous bytes between its
/// parts, an unknown revision in its header, or complete data without an end marker decodes to the same pixels as a correct file.
/// `irregularity`, if not null, then describes the deviation; it is empty for a correct file.
Image decode_image(std::span<const std::byte> file, ColorMode mode, std::string_view name, const DecodeLimits& limits = {},
                   Irregularity* irregularity = nullptr);

/// Whether a file name has the suffix of an image format. Formats that cannot be decoded ("webp") count too, so that such files raise an
/// error instead of being skipped silently.
bool has_image_suffix(std::string_view file_name);

/// Decoders of one format each. The result has the file's own channels (1 or 3). For decode_image and tests.
Image decode_jpeg(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits, Irregularity* irregularity = nullptr);
Image decode_png(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits);
Image decode_bmp(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits);
Image decode_pnm(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits);  ///< PPM and PGM of 8 bits.

/// The stored values of a PNG with one value per pixel, u8 [1,H,W]: palette indices, or gray values of 1, 2, 4 or 8 bits without scaling.
/// Throws BadSample for damaged files and for other kinds of PNG.
Image decode_png_values(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits = {});

/// Red, green, blue.
using Color = std::array<uint8_t, 3>;
/// Encodes a palette PNG. `indices` is u8 [1,H,W], each value below the size of `palette` (at most 256 colors).
std::string encode_palette_png(const Image& indices, std::span<const Color> palette);

}  // namespace galley
