#include "libcore/data/bad_row.h"

#include <algorithm>
#include <cmath>

namespace galley {
namespace {

/// Offset of the first value that is not finite; -1 if all are finite.
template <class T>
int64_t first_bad(const Tensor& tensor, int64_t count) {
  const auto* values = static_cast<const T*>(tensor.data());
  const auto* found = std::find_if(values, values + count, [](T value) { return !std::isfinite(value); });
  return found == values + count ? -1 : found - values;
}

}  // namespace

std::optional<BadRow> first_bad_row(const Batch& batch, const std::function<bool(const std::string& field)>& accepts) {
  std::optional<BadRow> bad;
  for (const auto& [name, tensor] : batch.fields) {
    const bool jagged = std::any_of(batch.types.begin(), batch.types.end(), [&, &field = name](const FieldType& type) {
      return type.layout == FieldLayout::kJagged && field.starts_with(type.name + ".");
    });
    const bool single = tensor.dtype() == DType::kF32;
    if (jagged || !accepts(name) || tensor.elements() == 0 || !(single || tensor.dtype() == DType::kF64)) continue;
    // Rows are contiguous in both memory formats of images.
    const int64_t row_elements = tensor.elements() / tensor.shape()[0], count = batch.valid * row_elements;
    const int64_t at = single ? first_bad<float>(tensor, count) : first_bad<double>(tensor, count);
    if (at < 0 || (bad && bad->row <= at / row_elements)) continue;
    bad = BadRow{.row = at / row_elements,
                 .field = name,
                 .value = single ? static_cast<const float*>(tensor.data())[at] : static_cast<const double*>(tensor.data())[at]};
  }
  return bad;
}

}  // namespace galley
