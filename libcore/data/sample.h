#pragma once
// Sample: the named fields that a source reads for one index. Source::fields() declares their types. `input` is an Image or a Tensor;
// `label` is a class index, or the classes of positions or pixels; `target` is a Tensor of regression values.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "libcore/base/in_file.h"
#include "libcore/data/image.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The class of each pixel, u8 [1,H,W]; kNoClass marks pixels without a class. Batches hold it as i64 [N,H,W], with the loader's pad_label
/// for kNoClass.
struct Mask {
  static constexpr uint8_t kNoClass = 255;
  Image classes;
};

/// Boxes on the first image of a sample. Transforms that move pixels move them, clip them to the image, and drop those without area.
struct Boxes {
  Tensor corners;                       ///< f32 [n,4]: left, top, right, bottom in pixels.
  std::vector<std::string> companions;  ///< Fields with one element per box: they lose the elements of dropped boxes.
};

/// The masks of objects, u8 [1,H,W] of 0 and 1 each, a companion of boxes. They move as a Mask does; new pixels are 0.
struct ObjectMasks {
  int64_t height = 0, width = 0;
  std::vector<Image> masks;
};

/// The key points of objects, a companion of boxes. Transforms that move pixels move them; those that leave the image become 0, 0, 0: not
/// visible. A mirrored image exchanges left and right.
struct Keypoints {
  Tensor points;                  ///< f32 [n,K,3]: x, y in pixels, and visibility.
  std::vector<int64_t> mirrored;  ///< Of each point the one that it becomes in a mirrored image.
};

/// How far each pixel of the first of two images moves, f32 [3,H,W]: right, down, and 1 where that is known, else 0. Transforms that move
/// pixels move and scale it.
struct Flow {
  Image vectors;
};

/// Frames of a video, of one size. Batches hold them as f32 [C,T,H,W]; transforms change all frames alike.
struct Clip {
  std::vector<Image> frames;
};

/// A class index, an image, a mask, an array, boxes, a flow, a clip, or masks or key points of objects.
using FieldValue = std::variant<int64_t, Image, Mask, Tensor, Boxes, Flow, Clip, ObjectMasks, Keypoints>;

/// The two images of a sample of optical flow. Where a sample has no `input`, items that change `input` change both in the same way.
inline constexpr std::string_view kPair[] = {"image1", "image2"};

/// A deviation from a file's format that does not change its values. `kind` is a short phrase ("no end marker", "extraneous bytes", ...) by
/// which loaders count; it is empty for a correct file. `message` is for the log.
struct Irregularity {
  std::string kind, message;
};

/// Named values. A list, because there are few.
class Sample {
 public:
  void set(std::string name, FieldValue value) { fields_.emplace_back(std::move(name), std::move(value)); }
  /// The field with that name, or null.
  FieldValue* find(std::string_view name) {
    for (auto& [key, value] : fields_)
      if (key == name) return &value;
    return nullptr;
  }
  const FieldValue* find(std::string_view name) const { return const_cast<Sample*>(this)->find(name); }
  /// `input`, or the first of two images, if it is an image; the first frame of a clip; else null.
  Image* image() {
    FieldValue* input = find("input");
    if (input == nullptr) input = find(kPair[0]);
    if (auto* clip = input == nullptr ? nullptr : std::get_if<Clip>(input)) return &clip->frames.front();
    return input == nullptr ? nullptr : std::get_if<Image>(input);
  }
  const Image* image() const { return const_cast<Sample*>(this)->image(); }
  /// The first field with boxes, or null.
  Boxes* boxes() {
    for (auto& [key, value] : fields_)
      if (auto* found = std::get_if<Boxes>(&value)) return found;
    return nullptr;
  }
  const std::vector<std::pair<std::string, FieldValue>>& fields() const { return fields_; }
  std::vector<std::pair<std::string, FieldValue>>& fields() { return fields_; }

  Irregularity irregularity;  ///< Of the file that the sample was read from.

 private:
  std::vector<std::pair<std::string, FieldValue>> fields_;
};

/// A damaged or unusable sample. Its message begins with its file. `cause` is a short phrase ("truncated", "checksum", "format", ...) by
/// which `on_error: skip` counts.
class BadSample : public Error {
 public:
  BadSample(std::string cause, Error error) : Error(std::move(error)), cause_(std::move(cause)) {}
  BadSample(std::string cause, std::string_view file, std::string_view message) : Error(in_file(file, message)), cause_(std::move(cause)) {}
  const std::string& cause() const { return cause_; }

 private:
  std::string cause_;
};

}  // namespace galley
