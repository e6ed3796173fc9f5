#include "libcore/data/resample.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace galley {
namespace {

/// The input lines that each output line reads, and their weights.
struct Taps {
  std::vector<int64_t> first, count;
  std::vector<float> weights;  // `stride` weights per output line
  int64_t stride = 0;
};

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

/// Cubic convolution kernel (Keys, "Cubic convolution interpolation for digital image processing", 1981).
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

Taps make_taps(int64_t in, int64_t out, Interpolation interpolation, bool antialias) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = antialias ? std::max(scale, 1.0) : 1.0;
  const bool bicubic = interpolation == Interpolation::kBicubic;
  const double support = (bicubic ? 2.0 : 1.0) * stretch;
  const double a = antialias ? -0.5 : -0.75;
  Taps taps;
  taps.stride = 2 * static_cast<int64_t>(std::ceil(support)) + 1;
  taps.weights.assign(static_cast<size_t>(out * taps.stride), 0.0f);
  std::vector<double> line(static_cast<size_t>(taps.stride));
  for (int64_t i = 0; i < out; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto begin = static_cast<int64_t>(std::floor(center - support + 0.5)),
               end = static_cast<int64_t>(std::floor(center + support + 0.5));
    const int64_t first = std::clamp<int64_t>(begin, 0, in - 1), last = std::clamp<int64_t>(end, first + 1, in);
    std::fill(line.begin(), line.end(), 0.0);
    double sum = 0;
    const bool repeat_border = bicubic && !antialias;
    for (int64_t x = begin; x < end; ++x) {
      if (!repeat_border && (x < first || x >= last)) continue;
      const double distance = (static_cast<double>(x) - center + 0.5) / stretch;
      const double weight = bicubic ? cubic(distance, a) : triangle(distance);
      line[static_cast<size_t>(std::clamp(x, first, last - 1) - first)] += weight;
      sum += weight;
    }
    if (sum == 0) line[0] = sum = 1;
    for (int64_t k = 0; k < last - first; ++k)
      taps.weights[static_cast<size_t>(i * taps.stride + k)] = static_cast<float>(line[static_cast<size_t>(k)] / sum);
    taps.first.push_back(first);
    taps.count.push_back(last - first);
  }
  return taps;
}

typedef float Float4 __attribute__((vector_size(16)));

Float4 load4(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// mix[x] = sum over k < count of weights[k] * source(k)[x], for lines of `length` values of type T.
template <class T, class Source>
void mix_lines(const Source& source, const float* weights, int64_t count, int64_t length, float* mix) {
  int64_t k = 0;
  if (count >= 2) {
    const T *a = source(0), *b = source(1);
    const float wa = weights[0], wb = weights[1];
    for (int64_t x = 0; x < length; ++x) mix[x] = wa * static_cast<float>(a[x]) + wb * static_cast<float>(b[x]);
    k = 2;
  } else {
    std::fill(mix, mix + length, 0.0f);
  }
  for (; k + 1 < count; k += 2) {
    const T *a = source(k), *b = source(k + 1);
    const float wa = weights[k], wb = weights[k + 1];
    for (int64_t x = 0; x < length; ++x) mix[x] += wa * static_cast<float>(a[x]) + wb * static_cast<float>(b[x]);
  }
  for (; k < count; ++k) {
    const T* a = source(k);
    const float wa = weights[k];
    for (int64_t x = 0; x < length; ++x) mix[x] += wa * static_cast<float>(a[x]);
  }
}

/// Filters one line horizontally. For 3 channels it reads and writes four floats per pixel, so both lines need room for one more value at
/// the end.
void filter_line(const float* line, const Taps& columns, int64_t channels, float* out) {
  const auto width = static_cast<int64_t>(columns.first.size());
  for (int64_t x = 0; x < width; ++x) {
    const float* tap = &columns.weights[static_cast<size_t>(x * columns.stride)];
    const float* from = line + columns.first[static_cast<size_t>(x)] * channels;
    const int64_t taps = columns.count[static_cast<size_t>(x)];
    float* at = out + x * channels;
    if (channels == 3) {
      Float4 sum{};
      for (int64_t j = 0; j < taps; ++j) sum += tap[j] * load4(from + 3 * j);
      std::memcpy(at, &sum, sizeof sum);
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (int64_t j = 0; j < taps; ++j) sum += tap[j] * from[j * channels + c];
        at[c] = sum;
      }
    }
  }
}

template <class T>
void to_pixels(const std::vector<float>& values, T* row, int64_t length) {
  const float* from = values.data();
  for (int64_t x = 0; x < length; ++x) row[x] = to_pixel<T>(from[x]);
}

/// Resizes with separable filters: each output row is mixed from rows of the image, then filtered horizontally. The vertical pass comes
/// first because it vectorizes for any number of channels, so it should process the larger array.
template <class T>
void resize_filtered(const Image& image, const Region& region, const ResizeTo& to, Image& result) {
  const int64_t channels = image.channels();
  const Taps rows = make_taps(region.height, to.height, to.interpolation, to.antialias);
  const Taps columns = make_taps(region.width, to.width, to.interpolation, to.antialias);
  const int64_t line = region.width * channels, made = to.width * channels;
  const auto source_row = [&](int64_t y) { return image.row<T>(region.top + y) + region.left * channels; };
  std::vector<float> mixed(static_cast<size_t>(line + 4)), out(static_cast<size_t>(made + 4));
  if (std::is_same_v<T, uint8_t> && to.interpolation == Interpolation::kBicubic && to.antialias && to.backend == ResizeBackend::kPillow) {
    Image between(image.dtype(), region.height, to.width, channels);
    for (int64_t y = 0; y < region.height; ++y) {
      std::copy_n(source_row(y), line, mixed.begin());
      filter_line(mixed.data(), columns, channels, out.data());
      to_pixels(out, between.row<T>(y), made);
    }
    for (int64_t y = 0; y < to.height; ++y) {
      const auto first = rows.first[static_cast<size_t>(y)];
      mix_lines<T>([&](int64_t k) { return between.row<T>(first + k); }, &rows.weights[static_cast<size_t>(y * rows.stride)],
                   rows.count[static_cast<size_t>(y)], made, out.data());
      to_pixels(out, result.row<T>(y), made);
    }
    return;
  }
  for (int64_t y = 0; y < to.height; ++y) {
    const auto first = rows.first[static_cast<size_t>(y)];
    mix_lines<T>([&](int64_t k) { return source_row(first + k); }, &rows.weights[static_cast<size_t>(y * rows.stride)],
                 rows.count[static_cast<size_t>(y)], line, mixed.data());
    filter_line(mixed.data(), columns, channels, out.data());
    to_pixels(out, result.row<T>(y), made);
  }
}

int64_t nearest_index(int64_t i, int64_t in, int64_t out, Interpolation interpolation) {
  const float scale = static_cast<float>(in) / static_cast<float>(out);
  const float at = (static_cast<float>(i) + (interpolation == Interpolation::kNearestExact ? 0.5f : 0.0f)) * scale;
  return std::min(static_cast<int64_t>(at), in - 1);
}

}  // namespace

int64_t round_half_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

Image crop(const Image& image, const Region& region, uint8_t fill) {
  Image result(image.dtype(), region.height, region.width, image.channels());
  const int64_t pixel = image.channels() * dtype_size(image.dtype());
  const int64_t left = std::clamp<int64_t>(-region.left, 0, region.width);  // columns of the result to the left of the image
  const int64_t right = std::clamp<int64_t>(image.width() - region.left, left, region.width);
  for (int64_t y = 0; y < region.height; ++y) {
    std::byte* to = result.data() + y * region.width * pixel;
    const int64_t from_y = region.top + y;
    if (from_y < 0 || from_y >= image.height() || left == right) {
      std::memset(to, fill, static_cast<size_t>(region.width * pixel));
      continue;
    }
    if (left > 0) std::memset(to, fill, static_cast<size_t>(left * pixel));
    std::memcpy(to + left * pixel, image.data() + (from_y * image.width() + region.left + left) * pixel,
                static_cast<size_t>((right - left) * pixel));
    if (right < region.width) std::memset(to + right * pixel, fill, static_cast<size_t>((region.width - right) * pixel));
  }
  return result;
}

Image resize_region(const Image& image, const Region& region, const ResizeTo& to) {
  GALLEY_ASSERT(region.top >= 0 && region.left >= 0 && region.top + region.height <= image.height() &&
                region.left + region.width <= image.width());
  if (to.height == region.height && to.width == region.width) return crop(image, region);
  Image result(image.dtype(), to.height, to.width, image.channels());
  with_pixel_type(image, [&]<class T>(T) {
    if (to.interpolation == Interpolation::kBilinear || to.interpolation == Interpolation::kBicubic) {
      resize_filtered<T>(image, region, to, result);
      return;
    }
    const int64_t channels = image.channels();
    for (int64_t y = 0; y < to.height; ++y) {
      const T* row = image.row<T>(region.top + nearest_index(y, region.height, to.height, to.interpolation)) + region.left * channels;
      T* out = result.row<T>(y);
      for (int64_t x = 0; x < to.width; ++x)
        std::copy_n(row + nearest_index(x, region.width, to.width, to.interpolation) * channels, channels, out + x * channels);
    }
  });
  return result;
}

Image resize(const Image& image, const ResizeTo& to) { return resize_region(image, {0, 0, image.height(), image.width()}, to); }

Image affine(const Image& image, const AffineMatrix& m, Interpolation interpolation, const std::vector<double>& fill) {
  GALLEY_ASSERT(interpolation == Interpolation::kNearest || interpolation == Interpolation::kBilinear);
  const int64_t height = image.height(), width = image.width(), channels = image.channels();
  Image result(image.dtype(), height, width, channels);
  with_pixel_type(image, [&]<class T>(T) {
    std::vector<float> outside(static_cast<size_t>(channels), 0.0f);
    for (size_t c = 0; c < outside.size() && !fill.empty(); ++c) outside[c] = static_cast<float>(fill[fill.size() == 1 ? 0 : c]);
    const auto at = [&](int64_t y, int64_t x, int64_t c) {
      const bool inside = y >= 0 && y < height && x >= 0 && x < width;
      return inside ? static_cast<float>(image.row<T>(y)[x * channels + c]) : outside[static_cast<size_t>(c)];
    };
    const double center_x = 0.5 * static_cast<double>(width), center_y = 0.5 * static_cast<double>(height);
    T* out = result.as<T>();
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        const double from_x = static_cast<double>(x) + 0.5 - center_x, from_y = static_cast<double>(y) + 0.5 - center_y;
        const double source_x = m[0] * from_x + m[1] * from_y + m[2] + center_x - 0.5;
        const double source_y = m[3] * from_x + m[4] * from_y + m[5] + center_y - 0.5;
        if (interpolation == Interpolation::kNearest) {
          const int64_t near_x = round_half_even(source_x), near_y = round_half_even(source_y);
          for (int64_t c = 0; c < channels; ++c) *out++ = static_cast<T>(at(near_y, near_x, c));
          continue;
        }
        const double floor_x = std::floor(source_x), floor_y = std::floor(source_y);
        const auto x0 = static_cast<int64_t>(floor_x), y0 = static_cast<int64_t>(floor_y);
        const auto dx = static_cast<float>(source_x - floor_x), dy = static_cast<float>(source_y - floor_y);
        for (int64_t c = 0; c < channels; ++c) {
          const float top = at(y0, x0, c) * (1 - dx) + at(y0, x0 + 1, c) * dx;
          const float bottom = at(y0 + 1, x0, c) * (1 - dx) + at(y0 + 1, x0 + 1, c) * dx;
          *out++ = to_pixel<T>(top * (1 - dy) + bottom * dy);
        }
      }
    }
  });
  return result;
}

}  // namespace galley
