#include "libcore/data/mosaic.h"

#include <algorithm>
#include <array>

#include "libcore/data/box_transforms.h"

namespace galley {
namespace {

/// The part of an image of that size that a canvas holds, from `region`, the canvas in the coordinates of the image.
struct Overlap {
  int64_t top, left, bottom, right;
  Overlap(const Region& region, int64_t height, int64_t width)
      : top(std::max<int64_t>(0, region.top)),
        left(std::max<int64_t>(0, region.left)),
        bottom(std::min(height, region.top + region.height)),
        right(std::min(width, region.left + region.width)) {}
};

/// Copies the image to where it is in the canvas.
void paste(const Image& image, const Region& region, Image& canvas) {
  const Overlap part(region, image.height(), image.width());
  const int64_t channels = image.channels();
  if (part.left >= part.right) return;
  for (int64_t y = part.top; y < part.bottom; ++y)
    std::copy_n(image.row<uint8_t>(y) + part.left * channels, (part.right - part.left) * channels,
                canvas.row<uint8_t>(y - region.top) + (part.left - region.left) * channels);
}

/// An image of one color per channel.
Image plain_image(int64_t height, int64_t width, int64_t channels, const std::vector<double>& fill) {
  Image image(DType::kU8, height, width, channels);
  uint8_t* to = image.as<uint8_t>();
  for (int64_t i = 0; i < image.values(); ++i)
    to[i] = to_pixel<uint8_t>(static_cast<float>(fill.size() == 1 ? fill[0] : fill[static_cast<size_t>(i % channels)]));
  return image;
}

/// The rows of both tensors.
Tensor joined_rows(const Tensor& first, const Tensor& second) {
  Shape shape = first.shape();
  shape[0] += second.shape()[0];
  Tensor both(first.dtype(), shape);
  auto* to = static_cast<std::byte*>(both.data());
  to = std::copy_n(static_cast<const std::byte*>(first.data()), first.bytes(), to);
  std::copy_n(static_cast<const std::byte*>(second.data()), second.bytes(), to);
  return both;
}

/// Appends the objects of a field of another sample.
void append(FieldValue& to, FieldValue& from) {
  if (auto* masks = std::get_if<ObjectMasks>(&to)) {
    auto& others = std::get<ObjectMasks>(from);
    std::move(others.masks.begin(), others.masks.end(), std::back_inserter(masks->masks));
  } else if (auto* keypoints = std::get_if<Keypoints>(&to)) {
    keypoints->points = joined_rows(keypoints->points, std::get<Keypoints>(from).points);
  } else {
    to = joined_rows(std::get<Tensor>(to), std::get<Tensor>(from));
  }
}

/// Moves boxes, key points and the masks of objects to the canvas.
void move_objects(Sample& sample, const Region& region, const PixelGrid& grid) {
  for (auto& [name, value] : sample.fields()) {
    if (Keypoints* keypoints = std::get_if<Keypoints>(&value)) move_keypoints(*keypoints, grid);
    ObjectMasks* objects = std::get_if<ObjectMasks>(&value);
    if (objects == nullptr) continue;
    for (Image& mask : objects->masks) mask = crop(mask, region);
    objects->height = region.height;
    objects->width = region.width;
  }
  if (Boxes* boxes = sample.boxes()) move_boxes(sample, *boxes, grid);
}

}  // namespace

void Mosaic::options(OptionVisitor& visitor) {
  visitor.option({.name = "size",
                  .doc = "[height, width] that each of the four images fits into, or one number for a square; the result has twice this "
                         "size: resize or random_crop may follow",
                  .unit = "pixels",
                  .min = 1,
                  .max = 8192,
                  .required = true,
                  .main = true},
                 size);
  visitor.option(
      {.name = "fill", .doc = "Value of pixels without an image, 0 to 255: one number, or one per channel", .min = 0, .max = 255}, fill);
  visitor.option({.name = "p", .doc = "Probability", .min = 0, .max = 1}, p);
  visitor.option({.name = "epochs", .doc = "Epochs that have mosaics, from the first; 0: all", .min = 0}, epochs);
  item_options(visitor);
}

void Mosaic::check() const {
  GALLEY_CHECK(size.size() == 1 || size.size() == 2, "[mosaic] `size` has ", size.size(), " values; expected 1 or 2");
  GALLEY_CHECK(fill.size() == 1 || fill.size() == 3, "[mosaic] `fill` has ", fill.size(), " values; expected 1 or 3");
}

std::vector<FieldType> Mosaic::fields(std::vector<FieldType> in) const {
  FieldType* image = find_field(in, field);
  GALLEY_CHECK(image != nullptr && image->kind == FieldKind::kImage && image->sample.size() == 3, "needs an image `", field,
               "`; the samples have ", field_names(in));
  GALLEY_CHECK(image->dtype == DType::kU8, "needs u8 pixels, but '", field, "' has ", image->dtype,
               "; put it before the items that convert to floats (normalize, to_dtype)");
  const bool always = p == 1 && epochs == 0;
  const std::vector<int64_t> sides = always ? std::vector{2 * size[0], 2 * size.back()} : std::vector{kOpenSize, kOpenSize};
  image->sample = {image->sample[0], sides[0], sides[1]};
  bool places = false;
  for (FieldType& type : in) {
    if (type.kind == FieldKind::kMask && type.layout == FieldLayout::kDense) type.sample = sides;
    if (type.layout == FieldLayout::kJagged) type.capacity *= static_cast<int64_t>(kImages);
    places = places || type.kind == FieldKind::kMask || type.kind == FieldKind::kBoxes;
  }
  GALLEY_CHECK(places, "needs boxes or a mask of classes; the samples have ", field_names(in));
  return in;
}

int64_t Mosaic::others(int64_t epoch, RandomStream& random) const {
  const bool drawn = random.uniform() < p;
  return drawn && (epochs == 0 || epoch < epochs) ? static_cast<int64_t>(kImages) - 1 : 0;
}

PixelGrid Mosaic::resize_image(Sample& sample, size_t number, int64_t center_y, int64_t center_x) const {
  const Image& image = std::get<Image>(*sample.find(field));
  const double factor = std::min(static_cast<double>(size[0]) / static_cast<double>(image.height()),
                                 static_cast<double>(size.back()) / static_cast<double>(image.width()));
  const auto side = [&](int64_t old, int64_t most) {
    return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(old) * factor + 0.5), 1, most);
  };
  Resize resize;
  resize.field = field;
  resize.size = {side(image.height(), size[0]), side(image.width(), size.back())};
  RandomStream unused(0, "");
  resize.apply_to_sample(sample, unused);
  PixelGrid grid(resize.size[0], resize.size[1]);
  const int64_t top = number < 2 ? center_y - grid.height : center_y, left = number % 2 == 0 ? center_x - grid.width : center_x;
  grid.crop({-top, -left, 2 * size[0], 2 * size.back()});
  return grid;
}

void Mosaic::join(Sample& sample, std::vector<Sample> others, RandomStream& random) const {
  GALLEY_ASSERT(others.size() + 1 == kImages);
  const auto center = [&](int64_t side) { return static_cast<int64_t>(static_cast<double>(side) * random.uniform(0.5, 1.5)); };
  const int64_t y = center(size[0]), x = center(size.back());
  std::array<Sample*, kImages> samples{&sample, &others[0], &others[1], &others[2]};
  const int64_t channels = std::get<Image>(*sample.find(field)).channels();
  Image canvas = plain_image(2 * size[0], 2 * size.back(), channels, fill);
  std::vector<std::pair<std::string, Image>> masks;
  for (const auto& [name, value] : sample.fields())
    if (std::holds_alternative<Mask>(value)) masks.emplace_back(name, plain_image(canvas.height(), canvas.width(), 1, {Mask::kNoClass}));
  for (size_t i = 0; i < kImages; ++i) {
    const PixelGrid grid = resize_image(*samples[i], i, y, x);
    const Region region{static_cast<int64_t>(grid.top), static_cast<int64_t>(grid.left), grid.height, grid.width};
    const Image& image = std::get<Image>(*samples[i]->find(field));
    GALLEY_CHECK_INPUT(image.channels() == channels, "[mosaic] images of ", channels, " and of ", image.channels(),
                       " channels cannot be joined");
    paste(image, region, canvas);
    for (auto& [name, classes] : masks) paste(std::get<Mask>(*samples[i]->find(name)).classes, region, classes);
    move_objects(*samples[i], region, grid);
  }
  *sample.find(field) = std::move(canvas);
  for (auto& [name, classes] : masks) std::get<Mask>(*sample.find(name)).classes = std::move(classes);
  Boxes* boxes = sample.boxes();
  for (size_t i = 0; boxes != nullptr && i < others.size(); ++i) {
    boxes->corners = joined_rows(boxes->corners, others[i].boxes()->corners);
    for (const std::string& name : boxes->companions) append(*sample.find(name), *others[i].find(name));
  }
}

}  // namespace galley
