// PNG and BMP decoding with stb_image. stb_image accepts damaged files, so sizes and checksums are verified here first.
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "libcore/data/codec.h"
#include "libcore/data/sample.h"

namespace {

/// Bytes that the decoder may still allocate for the current image. A stream that inflates to more than its header declares fails with an
/// error instead of exhausting the machine's memory.
thread_local int64_t stb_budget = 0;

void* budget_malloc(size_t bytes) {
  if (static_cast<int64_t>(bytes) < 0 || static_cast<int64_t>(bytes) > stb_budget) return nullptr;
  stb_budget -= static_cast<int64_t>(bytes);
  return std::malloc(bytes);
}

void* budget_realloc(void* old, size_t old_bytes, size_t bytes) {
  stb_budget += static_cast<int64_t>(old_bytes);
  if (static_cast<int64_t>(bytes) < 0 || static_cast<int64_t>(bytes) > stb_budget) return nullptr;
  stb_budget -= static_cast<int64_t>(bytes);
  return std::realloc(old, bytes);
}

}  // namespace

#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_MAX_DIMENSIONS 16384
#define STBI_MALLOC(bytes) budget_malloc(bytes)
#define STBI_REALLOC_SIZED(pointer, old_bytes, bytes) budget_realloc(pointer, old_bytes, bytes)
#define STBI_FREE(pointer) std::free(pointer)
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif
#include <stb/stb_image.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace galley {
namespace {

uint32_t big_endian(const std::byte* at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = (value << 8) | std::to_integer<uint32_t>(at[i]);
  return value;
}

template <class T>
T little_endian(std::span<const std::byte> bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = (value << 8) | std::to_integer<uint64_t>(bytes[at + i]);
  return static_cast<T>(value);
}

struct FreeStb {
  void operator()(stbi_uc* pixels) const { stbi_image_free(pixels); }
};

void check_size(int64_t width, int64_t height, std::string_view format, std::string_view name, const DecodeLimits& limits) {
  if (width < 1 || height < 1) throw BadSample("corrupt", name, cat(format, " of ", width, " x ", height, " pixels"));
  if (width > limits.max_dimension || height > limits.max_dimension || width * height > limits.max_pixels)
    throw BadSample("too large", name,
                    cat(format, " of ", width, " x ", height, " pixels; the limit is ", limits.max_dimension, " per side and ",
                        limits.max_pixels, " in total"));
}

/// Decodes a file whose structure has been checked. Drops transparency.
Image decode_by_stb(std::span<const std::byte> file, int64_t width, int64_t height, std::string_view format, std::string_view name) {
  // The compressed copy, the inflated rows of 16-bit RGBA, the image, and its 8-bit conversion; each may double while it grows.
  stb_budget = 4 * static_cast<int64_t>(file.size()) + 64 * width * height + 16 * height + (int64_t{1} << 20);
  int x = 0, y = 0, components = 0;
  const std::unique_ptr<stbi_uc, FreeStb> pixels(
      stbi_load_from_memory(reinterpret_cast<const stbi_uc*>(file.data()), static_cast<int>(file.size()), &x, &y, &components, 0));
  if (pixels == nullptr) throw BadSample("corrupt", name, cat("damaged ", format, ": ", stbi_failure_reason()));
  if (x != width || y != height) throw BadSample("corrupt", name, cat(format, " whose header and data differ in size"));
  GALLEY_ASSERT(components >= 1 && components <= 4);
  const int64_t channels = components >= 3 ? 3 : 1;
  Image image(DType::kU8, height, width, channels);
  uint8_t* to = image.as<uint8_t>();
  for (int64_t i = 0; i < image.area(); ++i)
    for (int64_t c = 0; c < channels; ++c) to[i * channels + c] = pixels.get()[i * components + c];
  return image;
}

}  // namespace

Image decode_png(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits) {
  const auto cut = [&] { throw BadSample("truncated", name, cat("PNG without end chunk, ", file.size(), " bytes")); };
  constexpr size_t kSignature = 8, kChunkFrame = 12;
  int64_t width = 0, height = 0;
  size_t at = kSignature;
  for (bool first = true;; first = false) {
    if (file.size() < at + kChunkFrame) cut();
    const uint32_t length = big_endian(&file[at]);
    if (length > file.size() - at - kChunkFrame) cut();
    const std::string_view type(reinterpret_cast<const char*>(&file[at + 4]), 4);
    const uint32_t stored = big_endian(&file[at + 8 + length]);
    const auto computed = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(&file[at + 4]), length + 4));
    if (stored != computed) throw BadSample("checksum", name, cat("PNG chunk at byte ", at, " does not match its checksum"));
    if (first) {
      if (type != "IHDR" || length != 13) throw BadSample("corrupt", name, "PNG does not start with a valid IHDR chunk");
      width = big_endian(&file[at + 8]);
      height = big_endian(&file[at + 12]);
      check_size(width, height, "PNG", name, limits);
    }
    at += kChunkFrame + length;
    if (type == "IEND") break;
  }
  return decode_by_stb(file.subspan(0, at), width, height, "PNG", name);
}

Image decode_png_values(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits) {
  constexpr size_t kHeaderEnd = 8 + 12 + 13, kBitDepth = 24, kColorType = 25;
  constexpr auto kGray = std::byte{0}, kPalette = std::byte{3};
  const std::string_view signature("\x89PNG\r\n\x1a\n", 8);
  if (file.size() < kHeaderEnd || std::string_view(reinterpret_cast<const char*>(file.data()), 8) != signature)
    throw BadSample("format", name, "not a PNG");
  const int bits = std::to_integer<int>(file[kBitDepth]);
  if ((file[kColorType] != kGray && file[kColorType] != kPalette) || bits > 8)
    throw BadSample("format", name, "class indices must be a PNG with a palette or gray values of at most 8 bits, not colors or 16 bits");
  // Removing the palette and setting the color type to gray makes stb_image return the indices.
  std::vector<std::byte> gray(file.begin(), file.begin() + kHeaderEnd);
  gray[kColorType] = kGray;
  const auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(&gray[12]), 17));
  for (size_t i = 0; i < 4; ++i) gray[kHeaderEnd - 4 + i] = static_cast<std::byte>(crc >> (24 - 8 * i));
  const Image checked = decode_png(file, name, limits);  // checks sizes, checksums and that all pixels are present
  for (size_t at = kHeaderEnd; at + 12 <= file.size();) {
    const size_t length = 12 + big_endian(&file[at]);
    const std::string_view type(reinterpret_cast<const char*>(&file[at + 4]), 4);
    if (type == "IDAT" || type == "IEND")
      gray.insert(gray.end(), file.begin() + static_cast<int64_t>(at), file.begin() + static_cast<int64_t>(at + length));
    if (type == "IEND") break;
    at += length;
  }
  Image values = decode_by_stb(gray, checked.width(), checked.height(), "PNG", name);
  GALLEY_ASSERT(values.channels() == 1);
  const int scale = 255 / ((1 << bits) - 1);  // stb_image stretches values of fewer than 8 bits to 0..255
  for (int64_t i = 0; i < values.area(); ++i) values.as<uint8_t>()[i] = static_cast<uint8_t>(values.as<uint8_t>()[i] / scale);
  return values;
}

std::string encode_palette_png(const Image& indices, std::span<const Color> palette) {
  GALLEY_ASSERT(indices.dtype() == DType::kU8 && indices.channels() == 1 && !palette.empty() && palette.size() <= 256, indices.str());
  std::string png("\x89PNG\r\n\x1a\n", 8);
  const auto number = [](uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
    return bytes;
  };
  const auto chunk = [&](const std::string& type, const std::string& data) {
    const std::string body = type + data;
    png += number(static_cast<uint32_t>(data.size())) + body +
           number(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()))));
  };
  chunk("IHDR", number(static_cast<uint32_t>(indices.width())) + number(static_cast<uint32_t>(indices.height())) +
                    std::string("\x08\x03\0\0\0", 5));
  std::string colors, rows;
  for (const Color& color : palette) colors.append(color.begin(), color.end());
  for (int64_t y = 0; y < indices.height(); ++y) {
    rows += '\0';  // filter type: none
    rows.append(reinterpret_cast<const char*>(indices.row<uint8_t>(y)), static_cast<size_t>(indices.width()));
  }
  uLongf size = compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  GALLEY_ASSERT(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
                         static_cast<uLong>(rows.size())) == Z_OK);
  packed.resize(size);
  chunk("PLTE", colors);
  chunk("IDAT", packed);
  chunk("IEND", "");
  return png;
}

Image decode_bmp(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits) {
  const auto cut = [&] { throw BadSample("truncated", name, cat("BMP is incomplete: ", file.size(), " bytes")); };
  if (file.size() < 26) cut();
  const auto pixels_at = little_endian<uint32_t>(file, 10);
  const auto header = little_endian<uint32_t>(file, 14);
  const bool old = header == 12;
  if (!old && (header < 40 || header > 124)) throw BadSample("corrupt", name, cat("BMP with an unknown header of ", header, " bytes"));
  if (file.size() < 14 + header) cut();
  const int64_t width = old ? little_endian<uint16_t>(file, 18) : little_endian<int32_t>(file, 18);
  const int64_t signed_height = old ? little_endian<uint16_t>(file, 20) : little_endian<int32_t>(file, 22);
  const int64_t height = signed_height < 0 ? -signed_height : signed_height;  // a negative height means that rows start at the top
  const int64_t bits = little_endian<uint16_t>(file, old ? 24 : 28);
  const auto compression = old ? 0u : little_endian<uint32_t>(file, 30);
  check_size(width, height, "BMP", name, limits);
  if (compression != 0 && compression != 3)
    throw BadSample("format", name, "compressed BMP is not supported; save it uncompressed or as PNG");
  if (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32)
    throw BadSample("corrupt", name, cat("BMP with ", bits, " bits per pixel; expected 1, 4, 8, 16, 24 or 32"));
  const int64_t row_bytes = (width * bits + 31) / 32 * 4;
  const auto size = static_cast<int64_t>(file.size());
  if (pixels_at < 14 + header || int64_t{pixels_at} > size || row_bytes * height > size - int64_t{pixels_at}) cut();
  if (little_endian<uint32_t>(file, 2) > file.size()) cut();
  return decode_by_stb(file, width, height, "BMP", name);
}

}  // namespace galley
