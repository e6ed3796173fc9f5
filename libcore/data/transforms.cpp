// The table of transforms and their options.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "libcore/data/box_transforms.h"
#include "libcore/data/flow.h"
#include "libcore/data/mosaic.h"
#include "libcore/data/pack.h"
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
constexpr OptionInfo kInterpolation{.name = "interpolation", .doc = "Interpolation between pixels"};
constexpr OptionInfo kBackend{
    .name = "backend",
    .doc =
        "Arithmetic of bicubic filters at sharp edges: pillow (8 bits between the passes, as transforms.v2), or tensor "
        "(floats, as torchvision's first tensor transforms)"};
constexpr OptionInfo kAntialias{.name = "antialias", .doc = "Widen the filter when downscaling (bilinear and bicubic), as Pillow does"};
constexpr OptionInfo kFill{.name = "fill", .doc = "Value of new pixels: one number, or one per channel, in the units of the image"};
constexpr OptionInfo kPaddingMode{
    .name = "padding_mode",
    .doc = "constant: `fill`; edge: the nearest pixel; reflect, symmetric: the mirrored image, without or with its edge pixels"};
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
  fail(ErrorCode::kRecipe, "[", item, "] `", key, "` has ", size, " values; expected ", text);
}

void check_range(std::string_view item, std::string_view key, const std::vector<double>& range, double low) {
  check_list(item, key, range.size(), {2});
  GALLEY_CHECK(range[0] >= low && range[0] <= range[1] && std::isfinite(range[1]), "[", item, "] `", key, "` is [", range[0], ", ",
               range[1], "]; expected two increasing numbers of at least ", low);
}

void check_jitter(std::string_view key, const std::vector<double>& value, double low, double high) {
  check_list("color_jitter", key, value.size(), {1, 2});
  if (value.size() == 1) {
    GALLEY_CHECK(value[0] >= 0 && value[0] <= high, "[color_jitter] `", key, "` is ", value[0], "; a single number must be at least 0",
                 key == "hue" ? " and at most 0.5" : "");
  } else {
    GALLEY_CHECK(low <= value[0] && value[0] <= value[1] && value[1] <= high, "[color_jitter] `", key, "` is [", value[0], ", ", value[1],
                 "]; expected two increasing numbers in ", low, " .. ", high);
  }
}

/// The image that masks, boxes and keypoints refer to.
const FieldType* first_image(std::span<const FieldType> fields) {
  const auto found = std::find_if(fields.begin(), fields.end(), [](const FieldType& type) { return type.kind == FieldKind::kImage; });
  return found == fields.end() ? nullptr : &*found;
}

/// Whether an item that changes `field` changes both images of a pair.
bool changes_pair(const std::string& field, std::span<const FieldType> fields) {
  return field == "input" && find_field(fields, field) == nullptr && find_field(fields, kPair[0]) != nullptr &&
         find_field(fields, kPair[1]) != nullptr;
}

}  // namespace

ComponentKinds data_transforms() {
  static constexpr std::array<ComponentKind, 24> kKinds{{
      {"resize", "resize, antialiased", make_options<Resize>},
      {"center_crop", "cut out the middle", make_options<CenterCrop>},
      {"random_crop", "cut out a random part of fixed size, after padding", make_options<RandomCrop>},
      {"random_resized_crop", "cut out a random part of random size and shape, and resize it", make_options<RandomResizedCrop>},
      {"random_horizontal_flip", "mirror left and right", make_options<RandomHorizontalFlip>},
      {"random_vertical_flip", "mirror top and bottom", make_options<RandomVerticalFlip>},
      {"random_iou_crop", "cut out a random part that overlaps a box well, for detection", make_options<RandomIouCrop>},
      {"random_zoom_out", "put the image on a larger one", make_options<RandomZoomOut>},
      {"scale_jitter", "resize by a random factor", make_options<ScaleJitter>},
      {"mosaic", "join four images to one, for detection and segmentation", make_options<Mosaic>},
      {"pad_to", "put images of different sizes on a canvas, for detection", make_options<PadTo>},
      {"sanitize_bounding_boxes", "drop small boxes", make_options<SanitizeBoundingBoxes>},
      {"random_photometric_distort", "change colors at random, as detectors are trained", make_options<RandomPhotometricDistort>},
      {"normalize", "(x - mean) / std, of pixels in 0..1", make_options<Normalize>},
      {"to_dtype", "convert pixels", make_options<ToDtype>},
      {"color_jitter", "change brightness, contrast, saturation and hue in random order", make_options<ColorJitter>},
      {"random_erasing", "overwrite a random rectangle", make_options<RandomErasing>},
      {"auto_augment", "a random sub-policy of AutoAugment", make_options<AutoAugment>},
      {"grayscale", "convert to gray values", make_options<Grayscale>},
      {"pad", "add pixels at the borders, or room for tokens at the end", make_options<Pad>},
      {"bucket", "pad training batches to one of several lengths", make_options<Bucket>},
      {"pack", "join texts and cut them into blocks of one length, for language models", make_options<Pack>},
      {"mask_tokens", "hide some tokens, which become the label", make_options<MaskTokens>},
      {"rename", "give a field another name", make_options<Rename>},
  }};
  return kKinds;
}

int64_t Transform::others(int64_t, RandomStream&) const { return 0; }
void Transform::join(Sample&, std::vector<Sample>, RandomStream&) const { GALLEY_ASSERT(!joins(), "an item that joins overrides join"); }

void ImageTransform::item_options(OptionVisitor& visitor) {
  visitor.option(
      {.name = "field",
       .doc = "Image of the sample that is changed; its masks follow items that move pixels. Two images without `input` change alike"},
      field);
}

std::vector<FieldType> ImageTransform::fields(std::vector<FieldType> in) const {
  if (!changes_pair(field, in)) return fields_of(std::move(in), field);
  for (const std::string_view name : kPair) in = fields_of(std::move(in), std::string(name));
  return in;
}

/// The fields after the item changed the image `name`.
std::vector<FieldType> ImageTransform::fields_of(std::vector<FieldType> in, const std::string& name) const {
  FieldType* changed = find_field(in, name);
  GALLEY_CHECK(changed != nullptr, "the samples have no field '", name, "'; they have ", field_names(in));
  if (changed->kind == FieldKind::kMask) {
    GALLEY_CHECK(motion() == Motion::kMoves, "the field '", name, "' is a mask of classes, but the item changes colors");
    map_size(*changed);
    return in;
  }
  GALLEY_CHECK(changed->kind == FieldKind::kImage, "needs an image; the field '", name, "' holds ", field_kind_name(changed->kind), ": ",
               *changed, name == "input" ? "; samples that are arrays need an empty pipeline" : "");
  GALLEY_CHECK(pixel_input() != PixelInput::kU8 || changed->dtype == DType::kU8, "needs u8 pixels, but '", name, "' has ", changed->dtype,
               "; put it before the items that convert to floats (normalize, to_dtype)");
  if (pixel_input() == PixelInput::kFloat) changed->dtype = DType::kF32;
  // A clip [C,T,H,W] changes as its frames [C,H,W].
  const std::vector<int64_t> before = changed->sample;
  const bool clip = before.size() == 4;
  if (clip) changed->sample.erase(changed->sample.begin() + 1);
  map_image(*changed);
  if (clip) {
    changed->sample.insert(changed->sample.begin() + 1, before[1]);
    return in;
  }
  if (motion() == Motion::kNone || changed != first_image(in)) return in;
  for (FieldType& other : in) {
    const bool places = other.kind == FieldKind::kMask || other.kind == FieldKind::kBoxes || other.kind == FieldKind::kKeypoints ||
                        other.kind == FieldKind::kFlow;
    if (!places) continue;
    GALLEY_CHECK(motion() == Motion::kMoves, "moves the pixels of '", name, "', but cannot move the ", field_kind_name(other.kind),
                 " of the field '", other.name, "'; remove the item");
    if (other.kind == FieldKind::kMask) map_size(other);
    if (other.kind == FieldKind::kFlow) {
      other.sample[1] = changed->sample[1];
      other.sample[2] = changed->sample[2];
    }
  }
  return in;
}

void ImageTransform::map_grid(PixelGrid&, RandomStream&) const {
  GALLEY_ASSERT(motion() == Motion::kNone, "items that move pixels must override map_grid");
}

/// Changes the size of a mask as that of the image.
void ImageTransform::map_size(FieldType& mask) const {
  FieldType image{.name = mask.name, .kind = FieldKind::kImage, .dtype = DType::kU8, .sample = {1, mask.sample[0], mask.sample[1]}};
  map_image(image);
  mask.sample = {image.sample[1], image.sample[2]};
}

void ImageTransform::apply_to_sample(Sample& sample, RandomStream& random) const {
  if (FieldValue* value = sample.find(field)) return change_field(sample, *value, random);
  for (const std::string_view name : kPair) {
    FieldValue* value = sample.find(name);
    GALLEY_ASSERT(value != nullptr, "no field ", field);
    RandomStream same = random;
    change_field(sample, *value, same);
  }
}

void ImageTransform::change_field(Sample& sample, FieldValue& value, RandomStream& random) const {
  if (Mask* mask = std::get_if<Mask>(&value)) {
    apply_to_mask(mask->classes, random);
    return;
  }
  if (Clip* clip = std::get_if<Clip>(&value)) {
    for (Image& frame : clip->frames) {
      RandomStream same = random;
      change_image(frame, same);
    }
    return;
  }
  Image& image = std::get<Image>(value);
  if (motion() == Motion::kMoves) {
    // Masks and boxes belong to the first image of a sample.
    const auto first = std::find_if(sample.fields().begin(), sample.fields().end(),
                                    [](const auto& item) { return std::holds_alternative<Image>(item.second); });
    if (&first->second == &value) move_places(sample, image, random);
  }
  change_image(image, random);
}

/// apply(), with the pixels that it needs.
void ImageTransform::change_image(Image& image, RandomStream& random) const {
  if (pixel_input() == PixelInput::kFloat && image.dtype() == DType::kU8) image = image.to(DType::kF32, true);
  GALLEY_CHECK(pixel_input() != PixelInput::kU8 || image.dtype() == DType::kU8, "needs u8 pixels; the image is ", image.str());
  apply(image, random);
}

/// Moves the masks of objects as apply() moves their image.
void ImageTransform::move_masks(ObjectMasks& objects, const Image& image, const RandomStream& random) const {
  for (Image& mask : objects.masks) {
    RandomStream same = random;
    apply_to_mask(mask, same);
    uint8_t* pixels = mask.as<uint8_t>();
    std::replace(pixels, pixels + mask.values(), Mask::kNoClass, uint8_t{0});
  }
  RandomStream same = random;
  PixelGrid grid(image.height(), image.width());
  map_grid(grid, same);
  objects.height = grid.height;
  objects.width = grid.width;
}

/// Moves masks and boxes as apply() moves the image. Boxes of several fields drop their rows separately.
void ImageTransform::move_places(Sample& sample, const Image& image, const RandomStream& random) const {
  for (auto& [name, other] : sample.fields()) {
    RandomStream same = random;
    if (Mask* mask = std::get_if<Mask>(&other)) {
      GALLEY_CHECK_INPUT(mask->classes.height() == image.height() && mask->classes.width() == image.width(), "the mask '", name, "' has ",
                         mask->classes.height(), " x ", mask->classes.width(), " pixels, but its image '", field, "' ", image.height(),
                         " x ", image.width());
      apply_to_mask(mask->classes, same);
    } else if (Boxes* boxes = std::get_if<Boxes>(&other)) {
      PixelGrid grid(image.height(), image.width());
      map_grid(grid, same);
      move_boxes(sample, *boxes, grid);
    } else if (ObjectMasks* objects = std::get_if<ObjectMasks>(&other)) {
      move_masks(*objects, image, random);
    } else if (Keypoints* keypoints = std::get_if<Keypoints>(&other)) {
      PixelGrid grid(image.height(), image.width());
      map_grid(grid, same);
      move_keypoints(*keypoints, grid);
    } else if (Flow* flow = std::get_if<Flow>(&other)) {
      PixelGrid grid(image.height(), image.width());
      map_grid(grid, same);
      flow->vectors = moved_flow(flow->vectors, grid);
    }
  }
}

void Rename::options(OptionVisitor& visitor) {
  visitor.option({.name = "from", .doc = "Current name of the field", .required = true}, from);
  visitor.option({.name = "to", .doc = "New name: that of the model's input or of the task's target", .required = true}, to);
}

void Rename::check() const { GALLEY_CHECK(!from.empty() && !to.empty(), "[rename] `from` and `to` must not be empty"); }

std::vector<FieldType> Rename::fields(std::vector<FieldType> in) const {
  FieldType* renamed = find_field(in, from);
  GALLEY_CHECK(renamed != nullptr, "the samples have no field '", from, "'; they have ", field_names(in));
  GALLEY_CHECK(from == to || find_field(in, to) == nullptr, "the samples already have a field '", to, "'; they have ", field_names(in));
  renamed->name = to;
  return in;
}

void Rename::apply_to_sample(Sample& sample, RandomStream&) const {
  bool found = false;
  for (auto& [name, value] : sample.fields()) {
    if (name == from) {
      name = to;
      found = true;
    } else if (Boxes* boxes = std::get_if<Boxes>(&value)) {
      std::replace(boxes->companions.begin(), boxes->companions.end(), from, to);
    }
  }
  GALLEY_ASSERT(found, "no field ", from);
}

std::vector<FieldType> Pad::fields(std::vector<FieldType> in) const {
  if (to == 0) return ImageTransform::fields(std::move(in));
  bool padded = false;
  for (FieldType& type : in) {
    if (type.layout != FieldLayout::kPadded) continue;
    type.sample.front() = to;
    type.lengths.clear();
    padded = true;
  }
  GALLEY_CHECK(padded, "[pad] `to` is for fields of different length; the samples have ", field_names(in));
  return in;
}

void Pad::apply_to_sample(Sample& sample, RandomStream& random) const {
  if (to == 0) ImageTransform::apply_to_sample(sample, random);
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
  visitor.option({.name = "max_size",
                  .doc = "Largest length of the longer edge if `size` is one number; 0: no limit",
                  .unit = "pixels",
                  .min = 0,
                  .max = 16384},
                 max_size);
  visitor.choice({.name = "rule",
                  .doc = "Rounding if `size` is one number. edge: the smaller edge becomes `size`, or the longer one `max_size`, as in "
                         "torchvision's Resize; scale: one factor for both edges, rounded down, as in torchvision's detectors"},
                 rule, kResizeRuleNames);
  visitor.choice(kInterpolation, interpolation, kInterpolationNames);
  visitor.option(kAntialias, antialias);
  visitor.choice(kBackend, backend, kResizeBackendNames);
  item_options(visitor);
}

void Resize::check() const {
  check_list("resize", "size", size.size(), {1, 2});
  GALLEY_CHECK(max_size == 0 || (size.size() == 1 && max_size > size[0]), "[resize] `max_size` ", max_size,
               " needs `size` to be one number below it");
}

void CenterCrop::options(OptionVisitor& visitor) {
  visitor.option(kSize, size);
  item_options(visitor);
}
void CenterCrop::check() const { check_list("center_crop", "size", size.size(), {1, 2}); }

void Pad::options(OptionVisitor& visitor) {
  OptionInfo info = kPadding;
  info.main = true;
  visitor.option(info, padding);
  visitor.option({.name = "to",
                  .doc = "Instead of pixels: the number of tokens to which all padded fields are padded; 0: pixels",
                  .unit = "tokens",
                  .min = 0},
                 to);
  visitor.option(kFill, fill);
  visitor.choice(kPaddingMode, padding_mode, kPaddingModeNames);
  item_options(visitor);
}

void Pad::check() const {
  GALLEY_CHECK(to == 0 || padding.empty(), "[pad] has both `padding` and `to`; remove one of them");
  if (to > 0) return;
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
  visitor.option({.name = "scale", .doc = "Smallest and largest fraction of the image's area", .min = 0, .max = 1}, scale);
  visitor.option({.name = "ratio", .doc = "Smallest and largest width / height; drawn on a logarithmic scale", .min = 0}, ratio);
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
  visitor.option(kApplied, p);
  item_options(visitor);
}
void RandomVerticalFlip::options(OptionVisitor& visitor) {
  visitor.option(kApplied, p);
  item_options(visitor);
}

void Normalize::options(OptionVisitor& visitor) {
  visitor.option({.name = "mean", .doc = "One per channel, or one for all channels", .required = true}, mean);
  visitor.option({.name = "std", .doc = "One per channel, or one for all channels; not 0", .required = true}, std);
  item_options(visitor);
}

void Normalize::check() const {
  GALLEY_CHECK(!mean.empty() && mean.size() == std.size(), "[normalize] `mean` has ", mean.size(), " values, but `std` has ", std.size());
  for (const double value : std)
    GALLEY_CHECK(static_cast<float>(value) != 0.0f && std::isfinite(value), "[normalize] `std` must be finite and not 0, but contains ",
                 value);
}

void Normalize::map_image(FieldType& image) const {
  GALLEY_CHECK(mean.size() == 1 || image.sample[0] == static_cast<int64_t>(mean.size()), "has ", mean.size(),
               " values of `mean`, the field '", image.name, "' has ", image.sample[0], " channels");
}

void ToDtype::map_image(FieldType& image) const { image.dtype = dtype == PixelType::kF32 ? DType::kF32 : DType::kU8; }
void ToDtype::options(OptionVisitor& visitor) {
  visitor.choice({.name = "dtype", .doc = "Type of the pixels", .main = true}, dtype, kPixelTypeNames);
  visitor.option({.name = "scale", .doc = "0..255 to 0..1 and back; without it values stay"}, scale);
  item_options(visitor);
}

void ColorJitter::options(OptionVisitor& visitor) {
  visitor.option({.name = "brightness", .doc = "Range of the random factor: x for 1 - x .. 1 + x, or [low, high]"}, brightness);
  visitor.option({.name = "contrast", .doc = "Range of the random factor, as for brightness"}, contrast);
  visitor.option({.name = "saturation", .doc = "Range of the random factor, as for brightness"}, saturation);
  visitor.option({.name = "hue",
                  .doc = "Range of the random hue shift, in turns of the color wheel: x for -x .. x, or [low, high]",
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
void Grayscale::map_image(FieldType& image) const { image.sample[0] = num_output_channels; }
void Grayscale::check() const {
  GALLEY_CHECK(num_output_channels == 1 || num_output_channels == 3, "[grayscale] `num_output_channels` is ", num_output_channels,
               "; it must be 1 or 3");
}

void RandomErasing::options(OptionVisitor& visitor) {
  visitor.option(kApplied, p);
  visitor.option({.name = "scale", .doc = "Smallest and largest fraction of the image's area", .min = 0, .max = 1}, scale);
  visitor.option({.name = "ratio", .doc = "Smallest and largest height / width; drawn on a logarithmic scale", .min = 0}, ratio);
  visitor.option({.name = "value", .doc = "One number, one per channel, or random (normally distributed)"}, value);
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
    GALLEY_CHECK(good || (text == "random" && value.size() == 1), "[random_erasing] `value` contains '", text,
                 "'; expected numbers, or random");
  }
}

void AutoAugment::options(OptionVisitor& visitor) {
  visitor.choice({.name = "policy", .doc = "The data set that the policy was learned on", .main = true}, policy, kPolicyNames);
  visitor.choice({.name = "interpolation", .doc = "nearest or bilinear"}, interpolation, kInterpolationNames);
  visitor.option({.name = "fill", .doc = "Value of new pixels (0..255): one number, or one per channel; default: black"}, fill);
  item_options(visitor);
}

void AutoAugment::check() const {
  GALLEY_CHECK(interpolation == Interpolation::kNearest || interpolation == Interpolation::kBilinear,
               "[auto_augment] `interpolation` must be nearest or bilinear");
  check_list("auto_augment", "fill", fill.size(), {0, 1, 3});
}

}  // namespace galley
