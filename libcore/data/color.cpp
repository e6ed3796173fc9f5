// Transforms that change pixel values. The arithmetic, including truncation, is that of torchvision's tensor path.
#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/data/transform.h"

namespace galley {
namespace {

template <class T>
constexpr float kMax = 1.0f;
template <>
constexpr float kMax<uint8_t> = 255.0f;

/// Clamps to the range of the pixel type; u8 truncates.
template <class T>
T clamp_pixel(float value) {
  return static_cast<T>(std::clamp(value, 0.0f, kMax<T>));
}

/// Luma with the Rec. 601 weights as torchvision rounds them; u8 truncates.
template <class T>
T luma(const T* rgb) {
  return static_cast<T>(0.2989f * static_cast<float>(rgb[0]) + 0.587f * static_cast<float>(rgb[1]) + 0.114f * static_cast<float>(rgb[2]));
}

template <class T>
T blend(T a, float b, double factor) {
  return clamp_pixel<T>(static_cast<float>(factor) * static_cast<float>(a) + static_cast<float>(1.0 - factor) * b);
}

void check_colors(const Image& image, std::string_view item) {
  GALLEY_CHECK(image.channels() == 1 || image.channels() == 3, "[", item, "] needs an image of 1 or 3 channels, not ", image.str());
}

/// Maps the values of one channel of a u8 image through a table.
void map_pixels(Image& image, int64_t channel, const std::array<uint8_t, 256>& table) {
  uint8_t* pixels = image.as<uint8_t>();
  for (int64_t i = channel; i < image.values(); i += image.channels()) pixels[i] = table[pixels[i]];
}

template <class Function>
void map_all(Image& image, Function function) {
  std::array<uint8_t, 256> table{};
  for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = function(v);
  uint8_t* pixels = image.as<uint8_t>();
  for (int64_t i = 0; i < image.values(); ++i) pixels[i] = table[pixels[i]];
}

/// Rotates the hue of a color in 0..1 by `turn` (hexcone model; Smith, "Color gamut transform pairs", 1978).
void turn_hue(float* rgb, float turn) {
  const float r = rgb[0], g = rgb[1], b = rgb[2];
  const float high = std::max({r, g, b}), low = std::min({r, g, b}), range = high - low;
  const bool gray = high == low;
  const float saturation = range / (gray ? 1.0f : high);
  const float divisor = gray ? 1.0f : range;
  const float rc = (high - r) / divisor, gc = (high - g) / divisor, bc = (high - b) / divisor;
  float hue = high == r ? bc - gc : high == g ? 2.0f + rc - bc : 4.0f + gc - rc;
  hue = std::fmod(hue / 6.0f + 1.0f, 1.0f);
  hue += turn;
  hue -= std::floor(hue);
  const float sector = std::floor(hue * 6.0f);
  const float part = hue * 6.0f - sector;
  const auto unit = [](float v) { return std::clamp(v, 0.0f, 1.0f); };
  const float p = unit(high * (1.0f - saturation)), q = unit(high * (1.0f - saturation * part)),
              t = unit(high * (1.0f - saturation * (1.0f - part)));
  const std::array<std::array<float, 3>, 6> colors{{{high, t, p}, {q, high, p}, {p, high, t}, {p, q, high}, {t, p, high}, {high, p, q}}};
  const auto& color = colors[static_cast<size_t>(static_cast<int>(sector) % 6)];
  std::copy(color.begin(), color.end(), rgb);
}

/// The range of a color_jitter option. Returns false if the range contains only the neutral value.
bool jitter_range(const std::vector<double>& value, double center, double& low, double& high) {
  low = value.size() == 2 ? value[0] : center - value[0];
  high = value.size() == 2 ? value[1] : center + value[0];
  if (value.size() == 1 && center == 1.0) low = std::max(low, 0.0);
  return low != center || high != center;
}

}  // namespace

Image to_grayscale(const Image& image, int64_t num_output_channels) {
  check_colors(image, "grayscale");
  Image result(image.dtype(), image.height(), image.width(), num_output_channels);
  with_pixel_type(image, [&]<class T>(T) {
    const T* from = image.as<T>();
    T* to = result.as<T>();
    for (int64_t i = 0; i < image.area(); ++i, from += image.channels()) {
      const T gray = image.channels() == 3 ? luma(from) : *from;
      to = std::fill_n(to, num_output_channels, gray);
    }
  });
  return result;
}

void adjust_brightness(Image& image, double factor) {
  check_colors(image, "brightness");
  with_pixel_type(image, [&]<class T>(T) {
    T* pixels = image.as<T>();
    for (int64_t i = 0; i < image.values(); ++i) pixels[i] = blend(pixels[i], 0.0f, factor);
  });
}

void adjust_contrast(Image& image, double factor) {
  check_colors(image, "contrast");
  with_pixel_type(image, [&]<class T>(T) {
    T* pixels = image.as<T>();
    double sum = 0;
    for (int64_t i = 0; i < image.area(); ++i) sum += static_cast<double>(image.channels() == 3 ? luma(pixels + 3 * i) : pixels[i]);
    const auto mean = static_cast<float>(sum / static_cast<double>(image.area()));
    for (int64_t i = 0; i < image.values(); ++i) pixels[i] = blend(pixels[i], mean, factor);
  });
}

void adjust_saturation(Image& image, double factor) {
  check_colors(image, "saturation");
  if (image.channels() == 1) return;
  with_pixel_type(image, [&]<class T>(T) {
    T* pixel = image.as<T>();
    for (int64_t i = 0; i < image.area(); ++i, pixel += 3) {
      const auto gray = static_cast<float>(luma(pixel));
      for (int c = 0; c < 3; ++c) pixel[c] = blend(pixel[c], gray, factor);
    }
  });
}

void adjust_hue(Image& image, double factor) {
  check_colors(image, "hue");
  if (image.channels() == 1) return;
  const DType dtype = image.dtype();
  Image floats = image.to(DType::kF32, true);
  float* rgb = floats.as<float>();
  for (int64_t i = 0; i < image.area(); ++i) turn_hue(rgb + 3 * i, static_cast<float>(factor));
  image = floats.to(dtype, true);
}

void adjust_sharpness(Image& image, double factor) {
  check_colors(image, "sharpness");
  if (image.height() <= 2 || image.width() <= 2) return;
  const Image original = image;
  const int64_t channels = image.channels(), line = image.width() * channels;
  with_pixel_type(image, [&]<class T>(T) {
    // The blurred image is a 3x3 filter of ones with 5 in the center, divided by 13. Border pixels are not blurred, but still blended with
    // themselves: the truncation of u8 can lower them by one level, as in torchvision.
    const auto mixed = [&](T own, float smooth) { return blend(own, smooth, factor); };
    for (int64_t y = 0; y < image.height(); ++y) {
      const T* middle = original.row<T>(y);
      const T *above = middle - line, *below = middle + line;
      T* out = image.row<T>(y);
      const bool inner = y > 0 && y + 1 < image.height();
      for (int64_t x = 0; x < line; ++x) {
        if (!inner || x < channels || x >= line - channels) {
          out[x] = mixed(middle[x], static_cast<float>(middle[x]));
          continue;
        }
        float sum =
            5.0f * static_cast<float>(middle[x]) + static_cast<float>(middle[x - channels]) + static_cast<float>(middle[x + channels]);
        for (const int64_t dx : {-channels, int64_t{0}, channels})
          sum += static_cast<float>(above[x + dx]) + static_cast<float>(below[x + dx]);
        out[x] = mixed(middle[x], static_cast<float>(to_pixel<T>(sum / 13.0f)));
      }
    }
  });
}

void posterize(Image& image, int64_t bits) {
  const int mask = -(1 << (8 - std::clamp<int64_t>(bits, 0, 8)));
  map_all(image, [&](int v) { return static_cast<uint8_t>(v & mask); });
}

void solarize(Image& image, double threshold) {
  map_all(image, [&](int v) { return static_cast<uint8_t>(v >= threshold ? 255 - v : v); });
}

void invert(Image& image) {
  map_all(image, [](int v) { return static_cast<uint8_t>(255 - v); });
}

void autocontrast(Image& image) {
  check_colors(image, "autocontrast");
  const uint8_t* pixels = image.as<uint8_t>();
  for (int64_t c = 0; c < image.channels(); ++c) {
    uint8_t low = 255, high = 0;
    for (int64_t i = c; i < image.values(); i += image.channels()) {
      low = std::min(low, pixels[i]);
      high = std::max(high, pixels[i]);
    }
    if (low == high) continue;
    const float scale = 255.0f / static_cast<float>(high - low);
    std::array<uint8_t, 256> table{};
    for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = clamp_pixel<uint8_t>(static_cast<float>(v - low) * scale);
    map_pixels(image, c, table);
  }
}

void equalize(Image& image) {
  check_colors(image, "equalize");
  const uint8_t* pixels = image.as<uint8_t>();
  for (int64_t c = 0; c < image.channels(); ++c) {
    std::array<int64_t, 256> histogram{};
    for (int64_t i = c; i < image.values(); i += image.channels()) ++histogram[pixels[i]];
    const auto last = std::find_if(histogram.rbegin(), histogram.rend(), [](int64_t count) { return count != 0; });
    const int64_t step = (image.area() - *last) / 255;
    if (step == 0) continue;
    std::array<uint8_t, 256> table{};
    int64_t below = 0;  // number of pixels darker than v
    for (size_t v = 0; v < 256; ++v) {
      table[v] = v == 0 ? uint8_t{0} : static_cast<uint8_t>(std::min<int64_t>(255, (below + step / 2) / step));
      below += histogram[v];
    }
    map_pixels(image, c, table);
  }
}

void ColorJitter::apply(Image& image, RandomStream& random) const {
  std::array<int, 4> order{0, 1, 2, 3};
  for (size_t i = 3; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  const std::array<const std::vector<double>*, 4> options{&brightness, &contrast, &saturation, &hue};
  constexpr std::array<void (*)(Image&, double), 4> kAdjust{adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue};
  std::array<double, 4> factors{};
  for (size_t i = 0; i < 4; ++i) {
    double low = 0, high = 0;
    jitter_range(*options[i], i == 3 ? 0.0 : 1.0, low, high);
    factors[i] = random.uniform(low, high);
  }
  for (const int i : order) {
    const auto at = static_cast<size_t>(i);
    double low = 0, high = 0;
    if (jitter_range(*options[at], i == 3 ? 0.0 : 1.0, low, high)) kAdjust[at](image, factors[at]);
  }
}

void Grayscale::apply(Image& image, RandomStream&) const { image = to_grayscale(image, num_output_channels); }

void ToDtype::apply(Image& image, RandomStream&) const { image = image.to(dtype == PixelType::kF32 ? DType::kF32 : DType::kU8, scale); }

std::vector<float> Normalize::table(int64_t channels, bool scale) const {
  GALLEY_CHECK(mean.size() == 1 || static_cast<int64_t>(mean.size()) == channels, "[normalize] `mean` has ", mean.size(),
               " values, the image has ", channels, " channels");
  std::vector<float> table;
  for (int64_t c = 0; c < channels; ++c) {
    const size_t at = mean.size() == 1 ? 0 : static_cast<size_t>(c);
    for (int v = 0; v < 256; ++v) {
      const float x = scale ? static_cast<float>(v) / 255.0f : static_cast<float>(v);
      table.push_back((x - static_cast<float>(mean[at])) / static_cast<float>(std[at]));
    }
  }
  return table;
}

void Normalize::apply(Image& image, RandomStream&) const {
  const int64_t channels = image.channels();
  GALLEY_CHECK(mean.size() == 1 || static_cast<int64_t>(mean.size()) == channels, "[normalize] `mean` has ", mean.size(),
               " values; it needs one, or one per channel of the image ", image.str());
  std::vector<float> shift, divisor;
  for (int64_t c = 0; c < channels; ++c) {
    const size_t at = mean.size() == 1 ? 0 : static_cast<size_t>(c);
    shift.push_back(static_cast<float>(mean[at]));
    divisor.push_back(static_cast<float>(std[at]));
  }
  float* pixel = image.as<float>();
  for (int64_t i = 0; i < image.area(); ++i, pixel += channels)
    for (int64_t c = 0; c < channels; ++c) pixel[c] = (pixel[c] - shift[static_cast<size_t>(c)]) / divisor[static_cast<size_t>(c)];
}

}  // namespace galley
