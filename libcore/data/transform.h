#pragma once
// Transform: one item of a pipeline. Option structs that say what they do to the fields of a sample, and do it. Names, parameters and
// defaults of image items are those of torchvision.transforms, numbers those of its tensor path. The table is data_transforms().

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/philox.h"
#include "libcore/data/pixel_grid.h"
#include "libcore/data/resample.h"
#include "libcore/data/sample.h"
#include "libcore/tensor/batch.h"

namespace galley {

class Transform : public Options {
 public:
  /// Throws Error (exit 3) where options contradict each other; called once, before the first sample.
  virtual void check() const {}
  /// The fields of samples after this item. Throws Error (exit 3), naming the field, where the item cannot work on samples of `in`.
  virtual std::vector<FieldType> fields(std::vector<FieldType> in) const = 0;
  /// Changes a sample of such fields. `random` belongs to this sample, epoch and item alone. Thread-safe.
  virtual void apply_to_sample(Sample& sample, RandomStream& random) const = 0;
};

/// Pixels that an item takes; u8 becomes f32 (0..1) before an item that computes on floats.
enum class PixelsWanted { kAny, kU8, kFloat };
/// What an item does to the places of pixels. Masks follow kMoves with the same random numbers; nothing can follow kDistorts.
enum class Motion { kNone, kMoves, kDistorts };

/// An item that changes one image of the sample. An item that moves the pixels of the sample's first image moves those of its masks too.
class ImageTransform : public Transform {
 public:
  virtual PixelsWanted wants() const { return PixelsWanted::kAny; }
  virtual Motion motion() const { return Motion::kNone; }
  /// Changes the image. `random` belongs to this sample, epoch and item alone. Thread-safe.
  virtual void apply(Image& image, RandomStream& random) const = 0;
  /// The same motion for a mask of the same size: no value is made up, and new pixels have Mask::kNoClass.
  virtual void apply_to_mask(Image& mask, RandomStream& random) const { apply(mask, random); }
  /// Sizes and dtype of the image after the item; kOpenSize where they are not known.
  virtual void map_image(FieldType& image) const { static_cast<void>(image); }
  /// Where the pixels lie after the item; `random` as apply() gets it. Every item that moves pixels (Motion::kMoves) overrides it.
  virtual void map_grid(PixelGrid& grid, RandomStream& random) const;

  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;

  std::string field = "input";  ///< The sample's field that the item changes: an image, or a mask for items that move pixels.

 protected:
  /// What every item has; called at the end of options().
  void item_options(OptionVisitor& visitor);

 private:
  void map_size(FieldType& mask) const;
};

template <class Self>
class TransformOf : public ImageTransform {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// Gives a field another name, so that it binds to the model's input or the task's target of that name.
struct Rename : Transform {
  std::string from, to;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Rename>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;
};

/// The items that a recipe's pipeline may name.
ComponentKinds data_transforms();

enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

struct Resize : TransformOf<Resize> {
  std::vector<int64_t> size;  ///< [height, width], or one number: the smaller edge, aspect kept.
  int64_t max_size = 0;       ///< With one number: the longer edge is at most this; 0 is no bound.
  Interpolation interpolation = Interpolation::kBilinear;
  bool antialias = true;
  ResizeBackend backend = ResizeBackend::kPillow;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
  /// [height, width] that an image of this size gets.
  std::pair<int64_t, int64_t> target(int64_t height, int64_t width) const;
};

struct CenterCrop : TransformOf<CenterCrop> {
  std::vector<int64_t> size;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
};

struct Pad : TransformOf<Pad> {
  std::vector<int64_t> padding;  ///< All sides; [left and right, top and bottom]; or [left, top, right, bottom].
  std::vector<double> fill{0};
  PaddingMode padding_mode = PaddingMode::kConstant;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
};

struct RandomCrop : TransformOf<RandomCrop> {
  std::vector<int64_t> size;
  std::vector<int64_t> padding;
  bool pad_if_needed = false;
  std::vector<double> fill{0};
  PaddingMode padding_mode = PaddingMode::kConstant;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;

 private:
  /// An image of that size with its padding, in the image's coordinates.
  Region padded(int64_t height, int64_t width) const;
  /// The part of the padded image that is taken, in the image's coordinates.
  Region draw(int64_t height, int64_t width, RandomStream& random) const;
};

struct RandomResizedCrop : TransformOf<RandomResizedCrop> {
  std::vector<int64_t> size;
  std::vector<double> scale{0.08, 1.0};
  std::vector<double> ratio{3.0 / 4.0, 4.0 / 3.0};
  Interpolation interpolation = Interpolation::kBilinear;
  bool antialias = true;
  ResizeBackend backend = ResizeBackend::kPillow;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void apply_to_mask(Image& mask, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
  /// The part of an image of that size that is taken.
  Region draw(int64_t height, int64_t width, RandomStream& random) const;
};

struct RandomHorizontalFlip : TransformOf<RandomHorizontalFlip> {
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
};

struct RandomVerticalFlip : TransformOf<RandomVerticalFlip> {
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
};

struct Normalize : TransformOf<Normalize> {
  std::vector<double> mean, std;  ///< One for each channel, or one for all; of pixels in 0..1.
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelsWanted wants() const override { return PixelsWanted::kFloat; }
  void apply(Image& image, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  /// The same for every value that a u8 pixel may have: [channels][256]. `scale`: pixels are divided by 255 first.
  std::vector<float> table(int64_t channels, bool scale) const;
};

enum class PixelType { kF32, kU8 };

struct ToDtype : TransformOf<ToDtype> {
  PixelType dtype = PixelType::kF32;
  bool scale = true;
  void options(OptionVisitor& visitor) override;
  void apply(Image& image, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
};

struct ColorJitter : TransformOf<ColorJitter> {
  std::vector<double> brightness{0}, contrast{0}, saturation{0}, hue{0};  ///< x: 1 - x .. 1 + x (hue -x .. x), or [low, high].
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
};

struct Grayscale : TransformOf<Grayscale> {
  int64_t num_output_channels = 1;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
};

struct RandomErasing : TransformOf<RandomErasing> {
  double p = 0.5;
  std::vector<double> scale{0.02, 0.33};
  std::vector<double> ratio{0.3, 3.3};
  std::vector<std::string> value{"0"};  ///< A number, one for each channel, or "random" (normal).
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelsWanted wants() const override { return PixelsWanted::kFloat; }
  void apply(Image& image, RandomStream& random) const override;
};

enum class AutoAugmentPolicy { kImagenet, kCifar10, kSvhn };

struct AutoAugment : TransformOf<AutoAugment> {
  AutoAugmentPolicy policy = AutoAugmentPolicy::kImagenet;
  Interpolation interpolation = Interpolation::kNearest;
  std::vector<double> fill;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelsWanted wants() const override { return PixelsWanted::kU8; }
  Motion motion() const override { return Motion::kDistorts; }
  void apply(Image& image, RandomStream& random) const override;
};

/// The steps that random items are made of, with the chosen values given. u8 or f32 unless said otherwise.
Image pad_image(const Image& image, const Pad& options);
void flip_horizontal(Image& image);
void flip_vertical(Image& image);
Image to_grayscale(const Image& image, int64_t num_output_channels);
void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
void adjust_hue(Image& image, double factor);  ///< `factor` in -0.5 .. 0.5 turns.
void adjust_sharpness(Image& image, double factor);
void posterize(Image& image, int64_t bits);     ///< u8
void solarize(Image& image, double threshold);  ///< u8
void autocontrast(Image& image);                ///< u8
void equalize(Image& image);                    ///< u8
void invert(Image& image);                      ///< u8
/// One named operation of AutoAugment: "ShearX", "Rotate", ... with its magnitude, sign included.
void apply_augmentation(Image& image, std::string_view operation, double magnitude, Interpolation interpolation,
                        const std::vector<double>& fill);
/// The sub-policies of a policy, as (operation, probability, magnitude index or -1), two a sub-policy.
struct AugmentationStep {
  std::string_view operation;
  double probability;
  int magnitude;
};
std::span<const std::array<AugmentationStep, 2>> auto_augment_policy(AutoAugmentPolicy policy);
/// The magnitude that an index of 0..9 stands for, without sign, and whether a random sign applies.
double augmentation_magnitude(std::string_view operation, int index, int64_t height, int64_t width, bool& is_signed);

}  // namespace galley
