// COCO's JSON of objects, read from front to back.

#include "libcore/data/annotations.h"
#include "libcore/data/json_cursor.h"

namespace galley {
namespace {

/// Which members of a record have been read.
class Members {
 public:
  Members(JsonCursor& json, std::string_view record) : json_(json), record_(record), offset_(json.offset()) {}
  void found(size_t member) { found_ |= size_t{1} << member; }
  size_t offset() const { return offset_; }
  /// Throws where one of `names`, numbered in order, is missing.
  void check(std::initializer_list<std::string_view> names) const {
    size_t number = 0;
    for (const std::string_view name : names)
      if ((found_ >> number++ & 1) == 0) json_.fail(offset_, cat(record_, " has no '", name, "'"));
  }

 private:
  JsonCursor& json_;
  std::string_view record_;
  size_t offset_, found_ = 0;
};

CocoAnnotations::Image read_image(JsonCursor& json) {
  Members members(json, "the image");
  CocoAnnotations::Image image{.offset = members.offset()};
  json.object([&](const std::string& key) {
    if (key == "id") {
      image.id = json.integer();
      members.found(0);
    } else if (key == "file_name") {
      image.file_name = json.string();
      members.found(1);
    } else if (key == "width") {
      image.width = json.integer();
      members.found(2);
    } else if (key == "height") {
      image.height = json.integer();
      members.found(3);
    } else {
      json.skip();
    }
  });
  members.check({"id", "file_name", "width", "height"});
  return image;
}

/// Polygons, or run lengths.
void read_mask(JsonCursor& json, CocoAnnotations::Annotation& annotation) {
  annotation.mask_offset = json.offset();
  if (json.next_is('[')) {
    json.array([&](int64_t) {
      const size_t start = json.offset();
      std::vector<double>& polygon = annotation.polygons.emplace_back();
      json.array([&](int64_t) { polygon.push_back(json.number()); });
      if (polygon.size() < 6 || polygon.size() % 2 == 1)
        json.fail(start, cat("a polygon of 'segmentation' has ", polygon.size(), " numbers; expected x and y of at least 3 points"));
    });
    if (annotation.polygons.empty()) json.fail(annotation.mask_offset, "'segmentation' has no polygon");
    return;
  }
  if (!json.next_is('{'))
    json.fail(annotation.mask_offset, "'segmentation' is neither a list of polygons nor {\"size\": [height, width], \"counts\": ...}");
  Members members(json, "'segmentation'");
  json.object([&](const std::string& key) {
    if (key == "size") {
      int64_t count = 0;
      json.array([&](int64_t index) {
        (index == 0 ? annotation.mask_height : annotation.mask_width) = json.integer();
        count = index + 1;
      });
      if (count != 2 || annotation.mask_height < 1 || annotation.mask_width < 1)
        json.fail(annotation.mask_offset, "'size' of run lengths must be [height, width]");
      members.found(0);
    } else if (key == "counts") {
      members.found(1);
      if (json.next_is('"')) {
        annotation.text = json.string();
        return;
      }
      json.array([&](int64_t) {
        const size_t start = json.offset();
        const int64_t count = json.integer();
        if (count < 0 || count > UINT32_MAX) json.fail(start, cat("the run length ", count, " is not in 0..", UINT32_MAX));
        annotation.counts.push_back(static_cast<uint32_t>(count));
      });
    } else {
      json.skip();
    }
  });
  members.check({"size", "counts"});
}

void read_keypoints(JsonCursor& json, CocoAnnotations::Annotation& annotation) {
  annotation.keypoints_offset = json.offset();
  json.array([&](int64_t index) {
    const size_t start = json.offset();
    const double value = json.number();
    if (index % 3 == 2 && value != 0 && value != 1 && value != 2)
      json.fail(start, cat("the visibility of a key point is ", value, "; expected 0 (not labeled), 1 (hidden) or 2 (visible)"));
    annotation.keypoints.push_back(static_cast<float>(value));
  });
  if (annotation.keypoints.size() % 3 != 0) {
    json.fail(annotation.keypoints_offset,
              cat("'keypoints' has ", annotation.keypoints.size(), " numbers; expected x, y and visibility of each"));
  }
}

CocoAnnotations::Annotation read_annotation(JsonCursor& json, const CocoParts& parts) {
  Members members(json, "the annotation");
  CocoAnnotations::Annotation annotation{.offset = members.offset()};
  json.object([&](const std::string& key) {
    if (key == "image_id") {
      annotation.image_id = json.integer();
      members.found(0);
    } else if (key == "category_id") {
      annotation.category_id = json.integer();
      members.found(1);
    } else if (key == "bbox") {
      const size_t start = json.offset();
      int64_t count = 0;
      json.array([&](int64_t index) {
        if (index >= 4) json.fail(start, "'bbox' has more than 4 numbers");
        annotation.box[static_cast<size_t>(index)] = json.number();
        count = index + 1;
      });
      if (count != 4) json.fail(start, cat("'bbox' has ", count, " numbers; expected [x, y, width, height]"));
      members.found(2);
    } else if (key == "area" && !json.next_is('n')) {
      annotation.area = json.number();
    } else if (key == "iscrowd") {
      annotation.crowd = json.flag();
    } else if (key == "segmentation" && parts.masks && !json.next_is('n')) {
      read_mask(json, annotation);
    } else if (key == "keypoints" && parts.keypoints && !json.next_is('n')) {
      read_keypoints(json, annotation);
    } else {
      json.skip();
    }
  });
  members.check({"image_id", "category_id", "bbox"});
  return annotation;
}

CocoAnnotations::Category read_category(JsonCursor& json, const CocoParts& parts) {
  Members members(json, "the category");
  CocoAnnotations::Category category{.offset = members.offset()};
  json.object([&](const std::string& key) {
    if (key == "id") {
      category.id = json.integer();
      members.found(0);
    } else if (key == "name") {
      category.name = json.string();
      members.found(1);
    } else if (key == "keypoints" && parts.keypoints && !json.next_is('n')) {
      json.array([&](int64_t) { category.keypoints.push_back(json.string()); });
    } else if (key == "skeleton" && parts.keypoints && !json.next_is('n')) {
      json.array([&](int64_t) {
        const size_t start = json.offset();
        std::vector<int64_t> ends;
        json.array([&](int64_t) { ends.push_back(json.integer()); });
        if (ends.size() != 2) json.fail(start, "a line of 'skeleton' must be the numbers of two key points");
        category.skeleton.emplace_back(ends[0], ends[1]);
      });
    } else {
      json.skip();
    }
  });
  members.check({"id", "name"});
  return category;
}

}  // namespace

CocoAnnotations parse_coco(std::string_view text, const std::string& file, const CocoParts& parts) {
  CocoAnnotations result;
  JsonCursor json(text, file);
  Members members(json, "the file");
  json.object([&](const std::string& key) {
    if (key == "images") {
      json.array([&](int64_t) { result.images.push_back(read_image(json)); });
      members.found(0);
    } else if (key == "annotations") {
      json.array([&](int64_t) { result.annotations.push_back(read_annotation(json, parts)); });
      members.found(1);
    } else if (key == "categories") {
      json.array([&](int64_t) { result.categories.push_back(read_category(json, parts)); });
      members.found(2);
    } else {
      json.skip();
    }
  });
  members.check({"images", "annotations", "categories"});
  json.end();
  return result;
}

}  // namespace galley
