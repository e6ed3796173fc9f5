#pragma once
// Transform: one item of a pipeline. Option structs that apply themselves; names, parameters and defaults as in
// torchvision.transforms, numbers as its tensor path. The table is data_transforms().

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/philox.h"
#include "libcore/data/resample.h"

namespace galley {

/// Pixels that an item takes; the pipeline converts u8 to f32 (0..1) before an item that wants floats.
enum class PixelsWanted { kAny, kU8, kFloat };

class Transform : public Options {
 public:
  /// Throws Error (exit 3) where options contradict each other; called once, before the first sample.
  virtual void check() const {}
  virtual PixelsWanted wants() const { return PixelsWanted::kAny; }
  /// Changes the image. `random` belongs to this sample, epoch and item alone. Thread-safe.
  virtual void apply(Image& image, RandomStream& random) const = 0;

  std::string field = "input";  ///< The sample's field that the pipeline gives to apply().

 protected:
  /// What every item has; called at the end of options().
  void item_options(OptionVisitor& visitor);
};

template <class Self>
class TransformOf : public Transform {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
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
  void apply(Image& image, RandomStream& random) const override;
};

struct CenterCrop : TransformOf<CenterCrop> {
  std::vector<int64_t> size;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
};

struct Pad : TransformOf<Pad> {
  std::vector<int64_t> padding;  ///< All sides; [left and right, top and bottom]; or [left, top, right, bottom].
  std::vector<double> fill{0};
  PaddingMode padding_mode = PaddingMode::kConstant;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
};

struct RandomCrop : TransformOf<RandomCrop> {
  std::vector<int64_t> size;
  std::vector<int64_t> padding;
  bool pad_if_needed = false;
  std::vector<double> fill{0};
  PaddingMode padding_mode = PaddingMode::kConstant;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
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
  void apply(Image& image, RandomStream& random) const override;
  /// The part of the image that is taken.
  Region draw(const Image& image, RandomStream& random) const;
};

struct RandomHorizontalFlip : TransformOf<RandomHorizontalFlip> {
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  void apply(Image& image, RandomStream& random) const override;
};

struct RandomVerticalFlip : TransformOf<RandomVerticalFlip> {
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  void apply(Image& image, RandomStream& random) const override;
};

struct Normalize : TransformOf<Normalize> {
  std::vector<double> mean, std;  ///< One for each channel, or one for all; of pixels in 0..1.
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelsWanted wants() const override { return PixelsWanted::kFloat; }
  void apply(Image& image, RandomStream& random) const override;
  /// The same for every value that a u8 pixel may have: [channels][256]. `scale`: pixels are divided by 255 first.
  std::vector<float> table(int64_t channels, bool scale) const;
};

enum class PixelType { kF32, kU8 };

struct ToDtype : TransformOf<ToDtype> {
  PixelType dtype = PixelType::kF32;
  bool scale = true;
  void options(OptionVisitor& visitor) override;
  void apply(Image& image, RandomStream& random) const override;
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
