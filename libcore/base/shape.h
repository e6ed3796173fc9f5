#pragma once
// Shape: the sizes of a tensor, outermost first, in logical order (N,C,H,W in every memory format).

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>

namespace galley {

/// At most kMaxRank sizes, none negative; a size of 0 means an empty tensor.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return sizes_[static_cast<size_t>(axis < 0 ? axis + rank_ : axis)]; }
  int64_t& operator[](int axis) { return sizes_[static_cast<size_t>(axis < 0 ? axis + rank_ : axis)]; }
  /// Product of the sizes, 1 for a scalar. Throws Error if it exceeds 63 bits.
  int64_t elements() const;
  std::span<const int64_t> sizes() const { return {sizes_.data(), static_cast<size_t>(rank_)}; }
  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + rank_; }
  void push_back(int64_t size);
  /// Strides in elements of a contiguous tensor of this shape.
  Shape contiguous_strides() const;
  /// "[8,48,56,56]"
  std::string str() const;

  friend bool operator==(const Shape& a, const Shape& b);
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

/// Shape of an element-wise result by NumPy's broadcasting rules: right-aligned, sizes equal or 1. Throws Error if the shapes do not
/// broadcast.
Shape broadcast_shapes(const Shape& a, const Shape& b);

}  // namespace galley
