// COCO's JSON of boxes, read from front to back.

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

CocoAnnotations::Annotation read_annotation(JsonCursor& json) {
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
    } else {
      json.skip();
    }
  });
  members.check({"image_id", "category_id", "bbox"});
  return annotation;
}

CocoAnnotations::Category read_category(JsonCursor& json) {
  Members members(json, "the category");
  CocoAnnotations::Category category{.offset = members.offset()};
  json.object([&](const std::string& key) {
    if (key == "id") {
      category.id = json.integer();
      members.found(0);
    } else if (key == "name") {
      category.name = json.string();
      members.found(1);
    } else {
      json.skip();
    }
  });
  members.check({"id", "name"});
  return category;
}

}  // namespace

CocoAnnotations parse_coco(std::string_view text, const std::string& file) {
  CocoAnnotations result;
  JsonCursor json(text, file);
  Members members(json, "the file");
  json.object([&](const std::string& key) {
    if (key == "images") {
      json.array([&](int64_t) { result.images.push_back(read_image(json)); });
      members.found(0);
    } else if (key == "annotations") {
      json.array([&](int64_t) { result.annotations.push_back(read_annotation(json)); });
      members.found(1);
    } else if (key == "categories") {
      json.array([&](int64_t) { result.categories.push_back(read_category(json)); });
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
