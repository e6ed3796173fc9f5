// coco: images with boxes, masks and key points in a JSON file of COCO. All annotations are read and checked when the source opens.

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "libcore/base/file.h"
#include "libcore/data/annotations.h"
#include "libcore/data/json_cursor.h"
#include "libcore/data/object_list.h"

namespace galley {
namespace {

/// The categories of a COCO file by their ids, as labels and names of labels.
struct CocoLabels {
  CocoLabels(const CocoAnnotations& file, bool renumber, const JsonCursor& json) {
    std::vector<CocoAnnotations::Category> sorted = file.categories;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    names.emplace_back(kBackground);
    if (sorted.empty()) json.fail(0, "'categories' is empty; list the categories of the annotations");
    std::set<std::string> seen;
    constexpr int64_t kMost = 100000;
    for (const CocoAnnotations::Category& category : sorted) {
      const int64_t label = renumber ? std::ssize(names) : category.id;
      if (label < 1 || label > kMost) {
        json.fail(category.offset, cat("the category '", category.name, "' has the id ", category.id, "; labels are ids from 1 to ", kMost,
                                       ", since 0 is the background. Set renumber: true to number the categories from 1"));
      }
      if (!by_id.emplace(category.id, label).second) json.fail(category.offset, cat("two categories have the id ", category.id));
      if (!seen.insert(category.name).second) json.fail(category.offset, cat("two categories have the name '", category.name, "'"));
      names.resize(std::max(names.size(), static_cast<size_t>(label) + 1), kUnused);
      names[static_cast<size_t>(label)] = category.name;
    }
  }
  std::unordered_map<int64_t, int64_t> by_id;
  std::vector<std::string> names;  // by label
};

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
          if (polygon[i] < -kBoxTolerance || polygon[i] > static_cast<double>(most) + kBoxTolerance || !std::isfinite(polygon[i]))
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
  return annotated_images(std::move(name), std::move(read), std::move(labels.names), learned, mode, true,
                          {masks, std::move(shapes.keypoints)});
}

}  // namespace galley
