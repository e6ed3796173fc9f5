// voc and coco: images with boxes around objects. All annotations are read and checked when the source opens.

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "libcore/base/counted.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/philox.h"
#include "libcore/data/annotations.h"
#include "libcore/data/json_cursor.h"
#include "libcore/data/objects.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

constexpr const char* kBackground = "__background__";
constexpr const char* kUnused = "N/A";  // the name of a label that no category has, as torchvision's
constexpr double kTolerance = 1;        // pixels by which a box may lie outside

constexpr std::array kVocClasses{"aeroplane", "bicycle",     "bird",  "boat",        "bottle", "bus",      "car",
                                 "cat",       "chair",       "cow",   "diningtable", "dog",    "horse",    "motorbike",
                                 "person",    "pottedplant", "sheep", "sofa",        "train",  "tvmonitor"};

/// Checks and collects the objects of images.
class ObjectList {
 public:
  ObjectList(std::string kind, EmptyImages empty, BadBoxes bad_boxes) : kind_(std::move(kind)), empty_(empty), bad_boxes_(bad_boxes) {}

  /// Adds an object to an image. `fail(message)` throws with the place of the annotation.
  template <class Fail>
  void add(ObjectImage& image, const ObjectBox& object, const std::string& name, const Fail& fail) {
    const auto& [x, y, w, h] = object.box;
    const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
    const bool flat = !(w > 0 && h > 0);
    const bool outside = x < -kTolerance || y < -kTolerance || x + w > width + kTolerance || y + h > height + kTolerance;
    const std::array<double, 4> clipped = object.corners(image.height, image.width);
    if (flat || outside || !(clipped[2] > clipped[0] && clipped[3] > clipped[1])) {
      if (bad_boxes_ == BadBoxes::kFail) {
        fail(cat("the box of '", name, "' ",
                 flat ? "has no area" : cat("lies outside the image of ", image.width, " x ", image.height, " pixels")));
      }
      ++skipped_;
      return;
    }
    ++objects_;
    image.objects.push_back(object);
  }

  void finish(ObjectImage image) {
    const bool empty = std::all_of(image.objects.begin(), image.objects.end(), [](const ObjectBox& object) { return object.crowd; });
    empty_count_ += empty;
    if (empty && empty_ == EmptyImages::kSkip) return;
    images_.push_back(std::move(image));
  }

  std::vector<ObjectImage> take() {
    if (skipped_ > 0)
      log(LogLevel::kWarning, cat(kind_, ": skipped ", skipped_, skipped_ == 1 ? " box" : " boxes", " without area or outside"));
    return std::move(images_);
  }
  std::string str() const {
    return cat(counted(objects_, "object"), ", ", counted(empty_count_, "image"), " without objects ",
               empty_ == EmptyImages::kSkip ? "skipped" : "kept");
  }

 private:
  std::string kind_;
  EmptyImages empty_;
  BadBoxes bad_boxes_;
  std::vector<ObjectImage> images_;
  int64_t objects_ = 0, skipped_ = 0, empty_count_ = 0;
};

/// Sets the fields `boxes` and `labels` from the objects that `trains` selects.
template <class Trains>
void set_objects(Sample& sample, const ObjectImage& image, const Trains& trains) {
  std::vector<float> corners;
  std::vector<int64_t> labels;
  for (const ObjectBox& object : image.objects) {
    if (!trains(object)) continue;
    for (const double corner : object.corners(image.height, image.width)) corners.push_back(static_cast<float>(corner));
    labels.push_back(object.label);
  }
  const auto count = std::ssize(labels);
  Tensor boxes(DType::kF32, {count, 4}), classes(DType::kI64, {count});
  std::copy(corners.begin(), corners.end(), boxes.data_as<float>());
  std::copy(labels.begin(), labels.end(), classes.data_as<int64_t>());
  sample.set("boxes", Boxes{std::move(boxes), {"labels"}});
  sample.set("labels", std::move(classes));
}

class ImagesWithObjects : public ObjectSource {
 public:
  ImagesWithObjects(std::string name, std::vector<ObjectImage> images, std::vector<std::string> categories, ColorMode mode, bool difficult)
      : name_(std::move(name)), images_(std::move(images)), categories_(std::move(categories)), mode_(mode), difficult_(difficult) {
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
  std::vector<FieldType> fields() const override {
    return {image_field(mode_ == ColorMode::kRgb ? 3 : 1),
            {.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = capacity_},
            {.name = "labels",
             .kind = FieldKind::kClass,
             .layout = FieldLayout::kJagged,
             .dtype = DType::kI64,
             .sample = {},
             .capacity = capacity_,
             .classes = std::ssize(categories_)}};
  }

  Sample read(int64_t index) const override {
    const ObjectImage& image = images_[static_cast<size_t>(index)];
    const std::string bytes = read_file(image.file);
    Sample sample;
    Image pixels = decode_image(std::as_bytes(std::span(bytes)), mode_, image.file, {}, &sample.irregularity);
    if (pixels.height() != image.height || pixels.width() != image.width) {
      throw BadSample("size", cat(image.file, ": the image has ", pixels.width(), " x ", pixels.height(), " pixels, its annotation says ",
                                  image.width, " x ", image.height));
    }
    sample.set("input", std::move(pixels));
    set_objects(sample, image, [this](const ObjectBox& object) { return trains(object); });
    return sample;
  }

 private:
  bool trains(const ObjectBox& object) const { return !object.crowd && (difficult_ || !object.difficult); }

  std::string name_;
  std::vector<ObjectImage> images_;
  std::vector<std::string> categories_;
  ColorMode mode_;
  bool difficult_;
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
    for (FieldType& field : fields_) field.capacity = kMost;
    for (int64_t i = 0; i < images_->size(); ++i) {
      RandomStream stream(seed, "synthetic objects", static_cast<uint64_t>(i));
      ObjectImage image{.file = images_->sample_name(i), .id = i, .height = shape[1], .width = shape[2]};
      for (uint64_t count = 1 + stream.below(kMost); count > 0; --count) {
        const double w = stream.uniform(0.1, 0.6), h = stream.uniform(0.1, 0.6);
        const auto width = static_cast<double>(shape[2]), height = static_cast<double>(shape[1]);
        image.objects.push_back({.box = {stream.uniform(0, 1 - w) * width, stream.uniform(0, 1 - h) * height, w * width, h * height},
                                 .label = 1 + static_cast<int64_t>(stream.below(static_cast<uint64_t>(classes - 1))),
                                 .area = w * width * h * height});
      }
      objects_.push_back(std::move(image));
    }
  }
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
    set_objects(sample, image(index), [](const ObjectBox&) { return true; });
    return sample;
  }

 private:
  std::unique_ptr<Source> images_;
  std::vector<FieldType> fields_;
  std::vector<ObjectImage> objects_;
};

[[noreturn]] void no_such(const std::string& path, const char* what) {
  throw Error(ErrorCode::kInput, cat(path, ": no such ", what)).key("data.root").suggest("set data.root, or the source's path");
}

/// The stems of the images of a set, or of all annotations.
std::vector<std::string> stems_of(const std::string& root, const std::string& set) {
  std::vector<std::string> stems;
  const std::string annotations = root + "/Annotations";
  if (!is_folder(annotations)) no_such(annotations, "folder");
  if (set.empty()) {
    for (const FolderEntry& entry : list_folder(annotations))
      if (!entry.is_folder && entry.name.ends_with(".xml")) stems.push_back(entry.name.substr(0, entry.name.size() - 4));
    return stems;
  }
  const std::string path = cat(root, "/ImageSets/Main/", set, ".txt");
  if (!file_exists(path)) no_such(path, "file");
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    const size_t last = line.find_first_of(" \t\r", first);  // sets of a class have a second column
    stems.push_back(line.substr(first, last == std::string::npos ? last : last - first));
  }
  return stems;
}

/// The image of an annotation: the JPEG of the same name, else the file that the annotation names.
std::string image_of(const std::string& root, const std::string& stem, const VocAnnotation& annotation, const std::string& xml) {
  const std::string path = cat(root, "/JPEGImages/", stem, ".jpg");
  if (file_exists(path)) return path;
  const std::string named = cat(root, "/JPEGImages/", annotation.filename);
  const bool plain = !annotation.filename.empty() && annotation.filename.find('/') == std::string::npos;
  GALLEY_CHECK_INPUT(plain && file_exists(named), xml, ": no image ", path, plain ? cat(" or ", named) : "");
  return named;
}

}  // namespace

std::array<double, 4> ObjectBox::corners(int64_t height, int64_t width) const {
  const auto [x, y, w, h] = box;
  return {std::max(x, 0.0), std::max(y, 0.0), std::min(x + w, static_cast<double>(width)), std::min(y + h, static_cast<double>(height))};
}

std::unique_ptr<Source> with_random_objects(std::unique_ptr<Source> images, std::vector<FieldType> fields, const Shape& shape,
                                            uint64_t seed) {
  return std::make_unique<RandomObjects>(std::move(images), std::move(fields), shape, seed);
}

std::unique_ptr<Source> Voc::open(const SourceContext& context) const {
  const std::string root = below_root(context.root, path);
  std::vector<std::string> names{kBackground};
  if (classes.empty()) {
    names.insert(names.end(), kVocClasses.begin(), kVocClasses.end());
  } else {
    names.insert(names.end(), classes.begin(), classes.end());
  }
  ObjectList list("voc", empty, bad_boxes);
  int64_t number = 0;
  for (const std::string& stem : stems_of(root, set)) {
    const std::string xml = cat(root, "/Annotations/", stem, ".xml");
    if (!file_exists(xml)) no_such(xml, "file");
    const VocAnnotation annotation = parse_voc(read_file(xml), xml);
    ObjectImage image{
        .file = image_of(root, stem, annotation, xml), .id = number++, .height = annotation.height, .width = annotation.width};
    if (image.height < 1 || image.width < 1) {  // the annotation does not give the size
      const std::string bytes = read_file(image.file);
      const Image pixels = decode_image(std::as_bytes(std::span(bytes)), mode, image.file);
      image.height = pixels.height();
      image.width = pixels.width();
    }
    for (const VocAnnotation::Object& object : annotation.objects) {
      const auto fail = [&](const std::string& message) { throw Error(ErrorCode::kInput, message).at({.file = xml, .line = object.line}); };
      const auto found = std::find(names.begin() + 1, names.end(), object.name);
      if (found == names.end()) {
        const std::string near = nearest(object.name, {names.begin() + 1, names.end()});
        throw Error(ErrorCode::kInput, cat("'", object.name, "' is not a class of the source; it has ", names.size() - 1))
            .at({.file = xml, .line = object.line})
            .suggest(near.empty() ? "list all names in the source's `classes`" : cat("did you mean '", near, "'?"));
      }
      const auto& [left, top, right, bottom] = object.box;
      const ObjectBox box{.box = {left, top, right - left, bottom - top},
                          .label = found - names.begin(),
                          .area = (right - left) * (bottom - top),
                          .difficult = object.difficult};
      list.add(image, box, object.name, fail);
    }
    list.finish(std::move(image));
  }
  std::vector<ObjectImage> images = list.take();
  std::string name = cat("voc ", root, set.empty() ? "" : cat(" (", set, ")"), ": ", counted(std::ssize(images), "image"), " of ",
                         names.size() - 1, " classes, ", list.str());
  return std::make_unique<ImagesWithObjects>(std::move(name), std::move(images), std::move(names), mode, difficult);
}

namespace {

/// The categories of a COCO file by their ids, as labels and names of labels.
struct CocoLabels {
  CocoLabels(const CocoAnnotations& file, bool renumber, const JsonCursor& json) {
    std::vector<CocoAnnotations::Category> sorted = file.categories;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    names.emplace_back(kBackground);
    constexpr int64_t kMost = 100000;
    for (const CocoAnnotations::Category& category : sorted) {
      const int64_t label = renumber ? std::ssize(names) : category.id;
      if (label < 1 || label > kMost) {
        json.fail(category.offset, cat("the category '", category.name, "' has the id ", category.id, "; labels are ids from 1 to ", kMost,
                                       ", since 0 is the background. Set renumber: true to number the categories from 1"));
      }
      if (!by_id.emplace(category.id, label).second) json.fail(category.offset, cat("two categories have the id ", category.id));
      names.resize(std::max(names.size(), static_cast<size_t>(label) + 1), kUnused);
      names[static_cast<size_t>(label)] = category.name;
    }
  }
  std::unordered_map<int64_t, int64_t> by_id;
  std::vector<std::string> names;  // by label
};

}  // namespace

std::unique_ptr<Source> Coco::open(const SourceContext& context) const {
  const std::string folder = below_root(context.root, images), path = below_root(context.root, annotations);
  if (!is_folder(folder)) no_such(folder, "folder");
  if (!file_exists(path)) no_such(path, "file");
  const std::string text = read_file(path);
  const CocoAnnotations file = parse_coco(text, path);
  const JsonCursor json(text, path);
  CocoLabels labels(file, renumber, json);
  ObjectList list("coco", empty, bad_boxes);
  std::vector<ObjectImage> read;
  std::unordered_map<int64_t, size_t> by_id;
  for (const CocoAnnotations::Image& image : file.images) {
    if (!by_id.emplace(image.id, read.size()).second) json.fail(image.offset, cat("two images have the id ", image.id));
    if (image.width < 1 || image.height < 1) json.fail(image.offset, cat("the image has ", image.width, " x ", image.height, " pixels"));
    read.push_back({.file = folder + "/" + image.file_name, .id = image.id, .height = image.height, .width = image.width});
    if (!file_exists(read.back().file)) json.fail(image.offset, cat("no image ", read.back().file));
  }
  for (const CocoAnnotations::Annotation& given : file.annotations) {
    const auto image = by_id.find(given.image_id);
    if (image == by_id.end()) json.fail(given.offset, cat("the annotation is of the image ", given.image_id, ", which 'images' lacks"));
    const auto label = labels.by_id.find(given.category_id);
    if (label == labels.by_id.end())
      json.fail(given.offset, cat("the annotation is of the category ", given.category_id, ", which 'categories' lacks"));
    const double x = given.box[0], y = given.box[1], width = given.box[2], height = given.box[3];
    ObjectImage& target = read[image->second];
    const auto fail = [&](const std::string& message) {
      const bool corners =
          width > x && height > y && width <= static_cast<double>(target.width) && height <= static_cast<double>(target.height);
      json.fail(given.offset, cat(message, corners ? "; it looks like [x1, y1, x2, y2], but COCO has [x, y, width, height]" : "",
                                  ". Set bad_boxes: skip to leave such boxes out"));
    };
    list.add(target, {.box = given.box, .label = label->second, .area = given.area < 0 ? width * height : given.area, .crowd = given.crowd},
             labels.names[static_cast<size_t>(label->second)], fail);
  }
  for (ObjectImage& image : read) list.finish(std::move(image));
  read = list.take();
  std::string name = cat("coco ", path, ": ", counted(std::ssize(read), "image"), " of ", labels.by_id.size(), " categories, ", list.str());
  return std::make_unique<ImagesWithObjects>(std::move(name), std::move(read), std::move(labels.names), mode, true);
}

}  // namespace galley
