#include "libcore/data/codec.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace galley {
namespace {

/// Formats and their magic bytes at `offset`.
struct Magic {
  std::string_view format;
  size_t offset;
  std::string_view bytes;
};
using namespace std::string_view_literals;
constexpr Magic kMagics[] = {
    {"JPEG", 0, "\xff\xd8\xff"sv},
    {"PNG", 0, "\x89PNG\r\n\x1a\n"sv},
    {"BMP", 0, "BM"sv},
    {"GIF", 0, "GIF8"sv},
    {"WebP", 8, "WEBP"sv},
    {"TIFF", 0, "II*\0"sv},
    {"TIFF", 0, "MM\0*"sv},
    {"JPEG 2000", 4, "jP  "sv},
    {"AVIF", 4, "ftypavif"sv},
    {"HEIC", 4, "ftyphei"sv},
    {"JPEG XL", 0, "\xff\x0a"sv},
    {"PSD", 0, "8BPS"sv},
    {"ICO", 0, "\0\0\1\0"sv},
    {"PNM", 0, "P6"sv},
    {"PNM", 0, "P5"sv},
};

std::string_view format_of(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (const Magic& magic : kMagics)
    if (text.size() >= magic.offset && text.substr(magic.offset, magic.bytes.size()) == magic.bytes) return magic.format;
  return "";
}

}  // namespace

bool has_image_suffix(std::string_view file_name) {
  static constexpr std::array<std::string_view, 16> kSuffixes{"jpg", "jpeg", "png",  "bmp", "gif", "webp", "tif", "tiff",
                                                              "jp2", "avif", "heic", "jxl", "psd", "ico",  "ppm", "pgm"};
  const size_t dot = file_name.rfind('.');
  if (dot == std::string_view::npos || file_name.size() - dot > 6) return false;
  std::string suffix(file_name.substr(dot + 1));
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kSuffixes.begin(), kSuffixes.end(), suffix) != kSuffixes.end();
}

Image decode_image(std::span<const std::byte> file, ColorMode mode, std::string_view name, const DecodeLimits& limits,
                   Irregularity* irregularity) {
  const std::string_view format = format_of(file);
  if (irregularity != nullptr) *irregularity = {};
  Image image;
  if (format == "JPEG") {
    image = decode_jpeg(file, name, limits, irregularity);
  } else if (format == "PNG") {
    image = decode_png(file, name, limits);
  } else if (format == "BMP") {
    image = decode_bmp(file, name, limits);
  } else if (format == "PNM") {
    image = decode_pnm(file, name, limits);
  } else if (file.empty()) {
    throw BadSample("empty", name, "the file is empty");
  } else {
    throw BadSample("format", name,
                    cat(format.empty() ? "not an image" : cat("a ", format, " image"),
                        "; supported formats are JPEG, PNG, BMP, PPM and PGM: convert the file or remove it"));
  }
  const int64_t channels = mode == ColorMode::kRgb ? 3 : 1;
  return image.channels() == channels ? std::move(image) : image.with_channels(channels);
}

}  // namespace galley
