#pragma once
// Batch: rows of samples as a map of named, typed fields. Sources declare the fields of their samples, transforms map them, the loader
// allocates them, and the inputs of a program bind to them by name.

#include <cstdint>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/tensor/tensor.h"

namespace galley {

/// What the numbers of a field mean, which decides which transforms may change them.
enum class FieldKind : uint8_t {
  kValues,     ///< Numbers without further meaning: columns of a table, regression targets.
  kImage,      ///< [C,H,W].
  kMask,       ///< [H,W]: the class index of each pixel.
  kBoxes,      ///< [n,4]: left, top, right, bottom, in pixels.
  kKeypoints,  ///< [n,3]: x, y in pixels, and visibility.
  kClass,      ///< Class indices: one per sample ([]) or per position ([T]); as f32 [classes]: a probability for each class.
  kTokens,     ///< Indices of a vocabulary that a model looks up.
  kSound,      ///< [channels, samples].
};
/// "image", "mask", ...
std::string_view field_kind_name(FieldKind kind);

/// How a batch stores its samples.
enum class FieldLayout : uint8_t {
  kDense,   ///< NAME [N, sample...].
  kPadded,  ///< NAME [N, sample...], where sample[0] is the longest length, and NAME.length [N] (i64). Zeros past a sample's length.
  kJagged,  ///< NAME.values [N * capacity, sample...] and NAME.offsets [N+1] (i64): sample n is values[offsets[n] .. offsets[n+1]).
};

/// A size that is not known yet: the images of a folder differ in size until a transform resizes them.
inline constexpr int64_t kOpenSize = -1;

/// One field of the samples of a source, of a pipeline's results or of a batch.
struct FieldType {
  std::string name;
  FieldKind kind = FieldKind::kValues;
  FieldLayout layout = FieldLayout::kDense;
  DType dtype = DType::kF32;
  std::vector<int64_t> sample;  ///< Sizes of one sample; kJagged: of one of its elements. kOpenSize: not known yet.
  int64_t capacity = 0;         ///< kJagged: most elements of a sample.
  int64_t classes = 0;          ///< kClass, kMask, kTokens: one above the largest index, 0 where the source does not know.

  bool open() const;
  /// "image `input` u8 [3,?,?]"
  std::string str() const;
  friend bool operator==(const FieldType&, const FieldType&) = default;
};
std::ostream& operator<<(std::ostream& out, const FieldType& type);

/// The field of that name, or null.
const FieldType* find_field(std::span<const FieldType> fields, std::string_view name);
FieldType* find_field(std::vector<FieldType>& fields, std::string_view name);
/// For messages: "input, label"; "none" if there are no fields.
std::string field_names(std::span<const FieldType> fields);

/// One tensor of a batch. A field has one, or two where it is padded or jagged.
struct FieldTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};
/// The tensors of a field for `rows` samples, as FieldLayout says. Throws (kRecipe) where a size is still open.
std::vector<FieldTensor> tensors_of(const FieldType& type, int64_t rows);

/// Rows of samples. The tensors always have the full batch size; the first `valid` rows hold samples. In the other rows class indices are
/// the loader's pad_label, and everything else is 0.
struct Batch {
  std::vector<FieldType> types;          ///< In the order of the pipeline's results.
  std::map<std::string, Tensor> fields;  ///< By the names of tensors_of.
  int64_t valid = 0;
  int64_t first = 0;                          ///< Position of row 0 in the order of samples.
  int64_t epoch = 0;                          ///< Of row 0.
  std::vector<int64_t> indices;               ///< Index in the source of each valid row.
  std::map<int64_t, std::string> unreadable;  ///< By row: why its sample could not be read (OnErrorRule::kReport); the row is zeros.
  std::map<int64_t, std::string> irregular;   ///< By row: what is wrong with the file of a sample that was read in full.

  /// The tensor of that name. Throws (kRecipe), with the names of all fields, if there is none.
  const Tensor& at(const std::string& name) const;
  bool has(const std::string& name) const { return fields.contains(name); }
  const Tensor& input() const { return at("input"); }
  const Tensor& label() const { return at("label"); }
};

}  // namespace galley
