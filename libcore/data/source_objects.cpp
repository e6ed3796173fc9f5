// voc and coco: images with boxes around objects. All annotations are read and checked when the source opens.

#include <algorithm>
#include <cmath>
#include <optional>
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
                 flat ? cat("has no area: x ", x, " to ", x + w, ", y ", y, " to ", y + h)
                      : cat("lies outside the image of ", image.width, " x ", image.height, " pixels")));
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

/// What the samples of a source have besides boxes.
struct ObjectParts {
  bool masks = false;
  std::optional<KeypointNames> keypoints = {};
};

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

[[noreturn]] void no_such(const std::string& path, const char* what) {
  throw in_file(path, cat("no such ", what)).key("data.root").suggest("set data.root, or the source's path");
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
  if (!file_exists(path)) {
    std::vector<std::string> sets;
    if (is_folder(parent_folder(path))) {
      for (const FolderEntry& entry : list_folder(parent_folder(path)))
        if (entry.name.ends_with(".txt")) sets.push_back(entry.name.substr(0, entry.name.size() - 4));
    }
    if (sets.empty()) throw in_file(path, "no such file").key("source.set").suggest("remove the source's `set` to read all annotations");
    const std::string near = nearest(set, sets);
    std::string known;
    for (size_t i = 0; i < std::min<size_t>(sets.size(), 10); ++i) known += (i > 0 ? ", " : "") + sets[i];
    throw in_file(path, cat("no such file; ImageSets/Main has the sets ", known, sets.size() > 10 ? " ..." : ""))
        .key("source.set")
        .suggest(near.empty() ? "set one of them as the source's set" : cat("did you mean set: ", near, "?"));
  }
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
  GALLEY_CHECK_FILE(plain && file_exists(named), xml, "no image ", path, plain ? cat(" or ", named) : "");
  return named;
}

}  // namespace

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
    if (!file_exists(xml) && !set.empty())
      throw in_file(xml, cat("no such file, but the set ", set, " lists the image"))
          .suggest(cat("add the file, or remove '", stem, "' from ImageSets/Main/", set, ".txt"));
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
      const auto fail = [&](const std::string& message) {
        throw Error(ErrorCode::kInput, message)
            .at({.file = xml, .line = object.line})
            .suggest("set bad_boxes: skip to leave such boxes out");
      };
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
  use_labels_of(learned, names, images);
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

namespace {

/// Reads the masks and key points of annotations, and checks them.
class CocoShapes {
 public:
  CocoShapes(const CocoAnnotations& file, const CocoParts& wanted, const JsonCursor& json) : wanted_(wanted), json_(json) {
    for (const CocoAnnotations::Category& category : file.categories) {
      if (!wanted.keypoints || category.keypoints.empty()) continue;
      KeypointNames own{category.keypoints, {}};
      for (const auto& [first, second] : category.skeleton) {
        const int64_t count = std::ssize(own.names);
        if (first < 1 || second < 1 || first > count || second > count)
          json.fail(category.offset, cat("the skeleton of '", category.name, "' connects key points ", first, " and ", second,
                                         "; they are numbered from 1 to ", count));
        own.skeleton.emplace_back(first - 1, second - 1);
      }
      if (keypoints && keypoints->names.size() != own.names.size())
        json.fail(category.offset, cat("the category '", category.name, "' has ", own.names.size(), " key points, another one ",
                                       keypoints->names.size(), "; a source needs the same number in all"));
      keypoints = std::move(own);
    }
    if (wanted.keypoints && !keypoints)
      json.fail(0, "no category has a list 'keypoints' with the names of its key points, but the source has keypoints: true");
  }

  /// `fail(message)` throws with the place of the annotation.
  template <class Fail>
  void add(const CocoAnnotations::Annotation& given, const ObjectImage& image, ObjectBox& object, const Fail& fail) const {
    if (wanted_.masks) object.mask = mask_of(given, image, fail);
    if (!wanted_.keypoints || given.keypoints.empty()) return;
    if (given.keypoints.size() != 3 * keypoints->names.size())
      json_.fail(given.keypoints_offset,
                 cat("'keypoints' has ", given.keypoints.size() / 3, " points; the category lists ", keypoints->names.size()));
    object.keypoints = given.keypoints;
  }

  std::optional<KeypointNames> keypoints;

 private:
  template <class Fail>
  RunLengths mask_of(const CocoAnnotations::Annotation& given, const ObjectImage& image, const Fail& fail) const {
    if (given.mask_offset == 0) fail("the annotation has no 'segmentation', but the source has masks: true");
    const auto broken = [&](const std::string& message) { json_.fail(given.mask_offset, message); };
    if (given.mask_height == 0) {
      std::vector<RunLengths> parts;
      for (const std::vector<double>& polygon : given.polygons) {
        for (size_t i = 0; i < polygon.size(); ++i) {
          const int64_t most = i % 2 == 0 ? image.width : image.height;
          if (polygon[i] < -kTolerance || polygon[i] > static_cast<double>(most) + kTolerance || !std::isfinite(polygon[i]))
            broken(cat("point ", i / 2 + 1, " of a polygon has ", i % 2 == 0 ? "x " : "y ", polygon[i], "; the image has ", image.width,
                       " x ", image.height, " pixels"));
        }
        parts.push_back(RunLengths::of_polygon(polygon, image.height, image.width));
      }
      return united(parts);
    }
    if (given.mask_height != image.height || given.mask_width != image.width)
      broken(cat("the run lengths are of ", given.mask_width, " x ", given.mask_height, " pixels, but the image has ", image.width, " x ",
                 image.height, "; 'size' is [height, width]"));
    if (given.counts.empty()) {
      try {
        return RunLengths::of_text(given.text, image.height, image.width);
      } catch (const Error& error) {
        broken(error.message());
      }
    }
    uint64_t sum = 0;
    for (const uint32_t count : given.counts) sum += count;
    const auto all = static_cast<uint64_t>(image.height * image.width);
    if (sum != all) broken(cat("the run lengths are of ", sum, " pixels; ", image.width, " x ", image.height, " are ", all));
    return {.height = image.height, .width = image.width, .counts = given.counts};
  }

  CocoParts wanted_;
  const JsonCursor& json_;
};

}  // namespace

std::unique_ptr<Source> Coco::open(const SourceContext& context) const {
  const std::string folder = below_root(context.root, images), path = below_root(context.root, annotations);
  if (!is_folder(folder)) no_such(folder, "folder");
  if (!file_exists(path)) no_such(path, "file");
  const std::string text = read_file(path);
  const CocoParts parts{.masks = masks, .keypoints = keypoints};
  const CocoAnnotations file = parse_coco(text, path, parts);
  const JsonCursor json(text, path);
  CocoLabels labels(file, renumber, json);
  CocoShapes shapes(file, parts, json);
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
    ObjectBox object{.box = given.box, .label = label->second, .area = given.area < 0 ? width * height : given.area, .crowd = given.crowd};
    shapes.add(given, target, object, [&](const std::string& message) { json.fail(given.offset, message); });
    if (given.area < 0 && masks) object.area = static_cast<double>(object.mask.area());
    list.add(target, object, labels.names[static_cast<size_t>(label->second)], fail);
  }
  for (ObjectImage& image : read) list.finish(std::move(image));
  read = list.take();
  std::string name = cat("coco ", path, ": ", counted(std::ssize(read), "image"), " of ", labels.by_id.size(), " categories, ", list.str());
  use_labels_of(learned, labels.names, read);
  return std::make_unique<ImagesWithObjects>(std::move(name), std::move(read), std::move(labels.names), mode, true,
                                             ObjectParts{masks, std::move(shapes.keypoints)});
}

}  // namespace galley
