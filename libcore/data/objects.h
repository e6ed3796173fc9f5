#pragma once
// Sources of images with boxes around objects. What batches cannot hold (the image's own size, areas, crowds) is asked of the source.

#include <array>
#include <vector>

#include "libcore/data/run_lengths.h"
#include "libcore/data/source.h"

namespace galley {

/// An object of an image, in pixels of the image as the file has it.
struct ObjectBox {
  std::array<double, 4> box{};        ///< left, top, width, height, as COCO has them.
  int64_t label = 0;                  ///< From 1; 0 is the background.
  double area = 0;                    ///< Of the object's mask, if the annotation gives it, else of the box.
  bool crowd = false;                 ///< The box holds several objects: evaluation ignores it, and training leaves it out.
  bool difficult = false;             ///< Evaluation by Pascal VOC's rule ignores it.
  RunLengths mask = {};               ///< Of a source with masks.
  std::vector<float> keypoints = {};  ///< Of a source with key points: x, y and visibility (0: not labeled) of each; empty: none.

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

/// The key points that objects have.
struct KeypointNames {
  std::vector<std::string> names;
  std::vector<std::pair<int64_t, int64_t>> skeleton;  ///< Points, from 0, that lines connect.
  /// Of each point the one that it becomes in a mirrored image: the other of "left_NAME" and "right_NAME", else itself.
  std::vector<int64_t> mirrored() const;
};

/// Images with boxes. Samples have `input`, `boxes` [n,4] and `labels` [n] (jagged), and where the source has them `masks` [n,H,W] and
/// `keypoints` [n,K,3].
class ObjectSource : public Source {
 public:
  virtual const ObjectImage& image(int64_t index) const = 0;
  virtual bool has_masks() const { return false; }
  /// Null: objects have no key points.
  virtual const KeypointNames* keypoints() const { return nullptr; }
};

/// The images of another source, [C,H,W] each, with objects at random. `fields`: `boxes` and `labels`, with the number of classes, and if
/// wanted `masks` and `keypoints`.
std::unique_ptr<Source> with_random_objects(std::unique_ptr<Source> images, std::vector<FieldType> fields, const Shape& shape,
                                            uint64_t seed);

}  // namespace galley
