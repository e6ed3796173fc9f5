// PPM and PGM: a header in text, then bytes. FlyingChairs and other data of optical flow have such images.
#include <cctype>
#include <cstring>

#include "libcore/data/codec.h"

namespace galley {

Image decode_pnm(std::span<const std::byte> file, std::string_view name, const DecodeLimits& limits) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto corrupt = [&](std::string_view why) { throw BadSample("corrupt", name, cat("PNM ", why)); };
  if (text.size() < 2 || text[0] != 'P' || (text[1] != '5' && text[1] != '6')) corrupt("without the letters P5 or P6");
  size_t at = 2;
  const auto space = [&] { return at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0; };
  const auto next_number = [&] {
    while (space() || (at < text.size() && text[at] == '#')) {
      if (text[at] == '#') {
        at = std::min(text.find('\n', at), text.size());
      } else {
        ++at;
      }
    }
    int64_t value = 0;
    int digits = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at, ++digits) {
      if (digits == 9) corrupt("with a number of more than 9 digits in its header");
      value = 10 * value + (text[at] - '0');
    }
    if (digits == 0) corrupt("whose header does not give width, height and largest value");
    return value;
  };
  const int64_t width = next_number(), height = next_number(), largest = next_number();
  if (!space()) corrupt("without a space after its header");
  ++at;
  if (width < 1 || height < 1 || width > limits.max_dimension || height > limits.max_dimension || width * height > limits.max_pixels)
    throw BadSample(
        "size", name,
        cat("PNM of ", width, " x ", height, " pixels; allowed are ", limits.max_dimension, " a side and ", limits.max_pixels, " in all"));
  if (largest != 255) throw BadSample("format", name, cat("PNM with values up to ", largest, " is not supported; save it with 8 bits"));
  Image image(DType::kU8, height, width, text[1] == '6' ? 3 : 1);
  if (static_cast<int64_t>(text.size() - at) < image.bytes())
    throw BadSample("truncated", name,
                    cat("PNM is incomplete: ", text.size(), " bytes, but its header promises ", static_cast<int64_t>(at) + image.bytes()));
  std::memcpy(image.data(), file.data() + at, static_cast<size_t>(image.bytes()));
  return image;
}

}  // namespace galley
