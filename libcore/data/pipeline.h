#pragma once
// Pipeline: the items of a recipe's `pipeline:`, in order, from a decoded sample to numbers for the model.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/data/sample.h"
#include "libcore/data/transform.h"

namespace galley {

/// What a sample's random numbers depend on, with the item's position in the pipeline.
struct DrawKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t index = 0;  ///< In the source.
};

/// Applies items to `input`, or to the image that an item's `field` names. A u8 input becomes f32 in 0..1 before the first item that computes on floats, at latest at the end,
/// where a last `normalize` is fused with that conversion and the copy into the batch. Thread-safe.
class Pipeline {
 public:
  /// Throws Error (exit 3) where options contradict each other or an item stands in a place where it cannot work.
  explicit Pipeline(const std::vector<Component>& items);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// All items but those that are fused into write().
  void apply(Sample& sample, const DrawKey& key) const;

  /// The shape and dtype that write() gives: [C,H,W] f32 for an image; floats and u8 arrays as f32, other integers as they are.
  static Shape input_shape(const Sample& sample);
  static DType input_dtype(const Sample& sample);
  /// Finishes an applied sample into one row of a batch: an image as [H,W,C] where `channels_last`, else [C,H,W].
  void write(const Sample& sample, bool channels_last, void* row) const;

  /// apply() and write() into a tensor of its own: f32 [C,H,W], contiguous. For prediction and tests.
  Tensor run(Sample sample, const DrawKey& key) const;

 private:
  struct Item;
  static Image* image_of(Sample& sample, const Item& item);
  void write_image(const Image& image, bool channels_last, float* row) const;
  std::vector<Item> items_;
  bool scale_ = true;                          // of the last conversion
  std::unique_ptr<Normalize> normalize_;       // fused with it, or null
  std::vector<float> gray_table_, rgb_table_;  // [channels][256]: the fused conversion for 1 and 3 channels
};

}  // namespace galley
