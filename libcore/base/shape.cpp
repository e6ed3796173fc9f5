#include "libcore/base/shape.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {

Shape::Shape(std::span<const int64_t> sizes) {
  for (int64_t size : sizes) push_back(size);
}

void Shape::push_back(int64_t size) {
  GALLEY_CHECK(rank_ < kMaxRank, "a tensor has at most ", kMaxRank, " dimensions");
  GALLEY_CHECK(size >= 0, "a dimension size must not be negative, got ", size);
  sizes_[static_cast<size_t>(rank_++)] = size;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int64_t size : *this) {
    if (size == 0) return 0;
  }
  for (int64_t size : *this)
    GALLEY_CHECK(!__builtin_mul_overflow(product, size, &product), "a tensor of shape ", str(),
                 " is too large: its element count exceeds 63 bits");
  return product;
}

Shape Shape::contiguous_strides() const {
  Shape strides = *this;
  int64_t step = 1;
  for (int axis = rank_ - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<int64_t>(1, (*this)[axis]);
  }
  return strides;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) text += (axis ? "," : "") + std::to_string((*this)[axis]);
  return text + "]";
}

bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int axis = 0; axis < rank; ++axis) {
    const int ia = axis - (rank - a.rank());
    const int ib = axis - (rank - b.rank());
    const int64_t sa = ia < 0 ? 1 : a[ia];
    const int64_t sb = ib < 0 ? 1 : b[ib];
    GALLEY_CHECK(sa == sb || sa == 1 || sb == 1, "shapes ", a, " and ", b, " do not broadcast: at dimension ", axis - rank, " the sizes ",
                 sa, " and ", sb, " differ and neither is 1");
    result.push_back(sa == 1 ? sb : sa);
  }
  return result;
}

}  // namespace galley
