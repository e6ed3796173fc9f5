#include "libcore/backends/ref/ref.h"

#include <cstring>

#include "libcore/backends/ref/memory.h"

namespace galley {
namespace {

/// Calls visit(logical index, offset in elements) for each element in logical order.
template <class Visit>
void for_each_element(const TensorType& type, Visit visit) {
  const Shape& shape = type.shape;
  const int64_t elements = shape.elements();
  if (type.format.is_contiguous()) {
    for (int64_t i = 0; i < elements; ++i) visit(i, i);
    return;
  }
  const Shape strides = type.format.is_blocked() ? Shape() : type.format.strides(shape);
  Shape index = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) index[axis] = 0;
  for (int64_t i = 0; i < elements; ++i) {
    int64_t offset = 0;
    if (type.format.is_blocked()) {
      offset = type.format.offset(shape, index);
    } else {
      for (int axis = 0; axis < shape.rank(); ++axis) offset += index[axis] * strides[axis];
    }
    visit(i, offset);
    for (int axis = shape.rank() - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
  }
}

}  // namespace

RefArray read_array(const TensorType& type, const void* memory) {
  RefArray array{type.shape, std::vector<double>(static_cast<size_t>(type.elements()))};
  const auto* bytes = static_cast<const std::byte*>(memory);
  const int64_t size = dtype_size(type.dtype);
  for_each_element(type, [&](int64_t i, int64_t offset) { array[i] = load_element(type.dtype, bytes + offset * size); });
  return array;
}

void write_array(const TensorType& type, const RefArray& array, void* memory) {
  GALLEY_ASSERT(array.shape == type.shape, "an array of shape ", array.shape, " is written as ", type.str());
  auto* bytes = static_cast<std::byte*>(memory);
  const int64_t size = dtype_size(type.dtype);
  if (type.format.is_blocked()) std::memset(bytes, 0, static_cast<size_t>(type.bytes()));
  for_each_element(type, [&](int64_t i, int64_t offset) { store_element(type.dtype, bytes + offset * size, array[i]); });
}

void round_array(DType dtype, RefArray& array) {
  if (dtype == DType::kF64) return;
  std::byte element[8];
  for (double& value : array.v) {
    store_element(dtype, element, value);
    value = load_element(dtype, element);
  }
}

RefArray to_ref(const Tensor& tensor) { return {tensor.shape(), tensor.to_doubles()}; }

}  // namespace galley
