#pragma once
// Transform: one item of a pipeline. Option structs that declare how they change the fields of a sample, and apply the change. Names,
// parameters and defaults of image items are those of torchvision.transforms; numeric results are those of its tensor path.
// data_transforms() lists the items.

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

namespace text {
class Tokenizer;
}

/// Base of the option structs of all items.
class Transform : public Options {
 public:
  /// Throws Error (exit 3) if options contradict each other. Called once, before the first sample.
  virtual void check() const {}
  /// The fields of samples after this item. Throws Error (exit 3), naming the field, if the item cannot handle samples with fields `in`.
  virtual std::vector<FieldType> fields(std::vector<FieldType> in) const = 0;
  /// Changes one sample. `random` is the stream of this sample, epoch and item. Thread-safe.
  virtual void apply_to_sample(Sample& sample, RandomStream& random) const = 0;
  /// Whether the item joins samples. Then it has others() and join() in place of apply_to_sample().
  virtual bool joins() const { return false; }
  /// How many other samples join() takes in this epoch: their number, or 0 if the sample stays. Thread-safe.
  virtual int64_t others(int64_t epoch, RandomStream& random) const;
  /// Joins the sample with `others`, to which the items before this one were applied. Thread-safe.
  virtual void join(Sample& sample, std::vector<Sample> others, RandomStream& random) const;
};

/// The dtype of pixels that an item needs. u8 is converted to f32 (0..1) before an item that computes on floats.
enum class PixelInput { kAny, kU8, kFloat };
/// How an item moves pixels. Masks and boxes follow kMoves with the same random numbers; they cannot follow kDistorts.
enum class Motion { kNone, kMoves, kDistorts };

/// An item that changes one image of the sample, or all frames of a clip with the same random numbers. If it moves the pixels of the
/// sample's first image, its masks and boxes follow.
class ImageTransform : public Transform {
 public:
  /// The dtype of pixels that apply() needs.
  virtual PixelInput pixel_input() const { return PixelInput::kAny; }
  /// How apply() moves pixels.
  virtual Motion motion() const { return Motion::kNone; }
  /// Changes the image. `random` is the stream of this sample, epoch and item. Thread-safe.
  virtual void apply(Image& image, RandomStream& random) const = 0;
  /// Moves a mask of the same size in the same way, without interpolation. New pixels are Mask::kNoClass.
  virtual void apply_to_mask(Image& mask, RandomStream& random) const { apply(mask, random); }
  /// Sets shape and dtype of the image after the item; kOpenSize for unknown sizes.
  virtual void map_image(FieldType& image) const { static_cast<void>(image); }
  /// Updates the grid as apply() moves pixels; `random` has the same state as in apply(). Items with Motion::kMoves must override it.
  virtual void map_grid(PixelGrid& grid, RandomStream& random) const;

  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;

  /// Field that the item changes: an image, or a mask if the item moves pixels. Two images (kPair) stand for a missing `input`.
  std::string field = "input";

 protected:
  /// Declares the options that all items have. Called at the end of options().
  void item_options(OptionVisitor& visitor);

  /// Sets the size of a mask as that of the image.
  void map_size(FieldType& mask) const;

 private:
  void change_image(Image& image, RandomStream& random) const;
  void change_field(Sample& sample, FieldValue& value, RandomStream& random) const;
  void move_places(Sample& sample, const Image& image, const RandomStream& random) const;
  void move_masks(ObjectMasks& objects, const Image& image, const RandomStream& random) const;
  std::vector<FieldType> fields_of(std::vector<FieldType> in, const std::string& name) const;
};

/// The option p of transforms that are applied at random.
inline constexpr OptionInfo kApplied{.name = "p", .doc = "Probability", .min = 0, .max = 1, .main = true};

/// Implements clone() for the option struct Self.
template <class Self>
class TransformOf : public ImageTransform {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// Renames a field, so that it binds to the model's input or the task's target of that name.
struct Rename : Transform {
  std::string from, to;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Rename>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;
};

/// Hides some tokens, which the model must find (Devlin et al. 2018): the field `label`, which replaces one of that name, holds them, and
/// kNoLabel elsewhere. Special tokens are never hidden.
struct MaskTokens : Transform {
  static constexpr int64_t kNoLabel = -100;  ///< The default of cross_entropy's ignore_index.
  double p = 0.15, replace = 0.8, random = 0.1;
  bool targets = true;
  std::string mask, field = "input";
  std::shared_ptr<const text::Tokenizer> tokenizer;  ///< Set by with_tokenizer; not an option.
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<MaskTokens>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;

 private:
  int32_t mask_id() const;
};
/// Training batches are padded to the shortest of these lengths that holds their samples, and samples of similar length come together
/// (OrderOptions::groups). Elsewhere as `pad` to the longest.
struct Bucket : Transform {
  std::vector<int64_t> lengths;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Bucket>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample&, RandomStream&) const override {}
};
/// Gives the tokenizer of the recipe to the items that need it.
void with_tokenizer(std::vector<Component>& items, const std::shared_ptr<const text::Tokenizer>& tokenizer);

/// The items that a recipe's pipeline may name.
ComponentKinds data_transforms();

/// Value of pixels outside the image: `fill`, the edge pixel, or the image mirrored without (reflect) or with (symmetric) its edge.
enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

/// How a resize that keeps the aspect ratio rounds. kEdge (torchvision.transforms.v2.Resize): the smaller edge becomes `size`, or the
/// longer one `max_size`, and the other edge is rounded down. kScale (torchvision's GeneralizedRCNNTransform): one factor scales both
/// edges, which are rounded down, so that an edge may have a pixel less than `size`.
enum class ResizeRule { kEdge, kScale };
inline constexpr std::string_view kResizeRuleNames[] = {"edge", "scale"};

/// Resizes the image.
struct Resize : TransformOf<Resize> {
  std::vector<int64_t> size;  ///< [height, width], or one number: the smaller edge, with the aspect ratio kept.
  int64_t max_size = 0;       ///< Limit of the longer edge if `size` is one number; 0: no limit.
  ResizeRule rule = ResizeRule::kEdge;
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
  /// [height, width] after resizing an image of height x width pixels.
  std::pair<int64_t, int64_t> target(int64_t height, int64_t width) const;

 private:
  /// The shorter and the longer edge after it, by the rules kEdge and kScale.
  std::pair<int64_t, int64_t> edges_of(int64_t shorter, int64_t longer) const;
  std::pair<int64_t, int64_t> scaled(int64_t shorter, int64_t longer) const;
};

/// Crops the middle of the image.
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

/// Adds pixels at the borders; with `to`, room for tokens at the end.
struct Pad : TransformOf<Pad> {
  int64_t to = 0;                ///< 0: pixels. Otherwise the length to which all padded fields are padded.
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
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample& sample, RandomStream& random) const override;
};

/// Crops a random part of fixed size, after optional padding.
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
  /// An image of height x width pixels with its padding, in the image's coordinates.
  Region padded(int64_t height, int64_t width) const;
  /// Draws the part of the padded image to keep, in the image's coordinates.
  Region draw(int64_t height, int64_t width, RandomStream& random) const;
};

/// Crops a random part of random area and aspect ratio, and resizes it.
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
  /// Draws the part of an image of height x width pixels to keep.
  Region draw(int64_t height, int64_t width, RandomStream& random) const;
};

/// Mirrors the image left to right with probability p.
struct RandomHorizontalFlip : TransformOf<RandomHorizontalFlip> {
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
};

/// Mirrors the image top to bottom with probability p.
struct RandomVerticalFlip : TransformOf<RandomVerticalFlip> {
  double p = 0.5;
  void options(OptionVisitor& visitor) override;
  Motion motion() const override { return Motion::kMoves; }
  void apply(Image& image, RandomStream& random) const override;
  void map_grid(PixelGrid& grid, RandomStream& random) const override;
};

/// (x - mean) / std for pixels in 0..1.
struct Normalize : TransformOf<Normalize> {
  std::vector<double> mean, std;  ///< One value per channel, or one for all.
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelInput pixel_input() const override { return PixelInput::kFloat; }
  void apply(Image& image, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
  /// The results for all 256 values of a u8 pixel, [channels][256]. If `scale`, pixels are divided by 255 first.
  std::vector<float> table(int64_t channels, bool scale) const;
};

enum class PixelType { kF32, kU8 };

/// Converts the dtype of pixels; `scale` also converts between 0..255 and 0..1.
struct ToDtype : TransformOf<ToDtype> {
  PixelType dtype = PixelType::kF32;
  bool scale = true;
  void options(OptionVisitor& visitor) override;
  void apply(Image& image, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
};

/// Changes brightness, contrast, saturation and hue by random factors, in random order.
struct ColorJitter : TransformOf<ColorJitter> {
  std::vector<double> brightness{0}, contrast{0}, saturation{0}, hue{0};  ///< x: range 1 - x .. 1 + x (hue: -x .. x); or [low, high].
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
};

/// Replaces the colors by their luma, in 1 or 3 equal channels.
struct Grayscale : TransformOf<Grayscale> {
  int64_t num_output_channels = 1;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  void apply(Image& image, RandomStream& random) const override;
  void map_image(FieldType& image) const override;
};

/// Overwrites a random rectangle with probability p.
struct RandomErasing : TransformOf<RandomErasing> {
  double p = 0.5;
  std::vector<double> scale{0.02, 0.33};
  std::vector<double> ratio{0.3, 3.3};
  std::vector<std::string> value{"0"};  ///< A number, one number per channel, or "random" (normal distribution).
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelInput pixel_input() const override { return PixelInput::kFloat; }
  void apply(Image& image, RandomStream& random) const override;
};

enum class AutoAugmentPolicy { kImagenet, kCifar10, kSvhn };

/// Applies a random sub-policy of AutoAugment (Cubuk et al., 2018).
struct AutoAugment : TransformOf<AutoAugment> {
  AutoAugmentPolicy policy = AutoAugmentPolicy::kImagenet;
  Interpolation interpolation = Interpolation::kNearest;
  std::vector<double> fill;
  void options(OptionVisitor& visitor) override;
  void check() const override;
  PixelInput pixel_input() const override { return PixelInput::kU8; }
  Motion motion() const override { return Motion::kDistorts; }
  void apply(Image& image, RandomStream& random) const override;
};

/// The operations that random items apply, with explicit parameters. They take u8 and f32 images unless stated otherwise.
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
/// Applies one operation of AutoAugment ("ShearX", "Rotate", ...). `magnitude` includes the sign.
void apply_augmentation(Image& image, std::string_view operation, double magnitude, Interpolation interpolation,
                        const std::vector<double>& fill);
/// One operation of a sub-policy. `magnitude` is an index 0 .. 9, or -1 for operations without magnitude.
struct AugmentationStep {
  std::string_view operation;
  double probability;
  int magnitude;
};
/// The 25 sub-policies of a policy, two operations each.
std::span<const std::array<AugmentationStep, 2>> auto_augment_policy(AutoAugmentPolicy policy);
/// The magnitude of an index 0 .. 9 for an image of height x width pixels, without sign. Sets `is_signed` if a random sign applies.
double augmentation_magnitude(std::string_view operation, int index, int64_t height, int64_t width, bool& is_signed);

}  // namespace galley
