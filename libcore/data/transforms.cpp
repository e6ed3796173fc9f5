// The table of transforms and their options.
#include <array>
#include <cmath>
#include <span>

#include "libcore/data/transform.h"

namespace galley {
namespace {

constexpr std::string_view kPaddingModeNames[] = {"constant", "edge", "reflect", "symmetric"};
constexpr std::string_view kPixelTypeNames[] = {"f32", "u8"};
constexpr std::string_view kPolicyNames[] = {"imagenet", "cifar10", "svhn"};

constexpr OptionInfo kSize{.name = "size",
                          .doc = "[height, width], or one number for a square",
                          .unit = "pixels",
                          .min = 1,
                          .max = 16384,
                          .required = true,
                          .main = true};
constexpr OptionInfo kInterpolation{.name = "interpolation", .doc = "How pixels are found between pixels"};
constexpr OptionInfo kBackend{.name = "backend", .doc = "Whose bicubic filter at sharp edges: pillow (8 bits between its passes, as transforms.v2), or tensor (floats, as torchvision's first transforms of tensors)"};
constexpr OptionInfo kAntialias{.name = "antialias", .doc = "Widen the filter when reducing (bilinear and bicubic), as Pillow"};
constexpr OptionInfo kProbability{.name = "p", .doc = "Probability", .min = 0, .max = 1, .main = true};
constexpr OptionInfo kFill{.name = "fill", .doc = "Value of new pixels, one for all or one a channel, in the image's own units"};
constexpr OptionInfo kPaddingMode{
    .name = "padding_mode",
    .doc = "What new pixels hold: fill, the edge, or the image mirrored without (reflect) or with (symmetric) its edge"};
constexpr OptionInfo kPadding{.name = "padding",
                             .doc = "All sides, [left and right, top and bottom], or [left, top, right, bottom]",
                             .unit = "pixels",
                             .min = 0,
                             .max = 16384};

void check_list(std::string_view item, std::string_view key, size_t size, std::initializer_list<size_t> allowed) {
  std::string text;
  for (const size_t count : allowed) {
    if (size == count) return;
    text += (text.empty() ? "" : " or ") + std::to_string(count);
  }
  fail(ErrorCode::kRecipe, "[", item, "] `", key, "` has ", size, " values; wanted ", text);
}

void check_range(std::string_view item, std::string_view key, const std::vector<double>& range, double low) {
  check_list(item, key, range.size(), {2});
  GALLEY_CHECK(range[0] >= low && range[0] <= range[1] && std::isfinite(range[1]), "[", item, "] `", key, "` is [", range[0], ", ",
               range[1], "]; wanted two rising numbers of at least ", low);
}

void check_jitter(std::string_view key, const std::vector<double>& value, double low, double high) {
  check_list("color_jitter", key, value.size(), {1, 2});
  if (value.size() == 1) {
    GALLEY_CHECK(value[0] >= 0 && value[0] <= high, "[color_jitter] `", key, "` is ", value[0], "; a single number is at least 0",
                 key == "hue" ? " and at most 0.5" : "");
  } else {
    GALLEY_CHECK(low <= value[0] && value[0] <= value[1] && value[1] <= high, "[color_jitter] `", key, "` is [", value[0], ", ", value[1],
                 "]; wanted two rising numbers in ", low, " .. ", high);
  }
}

}  // namespace

ComponentKinds data_transforms() {
  static constexpr std::array<ComponentKind, 13> kKinds{{
      {"resize", "resize, antialiased", make_options<Resize>},
      {"center_crop", "cut out the middle", make_options<CenterCrop>},
      {"random_crop", "cut out a random part of fixed size, after padding", make_options<RandomCrop>},
      {"random_resized_crop", "cut out a random part of random size and shape, and resize it", make_options<RandomResizedCrop>},
      {"random_horizontal_flip", "mirror left and right", make_options<RandomHorizontalFlip>},
      {"random_vertical_flip", "mirror top and bottom", make_options<RandomVerticalFlip>},
      {"normalize", "(x - mean) / std, of pixels in 0..1", make_options<Normalize>},
      {"to_dtype", "convert pixels", make_options<ToDtype>},
      {"color_jitter", "change brightness, contrast, saturation and hue in random order", make_options<ColorJitter>},
      {"random_erasing", "overwrite a random rectangle", make_options<RandomErasing>},
      {"auto_augment", "a random sub-policy of AutoAugment", make_options<AutoAugment>},
      {"grayscale", "remove the colours", make_options<Grayscale>},
      {"pad", "add pixels at the borders", make_options<Pad>},
  }};
  return kKinds;
}

void Transform::item_options(OptionVisitor& visitor) {
  visitor.option({.name = "field", .doc = "Image of the sample that is changed"}, field);
}

void Resize::options(OptionVisitor& visitor) {
  visitor.option({.name = "size",
                 .doc = "[height, width], or one number for the smaller edge",
                 .unit = "pixels",
                 .min = 1,
                 .max = 16384,
                 .required = true,
                 .main = true},
                size);
  visitor.option(
      {.name = "max_size", .doc = "Bound of the longer edge where `size` is one number; 0: none", .unit = "pixels", .min = 0, .max = 16384},
      max_size);
  visitor.choice(kInterpolation, interpolation, kInterpolationNames);
  visitor.option(kAntialias, antialias);
  visitor.choice(kBackend, backend, kResizeBackendNames);
  item_options(visitor);
}

void Resize::check() const {
  check_list("resize", "size", size.size(), {1, 2});
  GALLEY_CHECK(max_size == 0 || (size.size() == 1 && max_size > size[0]), "[resize] `max_size` ", max_size,
               " wants `size` to be one smaller number");
}

void CenterCrop::options(OptionVisitor& visitor) {
  visitor.option(kSize, size);
  item_options(visitor);
}
void CenterCrop::check() const { check_list("center_crop", "size", size.size(), {1, 2}); }

void Pad::options(OptionVisitor& visitor) {
  OptionInfo info = kPadding;
  info.required = info.main = true;
  visitor.option(info, padding);
  visitor.option(kFill, fill);
  visitor.choice(kPaddingMode, padding_mode, kPaddingModeNames);
  item_options(visitor);
}

void Pad::check() const {
  check_list("pad", "padding", padding.size(), {1, 2, 4});
  check_list("pad", "fill", fill.size(), {1, 3});
}

void RandomCrop::options(OptionVisitor& visitor) {
  visitor.option(kSize, size);
  visitor.option(kPadding, padding);
  visitor.option({.name = "pad_if_needed", .doc = "Pad images that are smaller than `size`, else they are an error"}, pad_if_needed);
  visitor.option(kFill, fill);
  visitor.choice(kPaddingMode, padding_mode, kPaddingModeNames);
  item_options(visitor);
}

void RandomCrop::check() const {
  check_list("random_crop", "size", size.size(), {1, 2});
  check_list("random_crop", "padding", padding.size(), {0, 1, 2, 4});
  check_list("random_crop", "fill", fill.size(), {1, 3});
}

void RandomResizedCrop::options(OptionVisitor& visitor) {
  visitor.option(kSize, size);
  visitor.option({.name = "scale", .doc = "Least and largest share of the image's area", .min = 0, .max = 1}, scale);
  visitor.option({.name = "ratio", .doc = "Least and largest width / height, drawn on a logarithmic scale", .min = 0}, ratio);
  visitor.choice(kInterpolation, interpolation, kInterpolationNames);
  visitor.option(kAntialias, antialias);
  visitor.choice(kBackend, backend, kResizeBackendNames);
  item_options(visitor);
}

void RandomResizedCrop::check() const {
  check_list("random_resized_crop", "size", size.size(), {1, 2});
  check_range("random_resized_crop", "scale", scale, 0);
  check_range("random_resized_crop", "ratio", ratio, 1e-6);
}

void RandomHorizontalFlip::options(OptionVisitor& visitor) {
  visitor.option(kProbability, p);
  item_options(visitor);
}
void RandomVerticalFlip::options(OptionVisitor& visitor) {
  visitor.option(kProbability, p);
  item_options(visitor);
}

void Normalize::options(OptionVisitor& visitor) {
  visitor.option({.name = "mean", .doc = "One a channel, or one for all", .required = true}, mean);
  visitor.option({.name = "std", .doc = "One a channel, or one for all; not 0", .required = true}, std);
  item_options(visitor);
}

void Normalize::check() const {
  GALLEY_CHECK(!mean.empty() && mean.size() == std.size(), "[normalize] `mean` has ", mean.size(), " values, `std` has ", std.size());
  for (const double value : std) GALLEY_CHECK(static_cast<float>(value) != 0.0f && std::isfinite(value), "[normalize] `std` holds ", value);
}

void ToDtype::options(OptionVisitor& visitor) {
  visitor.choice({.name = "dtype", .doc = "Type of the pixels", .main = true}, dtype, kPixelTypeNames);
  visitor.option({.name = "scale", .doc = "0..255 to 0..1 and back; without it values stay"}, scale);
  item_options(visitor);
}

void ColorJitter::options(OptionVisitor& visitor) {
  visitor.option({.name = "brightness", .doc = "x draws a factor from 1 - x .. 1 + x; [low, high] is the range itself"}, brightness);
  visitor.option({.name = "contrast", .doc = "As brightness"}, contrast);
  visitor.option({.name = "saturation", .doc = "As brightness"}, saturation);
  visitor.option({.name = "hue",
                 .doc = "x draws from -x .. x turns of the colour circle, x at most 0.5; [low, high] is the range itself",
                 .min = -0.5,
                 .max = 0.5},
                hue);
  item_options(visitor);
}

void ColorJitter::check() const {
  const double infinity = std::numeric_limits<double>::infinity();
  check_jitter("brightness", brightness, 0, infinity);
  check_jitter("contrast", contrast, 0, infinity);
  check_jitter("saturation", saturation, 0, infinity);
  check_jitter("hue", hue, -0.5, 0.5);
}

void Grayscale::options(OptionVisitor& visitor) {
  visitor.option({.name = "num_output_channels", .doc = "1, or 3 equal ones", .min = 1, .max = 3, .main = true}, num_output_channels);
  item_options(visitor);
}
void Grayscale::check() const {
  GALLEY_CHECK(num_output_channels == 1 || num_output_channels == 3, "[grayscale] `num_output_channels` is ", num_output_channels,
               "; wanted 1 or 3");
}

void RandomErasing::options(OptionVisitor& visitor) {
  visitor.option(kProbability, p);
  visitor.option({.name = "scale", .doc = "Least and largest share of the image's area", .min = 0, .max = 1}, scale);
  visitor.option({.name = "ratio", .doc = "Least and largest height / width, drawn on a logarithmic scale", .min = 0}, ratio);
  visitor.option({.name = "value", .doc = "A number, one a channel, or random (normally distributed)"}, value);
  item_options(visitor);
}

void RandomErasing::check() const {
  check_range("random_erasing", "scale", scale, 0);
  check_range("random_erasing", "ratio", ratio, 1e-6);
  check_list("random_erasing", "value", value.size(), {1, 3});
  for (const std::string& text : value) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const bool good = !text.empty() && *end == '\0' && std::isfinite(number);
    GALLEY_CHECK(good || (text == "random" && value.size() == 1), "[random_erasing] `value` holds '", text, "'; wanted numbers, or random");
  }
}

void AutoAugment::options(OptionVisitor& visitor) {
  visitor.choice({.name = "policy", .doc = "The data set it was learnt on", .main = true}, policy, kPolicyNames);
  visitor.choice({.name = "interpolation", .doc = "nearest or bilinear"}, interpolation, kInterpolationNames);
  visitor.option({.name = "fill", .doc = "Value of new pixels (0..255), one for all or one a channel; default black"}, fill);
  item_options(visitor);
}

void AutoAugment::check() const {
  GALLEY_CHECK(interpolation == Interpolation::kNearest || interpolation == Interpolation::kBilinear,
               "[auto_augment] `interpolation` is nearest or bilinear");
  check_list("auto_augment", "fill", fill.size(), {0, 1, 3});
}

}  // namespace galley
