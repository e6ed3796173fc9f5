// Conversions between memory formats, element by element, against the definition of the position of an element.

#include <gtest/gtest.h>

#include <cstring>

#include "libcore/tensor/tensor.h"

namespace galley {
namespace {

Tensor counted(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251);
  tensor.from_doubles(values);
  return tensor;
}

void expect_same_elements(const Tensor& a, const Tensor& b) {
  Shape index = a.shape();
  for (int axis = 0; axis < index.rank(); ++axis) index[axis] = 0;
  const auto element = [&](const Tensor& tensor) {
    const int64_t at = tensor.format().offset(tensor.shape(), index) * dtype_size(tensor.dtype());
    return load_element(tensor.dtype(), static_cast<const std::byte*>(tensor.data()) + at);
  };
  for (int64_t i = 0; i < a.elements(); ++i) {
    ASSERT_EQ(element(a), element(b)) << "element " << i << " of " << a.str() << " and " << b.str();
    for (int axis = index.rank() - 1; axis >= 0 && ++index[axis] == a.shape()[axis]; --axis) index[axis] = 0;
  }
}

TEST(Formats, EveryElementKeepsItsIndex) {
  struct Case {
    Shape shape;
    MemoryFormat format;
  };
  const std::vector<Case> cases{
      {{2, 3, 5, 7}, MemoryFormat::channels_last()},       {{1, 4, 1, 9}, MemoryFormat::channels_last()},
      {{2, 3, 2, 4, 5}, MemoryFormat::channels_last_3d()}, {{19, 5, 3, 3}, MemoryFormat::blocked("Acdb8a")},  // 19 is padded to 24
      {{70, 33, 3, 3}, MemoryFormat::blocked("Acdb64a")},  {{19, 13, 1, 1}, MemoryFormat::blocked("ABcd8b8a")},
      {{130, 70}, MemoryFormat::blocked("Ab16a")},         {{300, 260, 1, 1}, MemoryFormat::channels_last()}};  // divided among threads
  for (const Case& item : cases) {
    for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
      const Tensor plain = counted(dtype, item.shape);
      const Tensor moved = plain.to(item.format);
      expect_same_elements(plain, moved);
      const Tensor back = moved.to(MemoryFormat::contiguous());
      EXPECT_EQ(std::memcmp(back.data(), plain.data(), static_cast<size_t>(plain.bytes())), 0) << item.format;
      EXPECT_EQ(moved.to_doubles(), plain.to_doubles()) << item.format;
    }
  }
}

TEST(Formats, PaddingOfBlocksIsZero) {
  const Tensor blocked = counted(DType::kF32, {19, 5, 3, 3}).to(MemoryFormat::blocked("Acdb8a"));
  double sum = 0, wanted = 0;
  for (int64_t i = 0; i < blocked.bytes() / 4; ++i) sum += static_cast<double>(blocked.data_as<float>()[i]);
  for (const double value : blocked.to_doubles()) wanted += value;
  EXPECT_EQ(blocked.bytes(), 24 * 5 * 9 * 4);
  EXPECT_EQ(sum, wanted);
}

TEST(Formats, EmptyArraysStayEmpty) {
  const Tensor empty(DType::kF32, {0, 3, 4, 4});
  EXPECT_EQ(empty.to(MemoryFormat::channels_last()).elements(), 0);
}

}  // namespace
}  // namespace galley
