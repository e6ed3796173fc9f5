#include "tools/predict/draw.h"

#include <algorithm>
#include <memory>

#include "libcore/base/file.h"
#include "libcore/data/draw.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

namespace galley::tools {
namespace {

constexpr int64_t kLetters = 18, kLineHeight = 24, kMargin = 4;
constexpr int64_t kLeastWidth = 320;  // of what is drawn: room for a label

}  // namespace

Image draw_labels(const Image& image, const std::vector<std::string>& lines) {
  const int64_t factor = std::max<int64_t>(1, (kLeastWidth + image.width() - 1) / image.width());
  const int64_t strip = static_cast<int64_t>(lines.size()) * kLineHeight + kMargin;
  Image out(DType::kU8, image.height() * factor + strip, image.width() * factor, 3);
  std::fill_n(out.as<uint8_t>(), strip * out.width() * 3, uint8_t{32});
  for (int64_t y = strip; y < out.height(); ++y) {
    const uint8_t* from = image.row<uint8_t>((y - strip) / factor);
    for (int64_t x = 0; x < out.width(); ++x) {
      for (int64_t c = 0; c < 3; ++c)
        out.row<uint8_t>(y)[x * 3 + c] = from[x / factor * image.channels() + (image.channels() == 1 ? 0 : c)];
    }
  }
  for (size_t i = 0; i < lines.size(); ++i)
    draw_text(out, kMargin, kMargin + static_cast<int64_t>(i) * kLineHeight, lines[i], {255, 255, 255}, kLetters);
  return out;
}

void write_png(const std::string& path, const Image& image) {
  int length = 0;
  const std::unique_ptr<unsigned char, void (*)(void*)> png(
      stbi_write_png_to_mem(image.as<uint8_t>(), static_cast<int>(image.width() * image.channels()), static_cast<int>(image.width()),
                            static_cast<int>(image.height()), static_cast<int>(image.channels()), &length),
      std::free);
  GALLEY_ASSERT(png != nullptr);
  write_file(path, std::string_view(reinterpret_cast<const char*>(png.get()), static_cast<size_t>(length)));
}

void write_jpeg(const std::string& path, const Image& image) {
  constexpr int kQuality = 95;
  std::string file;
  const auto append = [](void* to, void* data, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  const int done = stbi_write_jpg_to_func(append, &file, static_cast<int>(image.width()), static_cast<int>(image.height()),
                                          static_cast<int>(image.channels()), image.as<uint8_t>(), kQuality);
  GALLEY_ASSERT(done != 0);
  write_file(path, file);
}

}  // namespace galley::tools
