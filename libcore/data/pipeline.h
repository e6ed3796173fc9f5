#pragma once
// Pipeline: the items of a recipe's `pipeline:` in order. They turn a decoded sample into the numbers of a batch.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/data/sample.h"
#include "libcore/data/transform.h"
#include "libcore/tensor/pixels.h"

namespace galley {

/// Selects a sample's random numbers, together with the item's position in the pipeline.
struct DrawKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t index = 0;  ///< Index of the sample in the source.
};

/// The samples that may be joined with a sample: `read` returns that of a number below `size`, and sets its index in the source.
struct OtherSamples {
  int64_t size = 0;
  std::function<Sample(int64_t number, int64_t& index)> read;
};

/// Applies items in order. A u8 image becomes f32 in 0..1 before the first item that computes on floats, or at the end. A final `normalize`
/// is fused with that conversion and with the copy into the batch. Thread-safe.
class Pipeline {
 public:
  /// Throws Error (exit 3; key "pipeline.N") if options of an item contradict each other.
  explicit Pipeline(const std::vector<Component>& items);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// The fields of a batch, after all items and write(), given the fields `in` of the samples. Throws Error (exit 3), naming the item (key
  /// "pipeline.N"), the field and the available fields, if an item cannot handle them.
  std::vector<FieldType> fields(const std::vector<FieldType>& in) const;

  /// Applies all items except those that are fused into write(). Without `others`, items that join samples leave the sample as it is.
  void apply(Sample& sample, const DrawKey& key, const OtherSamples* others = nullptr) const;

  /// Maps the pixels of the transformed `input` to the original image of height x width pixels. nullopt if an item moves pixels in a way
  /// that a grid cannot express (auto_augment).
  std::optional<PixelGrid> grid(int64_t height, int64_t width, const DrawKey& key) const;

  /// Shape and dtype of a field in the batch, as write() writes it: an image is f32 [C,H,W], a mask i64 [H,W], a class i64 []; float and u8
  /// arrays become f32, other integers keep their dtype.
  static Shape shape_of(const FieldValue& value);
  static DType dtype_of(const FieldValue& value);
  /// Writes a field of a sample, after apply(), into its row of a batch. Images are [H,W,C] if `channels_last`, else [C,H,W]. Mask pixels
  /// without a class become `no_class`.
  void write(const Sample& sample, const std::string& field, bool channels_last, int64_t no_class, void* row) const;

  /// The images that are still bytes after all items, given the fields `in` of the samples, and how write() converts them.
  PixelConversions bytes(const std::vector<FieldType>& in) const;
  /// As write() for a field of bytes(), without the conversion. Throws Error (kInput) if the image of this sample is not in bytes.
  void write_bytes(const Sample& sample, const std::string& field, bool channels_last, void* row) const;

  /// apply() and write() of `input` into a new tensor, f32 [C,H,W], contiguous. For tests.
  Tensor run(Sample sample, const DrawKey& key) const;

 private:
  struct Item;
  struct Finish;
  std::vector<Item> items_;
  std::map<std::string, Finish> finishes_;  // for fields whose last items are fused with the copy into the batch
  std::unique_ptr<Finish> plain_;           // for all other fields
  std::vector<FieldType> fields_after_items(std::vector<FieldType> fields) const;
  void join(Sample& sample, size_t number, const DrawKey& key, const OtherSamples& others) const;
  const Finish& finish_of(const std::string& field) const;
};

/// The items of a pipeline that apply to samples with `fields`; items that change or rename a missing field, and items that join
/// samples, are dropped. Prediction needs this: its samples have no masks or labels, but the pipeline of the evaluation may name them.
std::vector<Component> items_for(const std::vector<Component>& items, std::vector<FieldType> fields);

}  // namespace galley
