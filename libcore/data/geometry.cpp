// Transforms that move pixels.
#include <algorithm>
#include <cmath>

#include "libcore/data/transform.h"

namespace galley {
namespace {

/// [height, width] of a `size` option.
std::pair<int64_t, int64_t> height_width(const std::vector<int64_t>& size) { return {size[0], size.size() == 1 ? size[0] : size[1]}; }

/// The coordinate to read for a coordinate that may be outside 0 .. size-1; -1 for the fill value.
int64_t mirrored(int64_t at, int64_t size, PaddingMode mode) {
  if (at >= 0 && at < size) return at;
  switch (mode) {
    case PaddingMode::kConstant: return -1;
    case PaddingMode::kEdge: return std::clamp<int64_t>(at, 0, size - 1);
    case PaddingMode::kReflect: return at < 0 ? -at : 2 * (size - 1) - at;
    case PaddingMode::kSymmetric: return at < 0 ? -at - 1 : 2 * size - 1 - at;
  }
  GALLEY_ASSERT(false);
}

/// Draws a factor whose logarithm is uniform in the range.
double log_uniform(const std::vector<double>& range, RandomStream& random) {
  return std::exp(random.uniform(std::log(range[0]), std::log(range[1])));
}

void set_size(FieldType& image, int64_t height, int64_t width) {
  image.sample[1] = height;
  image.sample[2] = width;
}

/// The pixels that a `padding` option adds: one number for all sides; [left and right, top and bottom]; or [left, top, right, bottom].
struct Sides {
  explicit Sides(const std::vector<int64_t>& padding)
      : left(padding[0]),
        top(padding.size() == 1 ? padding[0] : padding[1]),
        right(padding.size() == 4 ? padding[2] : left),
        bottom(padding.size() == 4 ? padding[3] : top) {}
  /// A padded image of height x width pixels, in the coordinates of the image without padding.
  Region around(int64_t height, int64_t width) const { return {-top, -left, height + top + bottom, width + left + right}; }

  int64_t left, top, right, bottom;
};

int64_t draw_below(RandomStream& random, int64_t count) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(count))); }

}  // namespace

Image pad_image(const Image& image, const Pad& options) {
  const Sides sides(options.padding);
  const int64_t left = sides.left, top = sides.top, right = sides.right, bottom = sides.bottom;
  const int64_t limit_x = options.padding_mode == PaddingMode::kReflect ? image.width() - 1 : image.width();
  const int64_t limit_y = options.padding_mode == PaddingMode::kReflect ? image.height() - 1 : image.height();
  const bool mirrors = options.padding_mode == PaddingMode::kReflect || options.padding_mode == PaddingMode::kSymmetric;
  GALLEY_CHECK(!mirrors || (std::max(left, right) <= limit_x && std::max(top, bottom) <= limit_y), "[pad] padding ", left, ",", top, ",",
               right, ",", bottom, " is too large to mirror the image ", image.str(), "; use a smaller padding or another padding_mode");
  Image result(image.dtype(), image.height() + top + bottom, image.width() + left + right, image.channels());
  const int64_t channels = image.channels();
  GALLEY_CHECK(options.fill.size() == 1 || static_cast<int64_t>(options.fill.size()) == channels, "[pad] `fill` has ", options.fill.size(),
               " values; it needs one, or one per channel of the image ", image.str());
  with_pixel_type(image, [&]<class T>(T) {
    std::vector<T> fill;
    for (int64_t c = 0; c < channels; ++c)
      fill.push_back(to_pixel<T>(static_cast<float>(options.fill[options.fill.size() == 1 ? 0 : static_cast<size_t>(c)])));
    for (int64_t y = 0; y < result.height(); ++y) {
      T* out = result.row<T>(y);
      const int64_t from_y = mirrored(y - top, image.height(), options.padding_mode);
      for (int64_t x = 0; x < result.width(); ++x) {
        const int64_t from_x = mirrored(x - left, image.width(), options.padding_mode);
        if (from_y >= 0 && from_x == x - left && from_x == 0) {  // start of the unpadded row: copy it at once
          std::copy_n(image.row<T>(from_y), image.width() * channels, out + x * channels);
          x += image.width() - 1;
          continue;
        }
        std::copy_n(from_y < 0 || from_x < 0 ? fill.data() : image.row<T>(from_y) + from_x * channels, channels, out + x * channels);
      }
    }
  });
  return result;
}

void flip_horizontal(Image& image) {
  const int64_t channels = image.channels(), width = image.width();
  with_pixel_type(image, [&]<class T>(T) {
    for (int64_t y = 0; y < image.height(); ++y) {
      T *left = image.row<T>(y), *right = left + (width - 1) * channels;
      for (; left < right; left += channels, right -= channels) std::swap_ranges(left, left + channels, right);
    }
  });
}

void flip_vertical(Image& image) {
  const int64_t row = image.bytes() / image.height();
  for (int64_t y = 0; y < image.height() / 2; ++y) {
    std::byte* top = image.data() + y * row;
    std::swap_ranges(top, top + row, image.data() + (image.height() - 1 - y) * row);
  }
}

std::pair<int64_t, int64_t> Resize::target(int64_t image_height, int64_t image_width) const {
  if (size.size() != 1) return {size[0], size.back()};
  const int64_t shorter = std::min(image_height, image_width), longer = std::max(image_height, image_width);
  const auto [new_short, new_long] = rule == ResizeRule::kEdge ? edges_of(shorter, longer) : scaled(shorter, longer);
  constexpr int64_t kMaxSide = 65536;
  GALLEY_CHECK_INPUT(new_long <= kMaxSide, "[resize] an image of ", image_height, " x ", image_width, " pixels would become ", new_long,
                     " pixels long; set max_size");
  if (image_height <= image_width) return {new_short, new_long};
  return {new_long, new_short};
}

std::pair<int64_t, int64_t> Resize::edges_of(int64_t shorter, int64_t longer) const {
  const auto quotient = [](int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<double>(a) / static_cast<double>(b)); };
  const int64_t new_long = quotient(size[0] * longer, shorter);
  if (max_size == 0 || new_long <= max_size) return {size[0], new_long};
  return {std::max<int64_t>(1, quotient(max_size * size[0], new_long)), max_size};
}

std::pair<int64_t, int64_t> Resize::scaled(int64_t shorter, int64_t longer) const {
  double factor = static_cast<double>(size[0]) / static_cast<double>(shorter);
  if (max_size > 0) factor = std::min(factor, static_cast<double>(max_size) / static_cast<double>(longer));
  const auto edge = [&](int64_t of) { return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(of) * factor)); };
  return {edge(shorter), edge(longer)};
}

void Resize::apply(Image& image, RandomStream&) const {
  const auto [height, width] = target(image.height(), image.width());
  if (height == image.height() && width == image.width()) return;
  image = galley::resize(image, {height, width, interpolation, antialias, backend});
}

void Resize::apply_to_mask(Image& mask, RandomStream& random) const {
  Resize nearest = *this;
  nearest.interpolation = Interpolation::kNearest;
  nearest.apply(mask, random);
}

void Resize::map_image(FieldType& image) const {
  const int64_t height = image.sample[1], width = image.sample[2];
  if (size.size() == 1 && (height == kOpenSize || width == kOpenSize)) {
    set_size(image, kOpenSize, kOpenSize);
    return;
  }
  const auto [new_height, new_width] = target(height, width);
  set_size(image, new_height, new_width);
}

void Resize::map_grid(PixelGrid& grid, RandomStream&) const {
  const auto [new_height, new_width] = target(grid.height, grid.width);
  grid.resize(new_height, new_width);
}

namespace {

/// The center region of an image. If it is larger than the image, it extends evenly beyond it; an odd pixel goes to the right and bottom.
Region center_of(int64_t height, int64_t width, const std::vector<int64_t>& size) {
  const auto [new_height, new_width] = height_width(size);
  const auto offset = [](int64_t in, int64_t out) {
    return in < out ? -((out - in) / 2) : round_half_even(static_cast<double>(in - out) / 2.0);
  };
  return {offset(height, new_height), offset(width, new_width), new_height, new_width};
}

}  // namespace

void CenterCrop::apply(Image& image, RandomStream&) const { image = crop(image, center_of(image.height(), image.width(), size)); }
void CenterCrop::apply_to_mask(Image& mask, RandomStream&) const {
  mask = crop(mask, center_of(mask.height(), mask.width(), size), Mask::kNoClass);
}
void CenterCrop::map_grid(PixelGrid& grid, RandomStream&) const { grid.crop(center_of(grid.height, grid.width, size)); }
void CenterCrop::map_image(FieldType& image) const { set_size(image, size[0], size.back()); }

void Pad::apply(Image& image, RandomStream&) const { image = pad_image(image, *this); }

void Pad::apply_to_mask(Image& mask, RandomStream&) const {
  Pad without_class = *this;
  without_class.fill = {Mask::kNoClass};
  mask = pad_image(mask, without_class);
}

void Pad::map_image(FieldType& image) const {
  const auto grown = [](int64_t size, int64_t by) { return size == kOpenSize ? kOpenSize : size + by; };
  const Sides sides(padding);
  set_size(image, grown(image.sample[1], sides.top + sides.bottom), grown(image.sample[2], sides.left + sides.right));
}

void Pad::map_grid(PixelGrid& grid, RandomStream&) const { grid.crop(Sides(padding).around(grid.height, grid.width)); }

void RandomCrop::apply_to_mask(Image& mask, RandomStream& random) const {
  RandomCrop without_class = *this;
  without_class.fill = {Mask::kNoClass};
  without_class.apply(mask, random);
}
void RandomCrop::map_image(FieldType& image) const { set_size(image, size[0], size.back()); }

Region RandomCrop::padded(int64_t image_height, int64_t image_width) const {
  const auto [height, width] = height_width(size);
  Region region{0, 0, image_height, image_width};
  if (!padding.empty()) region = Sides(padding).around(image_height, image_width);
  if (!pad_if_needed) return region;
  const int64_t x = std::max<int64_t>(0, width - region.width), y = std::max<int64_t>(0, height - region.height);
  return {region.top - y, region.left - x, region.height + 2 * y, region.width + 2 * x};
}

Region RandomCrop::draw(int64_t image_height, int64_t image_width, RandomStream& random) const {
  const auto [height, width] = height_width(size);
  const Region region = padded(image_height, image_width);
  GALLEY_CHECK_INPUT(region.height >= height && region.width >= width, "[random_crop] cannot crop ", height, " x ", width,
                     " pixels from an image of ", region.height, " x ", region.width,
                     " (padding included); resize before, or set pad_if_needed: true");
  const int64_t top = region.top + draw_below(random, region.height - height + 1);
  return {top, region.left + draw_below(random, region.width - width + 1), height, width};
}

void RandomCrop::apply(Image& image, RandomStream& random) const {
  Region part = draw(image.height(), image.width(), random);
  const bool black = padding_mode == PaddingMode::kConstant && fill.size() == 1 && fill[0] == 0;
  if (!black) {  // crop() fills with zeros
    const Region region = padded(image.height(), image.width());
    const auto pad = [&](std::vector<int64_t> amount) {
      Pad options;
      options.padding = std::move(amount);
      options.fill = fill;
      options.padding_mode = padding_mode;
      image = pad_image(image, options);
    };
    if (!padding.empty()) pad(padding);
    if (image.height() != region.height || image.width() != region.width)
      pad({(region.width - image.width()) / 2, (region.height - image.height()) / 2});
    part.top -= region.top;
    part.left -= region.left;
  }
  image = crop(image, part);
}

void RandomCrop::map_grid(PixelGrid& grid, RandomStream& random) const { grid.crop(draw(grid.height, grid.width, random)); }

Region RandomResizedCrop::draw(int64_t height, int64_t width, RandomStream& random) const {
  const auto area = static_cast<double>(height * width);
  constexpr int kAttempts = 10;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double target = area * random.uniform(scale[0], scale[1]);
    const double aspect = log_uniform(ratio, random);
    const int64_t w = round_half_even(std::sqrt(target * aspect)), h = round_half_even(std::sqrt(target / aspect));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const int64_t top = draw_below(random, height - h + 1);
    return {top, draw_below(random, width - w + 1), h, w};
  }
  // The largest center region whose aspect ratio is in `ratio`.
  const double own = static_cast<double>(width) / static_cast<double>(height);
  int64_t w = width, h = height;
  if (own < ratio[0]) h = std::clamp<int64_t>(round_half_even(static_cast<double>(w) / ratio[0]), 1, height);
  if (own > ratio[1]) w = std::clamp<int64_t>(round_half_even(static_cast<double>(h) * ratio[1]), 1, width);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

void RandomResizedCrop::apply(Image& image, RandomStream& random) const {
  const auto [height, width] = height_width(size);
  image = resize_region(image, draw(image.height(), image.width(), random), {height, width, interpolation, antialias, backend});
}

void RandomResizedCrop::apply_to_mask(Image& mask, RandomStream& random) const {
  RandomResizedCrop nearest = *this;
  nearest.interpolation = Interpolation::kNearest;
  nearest.apply(mask, random);
}
void RandomResizedCrop::map_image(FieldType& image) const { set_size(image, size[0], size.back()); }
void RandomResizedCrop::map_grid(PixelGrid& grid, RandomStream& random) const {
  grid.crop(draw(grid.height, grid.width, random));
  grid.resize(size[0], size.back());
}

void RandomHorizontalFlip::apply(Image& image, RandomStream& random) const {
  if (random.uniform() < p) flip_horizontal(image);
}
void RandomHorizontalFlip::map_grid(PixelGrid& grid, RandomStream& random) const {
  if (random.uniform() < p) grid.flip_horizontal();
}

void RandomVerticalFlip::apply(Image& image, RandomStream& random) const {
  if (random.uniform() < p) flip_vertical(image);
}
void RandomVerticalFlip::map_grid(PixelGrid& grid, RandomStream& random) const {
  if (random.uniform() < p) grid.flip_vertical();
}

void RandomErasing::apply(Image& image, RandomStream& random) const {
  if (random.uniform() >= p) return;
  const int64_t height = image.height(), width = image.width(), channels = image.channels();
  const bool noise = value[0] == "random";
  GALLEY_CHECK(value.size() == 1 || static_cast<int64_t>(value.size()) == channels, "[random_erasing] `value` has ", value.size(),
               " values; it needs one, or one per channel of the image ", image.str());
  std::vector<float> fill(static_cast<size_t>(channels), 0.0f);
  for (size_t c = 0; c < fill.size() && !noise; ++c)
    fill[c] = static_cast<float>(std::strtod(value[value.size() == 1 ? 0 : c].c_str(), nullptr));
  constexpr int kAttempts = 10;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double area = static_cast<double>(height * width) * random.uniform(scale[0], scale[1]);
    const double aspect = log_uniform(ratio, random);
    const int64_t h = round_half_even(std::sqrt(area * aspect)), w = round_half_even(std::sqrt(area / aspect));
    if (h >= height || w >= width) continue;
    const int64_t top = draw_below(random, height - h + 1), left = draw_below(random, width - w + 1);
    for (int64_t y = top; y < top + h; ++y) {
      float* row = image.row<float>(y) + left * channels;
      for (int64_t i = 0; i < w * channels; ++i)
        row[i] = noise ? static_cast<float>(random.normal()) : fill[static_cast<size_t>(i % channels)];
    }
    return;
  }
}

}  // namespace galley
