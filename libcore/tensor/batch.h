#pragma once
// Batch: samples as a map of named, typed tensors. Sources declare the fields of their samples, transforms map them, the loader allocates
// them, and program inputs bind to them by name.

#include <cstdint>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/tensor/tensor.h"

namespace galley {

/// The meaning of a field's values. It decides which transforms may change the field.
enum class FieldKind : uint8_t {
  kValues,     ///< Numbers without further meaning: columns of a table, regression targets.
  kImage,      ///< [C,H,W].
  kMask,       ///< [H,W]: the class index of each pixel.
  kBoxes,      ///< [n,4]: left, top, right, bottom, in pixels.
  kKeypoints,  ///< [n,3]: x, y in pixels, and visibility.
  kClass,      ///< Class indices: one per sample ([]) or per position ([T]); as f32 [classes]: a probability for each class.
  kTokens,     ///< Indices into a model's vocabulary.
  kSound,      ///< [channels, samples].
  kFlow,       ///< [3,H,W]: how far right and down each pixel moves, in pixels, and 1 where that is known, else 0.
};
/// "image", "mask", ...
std::string_view field_kind_name(FieldKind kind);

/// How a batch stores its samples.
enum class FieldLayout : uint8_t {
  kDense,   ///< NAME [N, sample...].
  kPadded,  ///< NAME [N, sample...], where sample[0] is the longest length, and NAME.length [N] (i64). After a sample's end, classes are
            ///< the loader's pad_label and all else is zero.
  kJagged,  ///< NAME.values [N * capacity, sample...] and NAME.offsets [N+1] (i64): sample n is values[offsets[n] .. offsets[n+1]).
};

/// A size that is not known yet, e.g. that of images in a folder before a transform resizes them.
inline constexpr int64_t kOpenSize = -1;

/// The type of a field: of a source's samples, of a pipeline's output or of a batch.
struct FieldType {
  std::string name;
  FieldKind kind = FieldKind::kValues;
  FieldLayout layout = FieldLayout::kDense;
  DType dtype = DType::kF32;
  std::vector<int64_t> sample;        ///< Shape of one sample; kJagged: of one element of a sample. May contain kOpenSize.
  int64_t capacity = 0;               ///< kJagged: the maximum number of elements of a sample.
  std::vector<int64_t> lengths = {};  ///< kPadded: ascending lengths to which batches may be cut, the last is sample[0]; empty: only that.
  int64_t classes = 0;                ///< kClass, kMask, kTokens: one more than the largest index; 0 if unknown.

  /// Whether a size is kOpenSize.
  bool open() const;
  /// Text for messages: "image `input` u8 [3,?,?]".
  std::string str() const;
  friend bool operator==(const FieldType&, const FieldType&) = default;
};
std::ostream& operator<<(std::ostream& out, const FieldType& type);

/// The field of that name, or null.
const FieldType* find_field(std::span<const FieldType> fields, std::string_view name);
FieldType* find_field(std::vector<FieldType>& fields, std::string_view name);
/// The names of fields for messages: "input, label"; "none" if there are no fields.
std::string field_names(std::span<const FieldType> fields);

/// A tensor of a batch. A dense field has one, a padded or jagged field two.
struct FieldTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};
/// The tensors of a field for `rows` samples, as FieldLayout describes. Throws Error (kRecipe) if a size is still open.
std::vector<FieldTensor> tensors_of(const FieldType& type, int64_t rows);

/// The tensors always have the full batch size; the first `valid` rows hold samples. In the other rows class indices are the loader's
/// pad_label, and all other values are 0.
struct Batch {
  std::vector<FieldType> types;               ///< In the order of the pipeline's output.
  std::map<std::string, Tensor> fields;       ///< By name; tensors_of lists the names.
  int64_t valid = 0;                          ///< Number of rows that hold samples.
  int64_t first = 0;                          ///< Position of row 0 in the order of samples.
  int64_t epoch = 0;                          ///< Epoch of row 0.
  std::vector<int64_t> indices;               ///< Index in the source of each valid row.
  std::map<int64_t, std::string> unreadable;  ///< By row: why its sample could not be read (OnErrorRule::kReport). The row is zero.
  std::map<int64_t, std::string> irregular;   ///< By row: how the sample's file deviates from its format (Irregularity).

  /// The tensor of that name. Throws Error (kRecipe), listing all names, if there is none.
  const Tensor& at(const std::string& name) const;
  bool has(const std::string& name) const { return fields.contains(name); }
  const Tensor& input() const { return at("input"); }
  const Tensor& label() const { return at("label"); }
};

}  // namespace galley
