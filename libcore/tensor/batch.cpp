#include "libcore/tensor/batch.h"

#include <algorithm>

namespace galley {

std::string_view field_kind_name(FieldKind kind) {
  switch (kind) {
    case FieldKind::kValues: return "values";
    case FieldKind::kImage: return "image";
    case FieldKind::kMask: return "mask";
    case FieldKind::kBoxes: return "boxes";
    case FieldKind::kKeypoints: return "keypoints";
    case FieldKind::kClass: return "class";
    case FieldKind::kTokens: return "tokens";
    case FieldKind::kSound: return "sound";
    case FieldKind::kFlow: return "flow";
  }
  GALLEY_ASSERT(false);
}

bool FieldType::open() const { return std::find(sample.begin(), sample.end(), kOpenSize) != sample.end(); }

std::string FieldType::str() const {
  std::string sizes;
  for (const int64_t size : sample) sizes += cat(sizes.empty() ? "" : ",", size == kOpenSize ? std::string("?") : std::to_string(size));
  const char* suffix = layout == FieldLayout::kDense ? "" : layout == FieldLayout::kPadded ? " padded" : " jagged";
  return cat(field_kind_name(kind), " `", name, "` ", dtype, " [", sizes, "]", suffix);
}

std::ostream& operator<<(std::ostream& out, const FieldType& type) { return out << type.str(); }

const FieldType* find_field(std::span<const FieldType> fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const FieldType& type) { return type.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

FieldType* find_field(std::vector<FieldType>& fields, std::string_view name) {
  return const_cast<FieldType*>(find_field(std::span<const FieldType>(fields), name));
}

std::string field_names(std::span<const FieldType> fields) {
  std::string names;
  for (const FieldType& type : fields) names += (names.empty() ? "" : ", ") + type.name;
  return names.empty() ? "none" : names;
}

std::vector<FieldTensor> tensors_of(const FieldType& type, int64_t rows) {
  GALLEY_CHECK(!type.open(), "the size of ", type, " is not known; all samples of a batch must have the same size");
  const bool jagged = type.layout == FieldLayout::kJagged;
  Shape shape{jagged ? rows * type.capacity : rows};
  for (const int64_t size : type.sample) shape.push_back(size);
  if (jagged) return {{type.name + ".values", type.dtype, shape}, {type.name + ".offsets", DType::kI64, {rows + 1}}};
  std::vector<FieldTensor> tensors{{type.name, type.dtype, shape}};
  if (type.layout == FieldLayout::kPadded) tensors.push_back({type.name + ".length", DType::kI64, {rows}});
  return tensors;
}

const Tensor& Batch::at(const std::string& name) const {
  const auto found = fields.find(name);
  if (found != fields.end()) return found->second;
  std::string names;
  for (const auto& [known, tensor] : fields) names += (names.empty() ? "" : ", ") + known;
  throw Error(ErrorCode::kRecipe, cat("batches have no field `", name, "`; they have ", names.empty() ? "none" : names));
}

}  // namespace galley
