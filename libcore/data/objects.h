#pragma once
// Sources of images with boxes around objects. What batches cannot hold (the image's own size, areas, crowds) is asked of the source.

#include <array>
#include <vector>

#include "libcore/data/source.h"

namespace galley {

/// An object of an image, in pixels of the image as the file has it.
struct ObjectBox {
  std::array<double, 4> box{};  ///< left, top, width, height, as COCO has them.
  int64_t label = 0;            ///< From 1; 0 is the background.
  double area = 0;              ///< Of the object's mask, if the annotation gives it, else of the box.
  bool crowd = false;           ///< The box holds several objects: evaluation ignores it, and training leaves it out.
  bool difficult = false;       ///< Evaluation by Pascal VOC's rule ignores it.

  /// left, top, right, bottom, clipped to an image of that size. The box may have no area then.
  std::array<double, 4> corners(int64_t height, int64_t width) const;
};

/// An image and its objects.
struct ObjectImage {
  std::string file;
  int64_t id = 0;  ///< Order of images in COCO's evaluation.
  int64_t height = 0, width = 0;
  std::vector<ObjectBox> objects;
};

/// Images with boxes. Samples have `input`, `boxes` [n,4] and `labels` [n] (jagged).
class ObjectSource : public Source {
 public:
  virtual const ObjectImage& image(int64_t index) const = 0;
};

/// The images of another source, [C,H,W] each, with objects at random. `fields`: `boxes` and `labels`, with the number of classes.
std::unique_ptr<Source> with_random_objects(std::unique_ptr<Source> images, std::vector<FieldType> fields, const Shape& shape,
                                            uint64_t seed);

}  // namespace galley
