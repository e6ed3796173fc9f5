#pragma once
// Mosaic: one image of four samples, for detection and segmentation.

#include <vector>

#include "libcore/data/transform.h"

namespace galley {

/// Joins the sample with three others of its source (Bochkovskiy et al. 2020). The rule is that of YOLO's published implementations: each
/// image is resized, with its aspect ratio kept, to the largest size that fits into `size`; a canvas of twice `size` has a center at random
/// in its middle half; the images touch it with their bottom right, bottom left, top right and top left corners, in this order, and are
/// cut at the canvas's edges. Boxes, masks and key points follow.
struct Mosaic : TransformOf<Mosaic> {
  static constexpr size_t kImages = 4;
  std::vector<int64_t> size;
  std::vector<double> fill{114};
  double p = 1;
  int64_t epochs = 0;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelInput pixel_input() const override { return PixelInput::kU8; }
  Motion motion() const override { return Motion::kDistorts; }  // of four images, so no grid can follow
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  bool joins() const override { return true; }
  int64_t others(int64_t epoch, RandomStream& random) const override;
  void join(Sample& sample, std::vector<Sample> others, RandomStream& random) const override;
  void apply_to_sample(Sample&, RandomStream&) const override {}
  void apply(Image&, RandomStream&) const override {}

 private:
  /// Resizes the image of a sample and what belongs to it, and says where its top left corner is in the canvas.
  PixelGrid resize_image(Sample& sample, size_t number, int64_t center_y, int64_t center_x) const;
};

}  // namespace galley
