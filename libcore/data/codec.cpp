#include "libcore/data/codec.h"

#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <memory>

#include "libcore/data/sample.h"

namespace galley {
namespace {

/// Formats by their first bytes; `offset` is where the magic stands.
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

struct CloseTurbo {
  void operator()(void* handle) const { tjDestroy(handle); }
};

tjhandle turbo_handle() {
  thread_local const std::unique_ptr<void, CloseTurbo> handle(tjInitDecompress());
  if (handle == nullptr) fail(ErrorCode::kResource, "libjpeg-turbo could not make a decoder");
  return handle.get();
}

/// Ink on paper to light: Adobe writes CMYK inverted, and nobody else writes CMYK JPEGs.
Image rgb_from_inverted_cmyk(const std::vector<unsigned char>& cmyk, int64_t height, int64_t width) {
  Image image(DType::kU8, height, width, 3);
  uint8_t* rgb = image.as<uint8_t>();
  for (int64_t i = 0; i < image.area(); ++i) {
    const unsigned char* pixel = &cmyk[static_cast<size_t>(4 * i)];
    const int key = pixel[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - pixel[c]) * key + 128;
      rgb[3 * i + c] = static_cast<uint8_t>(std::max(0, key - (((product >> 8) + product) >> 8)));
    }
  }
  return image;
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

Image decode_jpeg(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits) {
  const tjhandle handle = turbo_handle();
  const auto* data = reinterpret_cast<const unsigned char*>(file.data());
  const auto size = static_cast<unsigned long>(file.size());
  int width = 0, height = 0, subsampling = 0, colorspace = 0;
  const auto refuse = [&](const char* what) {
    const std::string reason = tjGetErrorStr2(handle);
    const bool cut = reason.find("remature end") != std::string::npos || reason.find("EOF") != std::string::npos;
    throw BadSample(cut ? "truncated" : "corrupt", cat(name, ": damaged JPEG (", what, "): ", reason));
  };
  if (tjDecompressHeader3(handle, data, size, &width, &height, &subsampling, &colorspace) != 0) refuse("header");
  if (width < 1 || height < 1) throw BadSample("truncated", cat(name, ": damaged JPEG: its header names no size"));
  if (width > limits.max_dimension || height > limits.max_dimension || int64_t{width} * height > limits.max_pixels)
    throw BadSample("too large", cat(name, ": JPEG of ", width, " x ", height, " pixels; the limit is ", limits.max_dimension,
                                     " a side and ", limits.max_pixels, " in all"));
  // A warning means that the decoder invented pixels; more than 500 scans is a decompression bomb.
  constexpr int kFlags = TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  if (colorspace == TJCS_CMYK || colorspace == TJCS_YCCK) {
    std::vector<unsigned char> cmyk(static_cast<size_t>(width) * static_cast<size_t>(height) * 4);
    if (tjDecompress2(handle, data, size, cmyk.data(), width, 0, height, TJPF_CMYK, kFlags) != 0) refuse("pixels");
    return rgb_from_inverted_cmyk(cmyk, height, width);
  }
  const bool gray = colorspace == TJCS_GRAY;
  Image image(DType::kU8, height, width, gray ? 1 : 3);
  if (tjDecompress2(handle, data, size, image.as<uint8_t>(), width, 0, height, gray ? TJPF_GRAY : TJPF_RGB, kFlags) != 0) refuse("pixels");
  return image;
}

Image decode_image(std::span<const std::byte> file, ColorMode mode, std::string_view name, const DecodeLimits& limits) {
  const std::string_view format = format_of(file);
  Image image;
  if (format == "JPEG") {
    image = decode_jpeg(file, name, limits);
  } else if (format == "PNG") {
    image = decode_png(file, name, limits);
  } else if (format == "BMP") {
    image = decode_bmp(file, name, limits);
  } else if (file.empty()) {
    throw BadSample("empty", cat(name, ": the file is empty"));
  } else {
    throw BadSample("format", cat(name, ": ", format.empty() ? "not an image" : cat("a ", format, " image"),
                                  "; JPEG, PNG and BMP can be read: convert it, or leave it out"));
  }
  const int64_t channels = mode == ColorMode::kRgb ? 3 : 1;
  return image.channels() == channels ? std::move(image) : image.with_channels(channels);
}

}  // namespace galley
