#pragma once
// What the sources voc and coco have in common: checks of objects, and the source that they make.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/counted.h"
#include "libcore/base/log.h"
#include "libcore/data/objects.h"
#include "libcore/data/sources.h"

namespace galley {

inline constexpr const char* kBackground = "__background__";
inline constexpr const char* kUnused = "N/A";  ///< The name of a label that no category has, as torchvision's.
inline constexpr double kBoxTolerance = 1;     ///< Pixels by which a box may lie outside.

/// Throws Error (kInput): a file or folder of the source does not exist.
[[noreturn]] void no_such(const std::string& path, const char* what);

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
    const bool outside = x < -kBoxTolerance || y < -kBoxTolerance || x + w > width + kBoxTolerance || y + h > height + kBoxTolerance;
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

/// The source of a list of images. `learned`: names of the classes that weights have learned; if all categories are among them, labels are
/// their numbers. `difficult`: training reads difficult objects too.
std::unique_ptr<Source> annotated_images(std::string name, std::vector<ObjectImage> images, std::vector<std::string> categories,
                                         const std::vector<std::string>& learned, ColorMode mode, bool difficult, ObjectParts parts = {});

}  // namespace galley
