#pragma once
// Transforms for detection, and how boxes follow their image. Names, options and rules are those of torchvision.transforms.v2, except that
// every item clips boxes to the image and drops those without area, which torchvision leaves to sanitize_bounding_boxes.

#include <vector>

#include "libcore/data/transform.h"

namespace galley {

/// Moves boxes as an item moves the pixels of their image: `grid` maps the new pixels to the old ones. Clips them to the new image and
/// drops those without area.
void move_boxes(Sample& sample, Boxes& boxes, const PixelGrid& grid);
/// Moves key points likewise (sample.h).
void move_keypoints(Keypoints& keypoints, const PixelGrid& grid);
/// Keeps the boxes marked in `keep`, and the elements of their companions.
void keep_boxes(Sample& sample, Boxes& boxes, const std::vector<bool>& keep);

/// Crops a random part that holds the center of a box and overlaps such a box with at least an intersection over union that is drawn from
/// sampler_options; 1 or more: the image stays (Liu et al. 2015, SSD). Boxes whose center is outside are dropped. An image without boxes
/// stays.
struct RandomIouCrop : TransformOf<RandomIouCrop> {
  double min_scale = 0.3, max_scale = 1.0, min_aspect_ratio = 0.5, max_aspect_ratio = 2.0;
  std::vector<double> sampler_options{0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0};
  int64_t trials = 40;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kDistorts; }  // it depends on the boxes, so no grid can follow
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;
  void apply(Image&, RandomStream&) const override {}

  /// Draws the part to keep of an image with boxes [n,4], and sets `inside`: the boxes whose center it holds. Returns false if the image
  /// stays.
  bool draw(const Tensor& boxes, int64_t height, int64_t width, RandomStream& random, Region& part, std::vector<bool>& inside) const;
};

/// Puts the image at a random place of a larger one, with probability p (Liu et al. 2015, SSD).
struct RandomZoomOut : TransformOf<RandomZoomOut> {
  std::vector<double> fill{0};
  std::vector<double> side_range{1.0, 4.0};
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;

 private:
  /// The larger image in the coordinates of the image.
  Region draw(int64_t height, int64_t width, RandomStream& random) const;
};

/// Resizes to a random multiple of the largest size that fits into target_size, with the aspect ratio kept (Ghiasi et al. 2020).
struct ScaleJitter : TransformOf<ScaleJitter> {
  std::vector<int64_t> target_size;
  std::vector<double> scale_range{0.1, 2.0};
  Interpolation interpolation = Interpolation::kBilinear;
  bool antialias = true;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;

 private:
  /// The resize that the image gets.
  Resize draw(int64_t height, int64_t width, RandomStream& random) const;
};

/// Puts the image at the top left of a canvas of fixed size, so that images of different sizes are a batch; new pixels are 0. With `sizes`
/// the canvas of a batch is the smallest of these and `size` that holds its images: the loader pads, and FieldType::lengths has rows and
/// columns of each. Adds the fields `image_size` f32 [2], rows and columns of the image, and `image_extents` i64 [2], the same rounded up
/// to multiples of kMultiple.
struct PadTo : TransformOf<PadTo> {
  static constexpr int64_t kMultiple = 32;  ///< Detectors need sizes that are multiples of this.
  static constexpr size_t kMostSizes = 16;
  std::vector<int64_t> size;
  std::vector<std::string> sizes;  ///< "ROWSxCOLUMNS"
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;

 private:
  /// Rows and columns of each canvas, by area; the last is `size`. Empty without `sizes`.
  std::vector<int64_t> canvases() const;
  /// The pixels to add to an image of that size.
  Pad margins(int64_t height, int64_t width) const;
};

/// Repeats the last row and column of a mask [rows, columns] of an object at the top left of a canvas once, so that a sample between its
/// last pixel and the image's edge is that of the mask alone.
void extend_mask(uint8_t* canvas, int64_t canvas_rows, int64_t canvas_columns, int64_t rows, int64_t columns);

/// Drops boxes with a side below min_size or an area below min_area.
struct SanitizeBoundingBoxes : Transform {
  double min_size = 1, min_area = 1;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<SanitizeBoundingBoxes>(*this); }
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;
};

/// Changes brightness, contrast, saturation, hue and the order of channels, each with probability p (Liu et al. 2015, SSD).
struct RandomPhotometricDistort : TransformOf<RandomPhotometricDistort> {
  std::vector<double> brightness{0.875, 1.125}, contrast{0.5, 1.5}, saturation{0.5, 1.5}, hue{-0.05, 0.05};
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
};

}  // namespace galley
