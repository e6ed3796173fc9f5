#pragma once
// Pipeline: the items of a recipe's `pipeline:`, in order, from a decoded sample to numbers for the model.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

/// Applies items in order. A u8 image becomes f32 in 0..1 before the first item that computes on floats, at latest at the end, where a last
/// `normalize` is fused with that conversion and the copy into the batch. Thread-safe.
class Pipeline {
 public:
  /// Throws Error (exit 3; key "pipeline.N") where options contradict each other.
  explicit Pipeline(const std::vector<Component>& items);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// The fields of a batch that is made of samples of `in`: what the items and write() make of them. Throws Error (exit 3), naming the item
  /// (key "pipeline.N"), the field and the fields that there are, where an item cannot work on them.
  std::vector<FieldType> fields(const std::vector<FieldType>& in) const;

  /// All items but those that are fused into write().
  void apply(Sample& sample, const DrawKey& key) const;

  /// Where the pixels of the image that apply() makes of a sample's `input`, an image of that size, lie in it; nullopt where an item moves
  /// pixels in a way that a grid cannot follow (auto_augment).
  std::optional<PixelGrid> grid(int64_t height, int64_t width, const DrawKey& key) const;

  /// The sizes and dtype that write() gives a field: an image [C,H,W] f32, a mask [H,W] i64, a class [] i64; floats and u8 arrays as f32,
  /// other integers as they are.
  static Shape shape_of(const FieldValue& value);
  static DType dtype_of(const FieldValue& value);
  /// Finishes the field of that name of an applied sample into one row of a batch: an image as [H,W,C] where `channels_last`, else [C,H,W];
  /// pixels of masks without a class as `no_class`.
  void write(const Sample& sample, const std::string& field, bool channels_last, int64_t no_class, void* row) const;

  /// apply() and write() of `input` into a tensor of its own: f32 [C,H,W], contiguous. For tests.
  Tensor run(Sample sample, const DrawKey& key) const;

 private:
  struct Item;
  struct Finish;
  std::vector<Item> items_;
  std::map<std::string, Finish> finishes_;  // of fields whose last items are fused with the copy into the batch
  std::unique_ptr<Finish> plain_;           // of other fields
  const Finish& finish_of(const std::string& field) const;
};

/// The items of a pipeline that apply to such fields: without those that change or rename a field that there is not. Prediction has no
/// masks or labels, which items of the evaluation's pipeline may name.
std::vector<Component> items_for(const std::vector<Component>& items, std::vector<FieldType> fields);

}  // namespace galley
