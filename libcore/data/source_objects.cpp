// Images with boxes around objects, and objects at random.

#include <algorithm>

#include "libcore/base/file.h"
#include "libcore/base/philox.h"
#include "libcore/data/object_list.h"

namespace galley {
namespace {

/// Sets the fields `boxes`, `labels`, and those of `parts`, from the objects that `trains` selects.
template <class Trains>
void set_objects(Sample& sample, const ObjectImage& image, const ObjectParts& parts, const Trains& trains) {
  std::vector<float> corners, points;
  std::vector<int64_t> labels;
  std::vector<std::string> companions{"labels"};
  ObjectMasks masks{.height = image.height, .width = image.width, .masks = {}};
  const size_t numbers = parts.keypoints ? 3 * parts.keypoints->names.size() : 0;
  for (const ObjectBox& object : image.objects) {
    if (!trains(object)) continue;
    for (const double corner : object.corners(image.height, image.width)) corners.push_back(static_cast<float>(corner));
    labels.push_back(object.label);
    points.insert(points.end(), object.keypoints.begin(), object.keypoints.end());
    points.resize(labels.size() * numbers);  // objects without key points have none that is visible
    if (!parts.masks) continue;
    masks.masks.emplace_back(DType::kU8, image.height, image.width, 1);
    object.mask.draw(masks.masks.back().as<uint8_t>());
  }
  const auto count = std::ssize(labels);
  Tensor boxes(DType::kF32, {count, 4}), classes(DType::kI64, {count});
  std::copy(corners.begin(), corners.end(), boxes.data_as<float>());
  std::copy(labels.begin(), labels.end(), classes.data_as<int64_t>());
  if (parts.masks) companions.emplace_back("masks");
  if (parts.keypoints) companions.emplace_back("keypoints");
  sample.set("boxes", Boxes{std::move(boxes), std::move(companions)});
  sample.set("labels", std::move(classes));
  if (parts.masks) sample.set("masks", std::move(masks));
  if (!parts.keypoints) return;
  Tensor all(DType::kF32, {count, static_cast<int64_t>(numbers / 3), 3});
  std::copy(points.begin(), points.end(), all.data_as<float>());
  sample.set("keypoints", Keypoints{std::move(all), parts.keypoints->mirrored()});
}

/// Gives the objects labels that are numbers of `names`, in place of `categories`, if all categories are among these. For evaluations of
/// weights whose classes have names.
void use_labels_of(const std::vector<std::string>& names, std::vector<std::string>& categories, std::vector<ObjectImage>& images) {
  std::vector<int64_t> other(categories.size(), 0);
  for (size_t i = 1; i < categories.size(); ++i) {
    if (categories[i] == kUnused) continue;
    const auto found = std::find(names.begin(), names.end(), categories[i]);
    if (found == names.end()) return;
    other[i] = found - names.begin();
  }
  if (names == categories) return;
  log(LogLevel::kInfo, "the classes of the data have other numbers than those of the weights; they are matched by name");
  categories = names;
  for (ObjectImage& image : images)
    for (ObjectBox& object : image.objects) object.label = other[static_cast<size_t>(object.label)];
}

class ImagesWithObjects : public ObjectSource {
 public:
  ImagesWithObjects(std::string name, std::vector<ObjectImage> images, std::vector<std::string> categories, ColorMode mode, bool difficult,
                    ObjectParts parts = {})
      : name_(std::move(name)),
        images_(std::move(images)),
        categories_(std::move(categories)),
        mode_(mode),
        difficult_(difficult),
        parts_(std::move(parts)) {
    for (const ObjectImage& image : images_) {
      const auto used = std::count_if(image.objects.begin(), image.objects.end(), [&](const ObjectBox& object) { return trains(object); });
      capacity_ = std::max<int64_t>(capacity_, used);
    }
  }

  int64_t size() const override { return std::ssize(images_); }
  int64_t label(int64_t) const override { return -1; }
  const ObjectImage& image(int64_t index) const override { return images_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override { return image(index).file; }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override { return cat(name_, ", at most ", capacity_, " an image"); }
  bool has_masks() const override { return parts_.masks; }
  const KeypointNames* keypoints() const override { return parts_.keypoints ? &*parts_.keypoints : nullptr; }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields{
        image_field(mode_ == ColorMode::kRgb ? 3 : 1),
        {.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = capacity_},
        {.name = "labels",
         .kind = FieldKind::kClass,
         .layout = FieldLayout::kJagged,
         .dtype = DType::kI64,
         .sample = {},
         .capacity = capacity_,
         .classes = std::ssize(categories_)}};
    if (parts_.masks) {
      fields.push_back({.name = "masks",
                        .kind = FieldKind::kMask,
                        .layout = FieldLayout::kJagged,
                        .dtype = DType::kU8,
                        .sample = {kOpenSize, kOpenSize},
                        .capacity = capacity_});
    }
    if (parts_.keypoints) {
      fields.push_back({.name = "keypoints",
                        .kind = FieldKind::kKeypoints,
                        .layout = FieldLayout::kJagged,
                        .sample = {std::ssize(parts_.keypoints->names), 3},
                        .capacity = capacity_});
    }
    return fields;
  }

  Sample read(int64_t index) const override {
    const ObjectImage& image = images_[static_cast<size_t>(index)];
    const std::string bytes = read_file(image.file);
    Sample sample;
    Image pixels = decode_image(std::as_bytes(std::span(bytes)), mode_, image.file, {}, &sample.irregularity);
    if (pixels.height() != image.height || pixels.width() != image.width) {
      throw BadSample(
          "size", image.file,
          cat("the image has ", pixels.width(), " x ", pixels.height(), " pixels, its annotation says ", image.width, " x ", image.height));
    }
    sample.set("input", std::move(pixels));
    set_objects(sample, image, parts_, [this](const ObjectBox& object) { return trains(object); });
    return sample;
  }

 private:
  bool trains(const ObjectBox& object) const { return !object.crowd && (difficult_ || !object.difficult); }

  std::string name_;
  std::vector<ObjectImage> images_;
  std::vector<std::string> categories_;
  ColorMode mode_;
  bool difficult_;
  ObjectParts parts_;
  int64_t capacity_ = 1;
};

/// Objects at random on the images of another source, up to 8 in an image.
class RandomObjects : public ObjectSource {
 public:
  RandomObjects(std::unique_ptr<Source> images, std::vector<FieldType> fields, const Shape& shape, uint64_t seed)
      : images_(std::move(images)), fields_(std::move(fields)) {
    constexpr int64_t kMost = 8;
    const FieldType* labels = find_field(std::span<const FieldType>(fields_), "labels");
    const int64_t classes = labels == nullptr ? 2 : std::max<int64_t>(2, labels->classes);
    for (FieldType& field : fields_) {
      field.capacity = kMost;
      if (field.kind == FieldKind::kMask) parts_.masks = true;
      if (field.kind == FieldKind::kMask) field.sample = {shape[1], shape[2]};
      if (field.kind != FieldKind::kKeypoints) continue;
      parts_.keypoints.emplace();
      for (int64_t k = 0; k < field.sample[0]; ++k) parts_.keypoints->names.push_back(std::to_string(k));
    }
    for (int64_t i = 0; i < images_->size(); ++i) {
      RandomStream stream(seed, "synthetic objects", static_cast<uint64_t>(i));
      ObjectImage image{.file = images_->sample_name(i), .id = i, .height = shape[1], .width = shape[2]};
      for (uint64_t count = 1 + stream.below(kMost); count > 0; --count) {
        const double w = stream.uniform(0.1, 0.6), h = stream.uniform(0.1, 0.6);
        const auto width = static_cast<double>(shape[2]), height = static_cast<double>(shape[1]);
        image.objects.push_back({.box = {stream.uniform(0, 1 - w) * width, stream.uniform(0, 1 - h) * height, w * width, h * height},
                                 .label = 1 + static_cast<int64_t>(stream.below(static_cast<uint64_t>(classes - 1))),
                                 .area = w * width * h * height});
        add_parts(image, stream);
      }
      objects_.push_back(std::move(image));
    }
  }
  bool has_masks() const override { return parts_.masks; }
  const KeypointNames* keypoints() const override { return parts_.keypoints ? &*parts_.keypoints : nullptr; }
  int64_t size() const override { return images_->size(); }
  int64_t label(int64_t) const override { return -1; }
  const ObjectImage& image(int64_t index) const override { return objects_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override { return images_->sample_name(index); }
  std::string describe() const override { return images_->describe() + " with random boxes"; }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields = images_->fields();
    fields.insert(fields.end(), fields_.begin(), fields_.end());
    return fields;
  }
  Sample read(int64_t index) const override {
    Sample sample = images_->read(index);
    set_objects(sample, image(index), parts_, [](const ObjectBox&) { return true; });
    return sample;
  }

 private:
  /// An octagon in the box of the last object, and key points in it.
  void add_parts(ObjectImage& image, RandomStream& stream) const {
    ObjectBox& object = image.objects.back();
    const auto& [x, y, w, h] = object.box;
    if (parts_.masks) {
      std::vector<double> corners;
      for (const auto& [across, down] :
           {std::pair{0.3, 0.0}, {0.7, 0.0}, {1.0, 0.3}, {1.0, 0.7}, {0.7, 1.0}, {0.3, 1.0}, {0.0, 0.7}, {0.0, 0.3}})
        corners.insert(corners.end(), {x + across * w, y + down * h});
      object.mask = RunLengths::of_polygon(corners, image.height, image.width);
    }
    for (size_t k = 0; parts_.keypoints && k < parts_.keypoints->names.size(); ++k) {
      object.keypoints.push_back(static_cast<float>(x + stream.uniform() * w));
      object.keypoints.push_back(static_cast<float>(y + stream.uniform() * h));
      object.keypoints.push_back(2);
    }
  }

  std::unique_ptr<Source> images_;
  std::vector<FieldType> fields_;
  ObjectParts parts_;
  std::vector<ObjectImage> objects_;
};

}  // namespace

void no_such(const std::string& path, const char* what) {
  throw in_file(path, cat("no such ", what)).key("data.root").suggest("set data.root, or the source's path");
}

std::vector<int64_t> KeypointNames::mirrored() const {
  std::vector<int64_t> other;
  for (const std::string& name : names) {
    std::string wanted = name;
    if (const size_t at = name.find("left"); at != std::string::npos) {
      wanted.replace(at, 4, "right");
    } else if (const size_t right = name.find("right"); right != std::string::npos) {
      wanted.replace(right, 5, "left");
    }
    const auto found = std::find(names.begin(), names.end(), wanted);
    other.push_back(found == names.end() ? std::ssize(other) : found - names.begin());
  }
  return other;
}

std::array<double, 4> ObjectBox::corners(int64_t height, int64_t width) const {
  const auto [x, y, w, h] = box;
  return {std::max(x, 0.0), std::max(y, 0.0), std::min(x + w, static_cast<double>(width)), std::min(y + h, static_cast<double>(height))};
}

std::unique_ptr<Source> with_random_objects(std::unique_ptr<Source> images, std::vector<FieldType> fields, const Shape& shape,
                                            uint64_t seed) {
  return std::make_unique<RandomObjects>(std::move(images), std::move(fields), shape, seed);
}

std::unique_ptr<Source> annotated_images(std::string name, std::vector<ObjectImage> images, std::vector<std::string> categories,
                                         const std::vector<std::string>& learned, ColorMode mode, bool difficult, ObjectParts parts) {
  use_labels_of(learned, categories, images);
  return std::make_unique<ImagesWithObjects>(std::move(name), std::move(images), std::move(categories), mode, difficult, std::move(parts));
}

}  // namespace galley
