// AutoAugment: sub-policies learned on ImageNet, CIFAR-10 and SVHN (Cubuk et al., "AutoAugment: Learning augmentation policies from data",
// 2018, tables 7 to 9 of the appendix).
#include <array>
#include <cmath>
#include <span>

#include "libcore/data/transform.h"

namespace galley {
namespace {

using Policy = std::array<std::array<AugmentationStep, 2>, 25>;
constexpr int kNone = -1;  // the operation has no magnitude

constexpr Policy kImagenet{{
    {{{"Posterize", 0.4, 8}, {"Rotate", 0.6, 9}}},
    {{{"Solarize", 0.6, 5}, {"AutoContrast", 0.6, kNone}}},
    {{{"Equalize", 0.8, kNone}, {"Equalize", 0.6, kNone}}},
    {{{"Posterize", 0.6, 7}, {"Posterize", 0.6, 6}}},
    {{{"Equalize", 0.4, kNone}, {"Solarize", 0.2, 4}}},
    {{{"Equalize", 0.4, kNone}, {"Rotate", 0.8, 8}}},
    {{{"Solarize", 0.6, 3}, {"Equalize", 0.6, kNone}}},
    {{{"Posterize", 0.8, 5}, {"Equalize", 1.0, kNone}}},
    {{{"Rotate", 0.2, 3}, {"Solarize", 0.6, 8}}},
    {{{"Equalize", 0.6, kNone}, {"Posterize", 0.4, 6}}},
    {{{"Rotate", 0.8, 8}, {"Color", 0.4, 0}}},
    {{{"Rotate", 0.4, 9}, {"Equalize", 0.6, kNone}}},
    {{{"Equalize", 0.0, kNone}, {"Equalize", 0.8, kNone}}},
    {{{"Invert", 0.6, kNone}, {"Equalize", 1.0, kNone}}},
    {{{"Color", 0.6, 4}, {"Contrast", 1.0, 8}}},
    {{{"Rotate", 0.8, 8}, {"Color", 1.0, 2}}},
    {{{"Color", 0.8, 8}, {"Solarize", 0.8, 7}}},
    {{{"Sharpness", 0.4, 7}, {"Invert", 0.6, kNone}}},
    {{{"ShearX", 0.6, 5}, {"Equalize", 1.0, kNone}}},
    {{{"Color", 0.4, 0}, {"Equalize", 0.6, kNone}}},
    {{{"Equalize", 0.4, kNone}, {"Solarize", 0.2, 4}}},
    {{{"Solarize", 0.6, 5}, {"AutoContrast", 0.6, kNone}}},
    {{{"Invert", 0.6, kNone}, {"Equalize", 1.0, kNone}}},
    {{{"Color", 0.6, 4}, {"Contrast", 1.0, 8}}},
    {{{"Equalize", 0.8, kNone}, {"Equalize", 0.6, kNone}}},
}};

constexpr Policy kCifar10{{
    {{{"Invert", 0.1, kNone}, {"Contrast", 0.2, 6}}},
    {{{"Rotate", 0.7, 2}, {"TranslateX", 0.3, 9}}},
    {{{"Sharpness", 0.8, 1}, {"Sharpness", 0.9, 3}}},
    {{{"ShearY", 0.5, 8}, {"TranslateY", 0.7, 9}}},
    {{{"AutoContrast", 0.5, kNone}, {"Equalize", 0.9, kNone}}},
    {{{"ShearY", 0.2, 7}, {"Posterize", 0.3, 7}}},
    {{{"Color", 0.4, 3}, {"Brightness", 0.6, 7}}},
    {{{"Sharpness", 0.3, 9}, {"Brightness", 0.7, 9}}},
    {{{"Equalize", 0.6, kNone}, {"Equalize", 0.5, kNone}}},
    {{{"Contrast", 0.6, 7}, {"Sharpness", 0.6, 5}}},
    {{{"Color", 0.7, 7}, {"TranslateX", 0.5, 8}}},
    {{{"Equalize", 0.3, kNone}, {"AutoContrast", 0.4, kNone}}},
    {{{"TranslateY", 0.4, 3}, {"Sharpness", 0.2, 6}}},
    {{{"Brightness", 0.9, 6}, {"Color", 0.2, 8}}},
    {{{"Solarize", 0.5, 2}, {"Invert", 0.0, kNone}}},
    {{{"Equalize", 0.2, kNone}, {"AutoContrast", 0.6, kNone}}},
    {{{"Equalize", 0.2, kNone}, {"Equalize", 0.6, kNone}}},
    {{{"Color", 0.9, 9}, {"Equalize", 0.6, kNone}}},
    {{{"AutoContrast", 0.8, kNone}, {"Solarize", 0.2, 8}}},
    {{{"Brightness", 0.1, 3}, {"Color", 0.7, 0}}},
    {{{"Solarize", 0.4, 5}, {"AutoContrast", 0.9, kNone}}},
    {{{"TranslateY", 0.9, 9}, {"TranslateY", 0.7, 9}}},
    {{{"AutoContrast", 0.9, kNone}, {"Solarize", 0.8, 3}}},
    {{{"Equalize", 0.8, kNone}, {"Invert", 0.1, kNone}}},
    {{{"TranslateY", 0.7, 9}, {"AutoContrast", 0.9, kNone}}},
}};

constexpr Policy kSvhn{{
    {{{"ShearX", 0.9, 4}, {"Invert", 0.2, kNone}}},
    {{{"ShearY", 0.9, 8}, {"Invert", 0.7, kNone}}},
    {{{"Equalize", 0.6, kNone}, {"Solarize", 0.6, 6}}},
    {{{"Invert", 0.9, kNone}, {"Equalize", 0.6, kNone}}},
    {{{"Equalize", 0.6, kNone}, {"Rotate", 0.9, 3}}},
    {{{"ShearX", 0.9, 4}, {"AutoContrast", 0.8, kNone}}},
    {{{"ShearY", 0.9, 8}, {"Invert", 0.4, kNone}}},
    {{{"ShearY", 0.9, 5}, {"Solarize", 0.2, 6}}},
    {{{"Invert", 0.9, kNone}, {"AutoContrast", 0.8, kNone}}},
    {{{"Equalize", 0.6, kNone}, {"Rotate", 0.9, 3}}},
    {{{"ShearX", 0.9, 4}, {"Solarize", 0.3, 3}}},
    {{{"ShearY", 0.8, 8}, {"Invert", 0.7, kNone}}},
    {{{"Equalize", 0.9, kNone}, {"TranslateY", 0.6, 6}}},
    {{{"Invert", 0.9, kNone}, {"Equalize", 0.6, kNone}}},
    {{{"Contrast", 0.3, 3}, {"Rotate", 0.8, 4}}},
    {{{"Invert", 0.8, kNone}, {"TranslateY", 0.0, 2}}},
    {{{"ShearY", 0.7, 6}, {"Solarize", 0.4, 8}}},
    {{{"Invert", 0.6, kNone}, {"Rotate", 0.8, 4}}},
    {{{"ShearY", 0.3, 7}, {"TranslateX", 0.9, 3}}},
    {{{"ShearX", 0.1, 6}, {"Invert", 0.6, kNone}}},
    {{{"Solarize", 0.7, 2}, {"TranslateY", 0.6, 7}}},
    {{{"ShearY", 0.8, 4}, {"Invert", 0.8, kNone}}},
    {{{"ShearX", 0.7, 9}, {"TranslateY", 0.8, 3}}},
    {{{"ShearY", 0.8, 5}, {"AutoContrast", 0.7, kNone}}},
    {{{"ShearX", 0.7, 2}, {"Invert", 0.1, kNone}}},
}};

enum class Kind {
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
  kInvert
};

struct Operation {
  std::string_view name;
  Kind kind;
  bool is_signed;
};
constexpr Operation kOperations[] = {
    {"ShearX", Kind::kShearX, true},         {"ShearY", Kind::kShearY, true},      {"TranslateX", Kind::kTranslateX, true},
    {"TranslateY", Kind::kTranslateY, true}, {"Rotate", Kind::kRotate, true},      {"Brightness", Kind::kBrightness, true},
    {"Color", Kind::kColor, true},           {"Contrast", Kind::kContrast, true},  {"Sharpness", Kind::kSharpness, true},
    {"Posterize", Kind::kPosterize, false},  {"Solarize", Kind::kSolarize, false}, {"AutoContrast", Kind::kAutoContrast, false},
    {"Equalize", Kind::kEqualize, false},    {"Invert", Kind::kInvert, false},
};

const Operation& operation_of(std::string_view name) {
  for (const Operation& operation : kOperations)
    if (operation.name == name) return operation;
  GALLEY_ASSERT(false, name);
}

}  // namespace

std::span<const std::array<AugmentationStep, 2>> auto_augment_policy(AutoAugmentPolicy policy) {
  switch (policy) {
    case AutoAugmentPolicy::kImagenet: return kImagenet;
    case AutoAugmentPolicy::kCifar10: return kCifar10;
    case AutoAugmentPolicy::kSvhn: return kSvhn;
  }
  GALLEY_ASSERT(false);
}

double augmentation_magnitude(std::string_view name, int index, int64_t height, int64_t width, bool& is_signed) {
  const Operation& operation = operation_of(name);
  is_signed = operation.is_signed;
  if (index < 0) return 0;
  const double part = index / 9.0;              // indices 0 .. 9
  constexpr double kTranslate = 150.0 / 331.0;  // the paper translates images of 331 pixels by up to 150
  switch (operation.kind) {
    case Kind::kShearX:
    case Kind::kShearY: return 0.3 * part;
    case Kind::kTranslateX: return kTranslate * static_cast<double>(width) * part;
    case Kind::kTranslateY: return kTranslate * static_cast<double>(height) * part;
    case Kind::kRotate: return 30.0 * part;
    case Kind::kPosterize: return 8.0 - std::nearbyint(4.0 * part);
    case Kind::kSolarize: return 255.0 * (1.0 - part);
    case Kind::kBrightness:
    case Kind::kColor:
    case Kind::kContrast:
    case Kind::kSharpness: return 0.9 * part;
    case Kind::kAutoContrast:
    case Kind::kEqualize:
    case Kind::kInvert: return 0;
  }
  GALLEY_ASSERT(false);
}

void apply_augmentation(Image& image, std::string_view name, double magnitude, Interpolation interpolation,
                        const std::vector<double>& fill) {
  const auto move = [&](const AffineMatrix& matrix) { image = affine(image, matrix, interpolation, fill); };
  const double half_width = 0.5 * static_cast<double>(image.width()), half_height = 0.5 * static_cast<double>(image.height());
  const double radians = magnitude * 3.14159265358979323846 / 180.0;
  switch (operation_of(name).kind) {
    // Matrices are relative to the center of the image, but shearing keeps the top left corner fixed.
    case Kind::kShearX: return move({1, magnitude, magnitude * half_height, 0, 1, 0});
    case Kind::kShearY: return move({1, 0, 0, magnitude, 1, magnitude * half_width});
    case Kind::kTranslateX: return move({1, 0, -std::trunc(magnitude), 0, 1, 0});
    case Kind::kTranslateY: return move({1, 0, 0, 0, 1, -std::trunc(magnitude)});
    case Kind::kRotate: return move({std::cos(radians), -std::sin(radians), 0, std::sin(radians), std::cos(radians), 0});
    case Kind::kBrightness: return adjust_brightness(image, 1.0 + magnitude);
    case Kind::kColor: return adjust_saturation(image, 1.0 + magnitude);
    case Kind::kContrast: return adjust_contrast(image, 1.0 + magnitude);
    case Kind::kSharpness: return adjust_sharpness(image, 1.0 + magnitude);
    case Kind::kPosterize: return posterize(image, static_cast<int64_t>(magnitude));
    case Kind::kSolarize: return solarize(image, magnitude);
    case Kind::kAutoContrast: return autocontrast(image);
    case Kind::kEqualize: return equalize(image);
    case Kind::kInvert: return invert(image);
  }
}

void AutoAugment::apply(Image& image, RandomStream& random) const {
  GALLEY_CHECK(image.channels() == 1 || image.channels() == 3, "[auto_augment] needs an image of 1 or 3 channels, not ", image.str());
  GALLEY_CHECK(fill.size() <= 1 || static_cast<int64_t>(fill.size()) == image.channels(), "[auto_augment] `fill` has ", fill.size(),
               " values; it needs one, or one per channel of the image ", image.str());
  const auto policies = auto_augment_policy(policy);
  const auto& steps = policies[random.below(policies.size())];
  const int64_t height = image.height(), width = image.width();
  // Always draw all numbers, so that those of the second step do not depend on whether the first step is applied.
  const std::array<double, 2> draws{random.uniform(), random.uniform()};
  const std::array<bool, 2> negative{random.below(2) == 0, random.below(2) == 0};
  for (size_t i = 0; i < 2; ++i) {
    if (draws[i] > steps[i].probability) continue;
    bool is_signed = false;
    const double magnitude = augmentation_magnitude(steps[i].operation, steps[i].magnitude, height, width, is_signed);
    apply_augmentation(image, steps[i].operation, is_signed && negative[i] ? -magnitude : magnitude, interpolation, fill);
  }
}

}  // namespace galley
