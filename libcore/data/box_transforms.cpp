#include "libcore/data/box_transforms.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "libcore/tensor/field_names.h"

namespace galley {
namespace {

void check_increasing(std::string_view item, std::string_view key, const std::vector<double>& range, double low) {
  GALLEY_CHECK(range.size() == 2, "[", item, "] `", key, "` has ", range.size(), " values; expected 2");
  GALLEY_CHECK(range[0] >= low && range[0] <= range[1] && std::isfinite(range[1]), "[", item, "] `", key, "` is [", range[0], ", ",
               range[1], "]; expected two increasing numbers of at least ", low);
}

/// A random multiple of `size`, truncated as in torchvision.
int64_t truncated(int64_t size, double factor) { return static_cast<int64_t>(static_cast<double>(size) * factor); }

struct Box {
  float left, top, right, bottom;
};
const Box* boxes_in(const Tensor& corners) { return reinterpret_cast<const Box*>(corners.data_as<float>()); }
Box* boxes_in(Tensor& corners) { return reinterpret_cast<Box*>(corners.data_as<float>()); }

/// The rows of a contiguous tensor [n,...] that are marked.
Tensor kept_rows(const Tensor& from, const std::vector<bool>& keep) {
  Shape shape = from.shape();
  shape[0] = std::count(keep.begin(), keep.end(), true);
  Tensor to(from.dtype(), shape);
  const auto row = keep.empty() ? 0 : static_cast<size_t>(from.bytes()) / keep.size();
  auto* at = static_cast<std::byte*>(to.data());
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i]) at = std::copy_n(static_cast<const std::byte*>(from.data()) + i * row, row, at);
  }
  return to;
}

}  // namespace

void keep_boxes(Sample& sample, Boxes& boxes, const std::vector<bool>& keep) {
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return;
  boxes.corners = kept_rows(boxes.corners, keep);
  for (const std::string& name : boxes.companions) {
    FieldValue* companion = sample.find(name);
    GALLEY_ASSERT(companion != nullptr, "no field ", name);
    if (auto* objects = std::get_if<ObjectMasks>(companion)) {
      std::vector<Image> kept;
      for (size_t i = 0; i < keep.size(); ++i)
        if (keep[i]) kept.push_back(std::move(objects->masks[i]));
      objects->masks = std::move(kept);
      continue;
    }
    auto* keypoints = std::get_if<Keypoints>(companion);
    Tensor& values = keypoints != nullptr ? keypoints->points : std::get<Tensor>(*companion);
    values = kept_rows(values, keep);
  }
}

void move_keypoints(Keypoints& keypoints, const PixelGrid& grid) {
  const Tensor from = keypoints.points;
  keypoints.points = Tensor(from.dtype(), from.shape());
  const int64_t count = from.shape()[1];
  const bool mirrors = (grid.step_x < 0) != (grid.step_y < 0);
  for (int64_t i = 0; i < from.shape()[0] * count; ++i) {
    const int64_t point = i % count, source = i - point + (mirrors ? keypoints.mirrored[static_cast<size_t>(point)] : point);
    const float* old = from.data_as<float>() + 3 * source;
    float* to = keypoints.points.data_as<float>() + 3 * i;
    const double x = (static_cast<double>(old[0]) - grid.left) / grid.step_x, y = (static_cast<double>(old[1]) - grid.top) / grid.step_y;
    const bool inside = x >= 0 && y >= 0 && x <= static_cast<double>(grid.width) && y <= static_cast<double>(grid.height);
    const bool labeled = old[2] > 0 && inside;
    to[0] = labeled ? static_cast<float>(x) : 0;
    to[1] = labeled ? static_cast<float>(y) : 0;
    to[2] = labeled ? old[2] : 0;
  }
}

void move_boxes(Sample& sample, Boxes& boxes, const PixelGrid& grid) {
  boxes.corners = boxes.corners.clone();
  const int64_t count = boxes.corners.shape()[0];
  std::vector<bool> keep;
  const auto moved = [](float at, double start, double step, int64_t size) {
    return static_cast<float>(std::clamp((static_cast<double>(at) - start) / step, 0.0, static_cast<double>(size)));
  };
  for (Box* box = boxes_in(boxes.corners); box != boxes_in(boxes.corners) + count; ++box) {
    const float x1 = moved(box->left, grid.left, grid.step_x, grid.width), x2 = moved(box->right, grid.left, grid.step_x, grid.width);
    const float y1 = moved(box->top, grid.top, grid.step_y, grid.height), y2 = moved(box->bottom, grid.top, grid.step_y, grid.height);
    *box = {std::min(x1, x2), std::min(y1, y2), std::max(x1, x2), std::max(y1, y2)};
    keep.push_back(box->right > box->left && box->bottom > box->top);
  }
  keep_boxes(sample, boxes, keep);
}

void RandomIouCrop::options(OptionVisitor& visitor) {
  visitor.option({.name = "min_scale", .doc = "Smallest side of the part, as a fraction of the image's", .min = 0.01, .max = 1}, min_scale);
  visitor.option({.name = "max_scale", .doc = "Largest side of the part, as a fraction of the image's", .min = 0.01, .max = 1}, max_scale);
  visitor.option({.name = "min_aspect_ratio", .doc = "Smallest width / height of the part", .min = 0}, min_aspect_ratio);
  visitor.option({.name = "max_aspect_ratio", .doc = "Largest width / height of the part", .min = 0}, max_aspect_ratio);
  visitor.option({.name = "sampler_options",
                  .doc = "Intersections over union of the part with a box, of which one is drawn; 1 or more: the image stays",
                  .min = 0},
                 sampler_options);
  visitor.option({.name = "trials", .doc = "Parts that are tried before another option is drawn", .min = 1}, trials);
  item_options(visitor);
}

void RandomIouCrop::check() const {
  check_increasing("random_iou_crop", "min_scale and max_scale", {min_scale, max_scale}, 0);
  check_increasing("random_iou_crop", "min_aspect_ratio and max_aspect_ratio", {min_aspect_ratio, max_aspect_ratio}, 0);
  const bool ends = std::any_of(sampler_options.begin(), sampler_options.end(), [](double option) { return option >= 1; });
  GALLEY_CHECK(ends, "[random_iou_crop] `sampler_options` needs a number of at least 1, which leaves the image as it is");
}

std::vector<FieldType> RandomIouCrop::fields(std::vector<FieldType> in) const {
  FieldType* image = find_field(in, field);
  GALLEY_CHECK(image != nullptr && image->kind == FieldKind::kImage, "needs an image `", field, "`; the samples have ", field_names(in));
  const bool boxes = std::any_of(in.begin(), in.end(), [](const FieldType& type) { return type.kind == FieldKind::kBoxes; });
  GALLEY_CHECK(boxes, "needs boxes; the samples have ", field_names(in));
  for (FieldType& type : in) {
    if (type.kind == FieldKind::kMask) type.sample = {kOpenSize, kOpenSize};
  }
  image->sample = {image->sample[0], kOpenSize, kOpenSize};
  return in;
}

bool RandomIouCrop::draw(const Tensor& corners, int64_t height, int64_t width, RandomStream& random, Region& part,
                         std::vector<bool>& inside) const {
  const std::span<const Box> boxes(boxes_in(corners), static_cast<size_t>(corners.shape()[0]));
  while (!boxes.empty()) {
    const double least = sampler_options[random.below(sampler_options.size())];
    if (least >= 1) return false;
    for (int64_t trial = 0; trial < trials; ++trial) {
      part.width = truncated(width, random.uniform(min_scale, max_scale));
      part.height = truncated(height, random.uniform(min_scale, max_scale));
      if (part.width == 0 || part.height == 0) continue;
      const double ratio = static_cast<double>(part.width) / static_cast<double>(part.height);
      if (ratio < min_aspect_ratio || ratio > max_aspect_ratio) continue;
      part.left = truncated(width - part.width, random.uniform());
      part.top = truncated(height - part.height, random.uniform());
      const auto left = static_cast<float>(part.left), top = static_cast<float>(part.top);
      const auto right = static_cast<float>(part.left + part.width), bottom = static_cast<float>(part.top + part.height);
      inside.clear();
      float most = -1;
      for (const Box& box : boxes) {
        const float x = 0.5f * (box.left + box.right), y = 0.5f * (box.top + box.bottom);
        inside.push_back(left < x && x < right && top < y && y < bottom);
        if (!inside.back()) continue;
        const float both =
            (std::min(box.right, right) - std::max(box.left, left)) * (std::min(box.bottom, bottom) - std::max(box.top, top));
        most = std::max(most, both / ((box.right - box.left) * (box.bottom - box.top) + (right - left) * (bottom - top) - both));
      }
      if (most >= 0 && static_cast<double>(most) >= least) return true;
    }
  }
  return false;
}

void RandomIouCrop::apply_to_sample(Sample& sample, RandomStream& random) const {
  Boxes* boxes = sample.boxes();
  FieldValue* value = sample.find(field);
  GALLEY_ASSERT(boxes != nullptr && value != nullptr);
  auto& image = std::get<Image>(*value);
  Region part;
  std::vector<bool> inside;
  if (!draw(boxes->corners, image.height(), image.width(), random, part, inside)) return;
  PixelGrid grid(image.height(), image.width());
  grid.crop(part);
  image = crop(image, part);
  for (auto& [name, other] : sample.fields()) {
    if (Mask* mask = std::get_if<Mask>(&other)) mask->classes = crop(mask->classes, part, Mask::kNoClass);
    if (Keypoints* keypoints = std::get_if<Keypoints>(&other)) move_keypoints(*keypoints, grid);
    ObjectMasks* objects = std::get_if<ObjectMasks>(&other);
    if (objects == nullptr) continue;
    for (Image& mask : objects->masks) mask = crop(mask, part);
    objects->height = part.height;
    objects->width = part.width;
  }
  keep_boxes(sample, *boxes, inside);
  move_boxes(sample, *boxes, grid);
}

void RandomZoomOut::options(OptionVisitor& visitor) {
  visitor.option({.name = "fill", .doc = "Value of new pixels: one number, or one per channel, in the units of the image"}, fill);
  visitor.option({.name = "side_range", .doc = "Smallest and largest factor of the sides", .min = 1}, side_range);
  visitor.option(kApplied, p);
  item_options(visitor);
}

void RandomZoomOut::check() const {
  check_increasing("random_zoom_out", "side_range", side_range, 1);
  GALLEY_CHECK(fill.size() == 1 || fill.size() == 3, "[random_zoom_out] `fill` has ", fill.size(), " values; expected 1 or 3");
}

Region RandomZoomOut::draw(int64_t height, int64_t width, RandomStream& random) const {
  if (random.uniform() >= p) return {0, 0, height, width};
  const double factor = random.uniform(side_range[0], side_range[1]);
  const int64_t new_width = truncated(width, factor), new_height = truncated(height, factor);
  const int64_t left = truncated(new_width - width, random.uniform()), top = truncated(new_height - height, random.uniform());
  return {-top, -left, new_height, new_width};
}

void RandomZoomOut::apply(Image& image, RandomStream& random) const {
  const Region region = draw(image.height(), image.width(), random);
  if (region.height == image.height() && region.width == image.width()) return;
  Pad pad;
  pad.fill = fill;
  pad.padding = {-region.left, -region.top, region.width + region.left - image.width(), region.height + region.top - image.height()};
  image = pad_image(image, pad);
}

void RandomZoomOut::apply_to_mask(Image& mask, RandomStream& random) const {
  RandomZoomOut without_class = *this;
  without_class.fill = {Mask::kNoClass};
  without_class.apply(mask, random);
}
void RandomZoomOut::map_image(FieldType& image) const { image.sample = {image.sample[0], kOpenSize, kOpenSize}; }
void RandomZoomOut::map_grid(PixelGrid& grid, RandomStream& random) const { grid.crop(draw(grid.height, grid.width, random)); }

void PadTo::options(OptionVisitor& visitor) {
  visitor.option({.name = "size",
                  .doc = "[height, width] of the canvas, or one number for a square; images must fit into it",
                  .unit = "pixels",
                  .min = 1,
                  .max = 16384,
                  .required = true,
                  .main = true},
                 size);
  visitor.option(
      {.name = "sizes",
       .doc = "smaller canvases, e.g. [800x1088, 1088x800]: a batch gets the smallest that holds its images, else `size`; a program "
              "is compiled for each, before training and where an evaluation or prediction first needs it"},
      sizes);
  item_options(visitor);
}

void PadTo::check() const {
  GALLEY_CHECK(size.size() == 1 || size.size() == 2, "[pad_to] `size` has ", size.size(), " values; expected 1 or 2");
  GALLEY_CHECK(sizes.size() <= kMostSizes, "[pad_to] `sizes` has ", sizes.size(), " canvases; at most ", kMostSizes, " are possible");
  static_cast<void>(canvases());
}

std::vector<int64_t> PadTo::canvases() const {
  if (sizes.empty()) return {};
  std::vector<std::array<int64_t, 2>> list;
  for (const std::string& text : sizes) {
    std::array<int64_t, 2> sides{};
    const char* end = text.data() + text.size();
    const auto rows = std::from_chars(text.data(), end, sides[0]);
    const bool by = rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x';
    const auto columns = by ? std::from_chars(rows.ptr + 1, end, sides[1]) : rows;
    GALLEY_CHECK(by && columns.ec == std::errc() && columns.ptr == end && sides[0] > 0 && sides[1] > 0, "[pad_to] `sizes` has '", text,
                 "'; expected rows and columns, e.g. 800x1088");
    GALLEY_CHECK(sides[0] <= size[0] && sides[1] <= size.back(), "[pad_to] `sizes` has ", text, ", which does not fit into `size`, ",
                 size[0], " x ", size.back());
    list.push_back(sides);
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return std::pair(a[0] * a[1], a[0]) < std::pair(b[0] * b[1], b[0]); });
  list.push_back({size[0], size.back()});
  list.erase(std::unique(list.begin(), list.end()), list.end());
  std::vector<int64_t> flat;
  for (const auto& sides : list) flat.insert(flat.end(), sides.begin(), sides.end());
  return flat;
}

Pad PadTo::margins(int64_t height, int64_t width) const {
  GALLEY_CHECK_INPUT(height <= size[0] && width <= size.back(), "[pad_to] an image of ", height, " x ", width, " pixels does not fit into ",
                     size[0], " x ", size.back(), "; use a larger size, or a smaller max_size of resize before");
  Pad pad;
  pad.padding = {0, 0, size.back() - width, size[0] - height};
  return pad;
}

void PadTo::apply(Image& image, RandomStream&) const {
  const Pad pad = margins(image.height(), image.width());
  if (sizes.empty()) image = pad_image(image, pad);
}

void PadTo::apply_to_mask(Image& mask, RandomStream&) const {
  Pad pad = margins(mask.height(), mask.width());
  pad.fill = {Mask::kNoClass};
  if (sizes.empty()) mask = pad_image(mask, pad);
}

void PadTo::map_image(FieldType& image) const {
  for (size_t i = 0; i < 2; ++i) {
    const int64_t known = image.sample[i + 1], most = i == 0 ? size[0] : size.back();
    GALLEY_CHECK(known == kOpenSize || known <= most, "[pad_to] images of ", image, " do not fit into ", size[0], " x ", size.back());
  }
  image.sample = {image.sample[0], size[0], size.back()};
}

void PadTo::map_grid(PixelGrid& grid, RandomStream&) const {
  if (sizes.empty()) grid.crop({0, 0, size[0], size.back()});
}

std::vector<FieldType> PadTo::fields(std::vector<FieldType> in) const {
  in = ImageTransform::fields(std::move(in));
  GALLEY_CHECK(find_field(in, kImageSize) == nullptr, "the samples already have a field '", kImageSize, "'; use pad_to once");
  for (FieldType& type : in) {
    if (type.kind == FieldKind::kImage || type.kind == FieldKind::kMask) type.lengths = canvases();
  }
  in.push_back({.name = std::string(kImageSize), .kind = FieldKind::kValues, .sample = {2}});
  in.push_back({.name = std::string(kImageExtents), .kind = FieldKind::kValues, .dtype = DType::kI64, .sample = {2}});
  return in;
}

void PadTo::apply_to_sample(Sample& sample, RandomStream& random) const {
  const FieldValue* value = sample.find(field);
  GALLEY_ASSERT(value != nullptr, "no field ", field);
  const auto& image = std::get<Image>(*value);
  Tensor rows_and_columns(DType::kF32, {2});
  const int64_t rows = image.height(), columns = image.width();
  rows_and_columns.data_as<float>()[0] = static_cast<float>(rows);
  rows_and_columns.data_as<float>()[1] = static_cast<float>(columns);
  Tensor extents(DType::kI64, {2});
  const auto rounded = [](int64_t side, int64_t most) { return std::min((side + kMultiple - 1) / kMultiple * kMultiple, most); };
  extents.data_as<int64_t>()[0] = rounded(rows, size[0]);
  extents.data_as<int64_t>()[1] = rounded(columns, size.back());
  ImageTransform::apply_to_sample(sample, random);
  for (auto& [name, other] : sample.fields()) {
    auto* objects = std::get_if<ObjectMasks>(&other);
    for (size_t i = 0; objects != nullptr && sizes.empty() && i < objects->masks.size(); ++i)
      extend_mask(objects->masks[i].as<uint8_t>(), size[0], size.back(), rows, columns);
  }
  sample.set(std::string(kImageSize), std::move(rows_and_columns));
  sample.set(std::string(kImageExtents), std::move(extents));
}

void extend_mask(uint8_t* canvas, int64_t canvas_rows, int64_t canvas_columns, int64_t rows, int64_t columns) {
  if (rows == 0 || columns == 0) return;
  for (int64_t row = 0; row < rows && columns < canvas_columns; ++row)
    canvas[row * canvas_columns + columns] = canvas[row * canvas_columns + columns - 1];
  if (rows < canvas_rows)
    std::copy_n(canvas + (rows - 1) * canvas_columns, std::min(columns + 1, canvas_columns), canvas + rows * canvas_columns);
}

void ScaleJitter::options(OptionVisitor& visitor) {
  visitor.option(
      {.name = "target_size",
       .doc = "[height, width] that the image at factor 1 fits into; of unequal sides, torchvision takes the first for the width",
       .unit = "pixels",
       .min = 1,
       .max = 16384,
       .required = true,
       .main = true},
      target_size);
  visitor.option({.name = "scale_range", .doc = "Smallest and largest factor", .min = 0.001}, scale_range);
  visitor.choice({.name = "interpolation", .doc = "Interpolation between pixels"}, interpolation, kInterpolationNames);
  visitor.option({.name = "antialias", .doc = "Widen the filter when downscaling (bilinear and bicubic), as Pillow does"}, antialias);
  item_options(visitor);
}

void ScaleJitter::check() const {
  GALLEY_CHECK(target_size.size() == 2, "[scale_jitter] `target_size` has ", target_size.size(), " values; expected 2");
  check_increasing("scale_jitter", "scale_range", scale_range, 0);
}

Resize ScaleJitter::draw(int64_t height, int64_t width, RandomStream& random) const {
  const double fit = std::min(static_cast<double>(target_size[1]) / static_cast<double>(height),
                              static_cast<double>(target_size[0]) / static_cast<double>(width));
  const double factor = fit * random.uniform(scale_range[0], scale_range[1]);
  Resize resize;
  resize.size = {std::max<int64_t>(1, truncated(height, factor)), std::max<int64_t>(1, truncated(width, factor))};
  resize.interpolation = interpolation;
  resize.antialias = antialias;
  return resize;
}

void ScaleJitter::apply(Image& image, RandomStream& random) const { draw(image.height(), image.width(), random).apply(image, random); }
void ScaleJitter::apply_to_mask(Image& mask, RandomStream& random) const {
  draw(mask.height(), mask.width(), random).apply_to_mask(mask, random);
}
void ScaleJitter::map_image(FieldType& image) const { image.sample = {image.sample[0], kOpenSize, kOpenSize}; }
void ScaleJitter::map_grid(PixelGrid& grid, RandomStream& random) const { draw(grid.height, grid.width, random).map_grid(grid, random); }

void SanitizeBoundingBoxes::options(OptionVisitor& visitor) {
  visitor.option({.name = "min_size", .doc = "Smallest side of a box that is kept", .unit = "pixels", .min = 0}, min_size);
  visitor.option({.name = "min_area", .doc = "Smallest area of a box that is kept", .unit = "pixels", .min = 0}, min_area);
}

std::vector<FieldType> SanitizeBoundingBoxes::fields(std::vector<FieldType> in) const {
  const bool boxes = std::any_of(in.begin(), in.end(), [](const FieldType& type) { return type.kind == FieldKind::kBoxes; });
  GALLEY_CHECK(boxes, "needs boxes; the samples have ", field_names(in));
  return in;
}

void SanitizeBoundingBoxes::apply_to_sample(Sample& sample, RandomStream&) const {
  Boxes* boxes = sample.boxes();
  GALLEY_ASSERT(boxes != nullptr);
  std::vector<bool> keep;
  for (const Box& box : std::span(boxes_in(boxes->corners), static_cast<size_t>(boxes->corners.shape()[0]))) {
    const auto width = static_cast<double>(box.right - box.left), height = static_cast<double>(box.bottom - box.top);
    keep.push_back(width >= min_size && height >= min_size && width * height >= min_area);
  }
  keep_boxes(sample, *boxes, keep);
}

void RandomPhotometricDistort::options(OptionVisitor& visitor) {
  visitor.option({.name = "brightness", .doc = "Range of the factor", .min = 0}, brightness);
  visitor.option({.name = "contrast", .doc = "Range of the factor", .min = 0}, contrast);
  visitor.option({.name = "saturation", .doc = "Range of the factor", .min = 0}, saturation);
  visitor.option({.name = "hue", .doc = "Range of the shift, in turns of the color wheel", .min = -0.5, .max = 0.5}, hue);
  visitor.option(kApplied, p);
  item_options(visitor);
}

void RandomPhotometricDistort::check() const {
  check_increasing("random_photometric_distort", "brightness", brightness, 0);
  check_increasing("random_photometric_distort", "contrast", contrast, 0);
  check_increasing("random_photometric_distort", "saturation", saturation, 0);
  check_increasing("random_photometric_distort", "hue", hue, -0.5);
}

void RandomPhotometricDistort::apply(Image& image, RandomStream& random) const {
  struct Change {
    const std::vector<double>& range;
    void (*adjust)(Image&, double);
  };
  const Change changes[] = {
      {brightness, adjust_brightness}, {contrast, adjust_contrast}, {saturation, adjust_saturation}, {hue, adjust_hue}};
  std::array<double, 4> factor{};
  std::array<bool, 4> changed{};
  for (size_t i = 0; i < 4; ++i) {
    changed[i] = random.uniform() < p;
    if (changed[i]) factor[i] = random.uniform(changes[i].range[0], changes[i].range[1]);
  }
  const bool contrast_first = random.uniform() < 0.5;
  const std::array<size_t, 4> order = contrast_first ? std::array<size_t, 4>{0, 1, 2, 3} : std::array<size_t, 4>{0, 2, 3, 1};
  for (const size_t i : order)
    if (changed[i]) changes[i].adjust(image, factor[i]);
  if (random.uniform() >= p || image.channels() != 3) return;
  std::array<int64_t, 3> from{0, 1, 2};
  for (size_t i = 2; i > 0; --i) std::swap(from[i], from[random.below(i + 1)]);
  with_pixel_type(image, [&]<class T>(T) {
    for (T* pixel = image.as<T>(); pixel != image.as<T>() + image.values(); pixel += 3) {
      const std::array<T, 3> old{pixel[0], pixel[1], pixel[2]};
      for (size_t c = 0; c < 3; ++c) pixel[c] = old[static_cast<size_t>(from[c])];
    }
  });
}

}  // namespace galley
