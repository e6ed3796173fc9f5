#pragma once
// TensorType: the type of a graph value.

#include <ostream>
#include <string>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/format.h"

namespace galley {

/// dtype, logical shape (N,C,H,W in every memory format), memory format, and dimension names: none, or one per dimension ("": unnamed).
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  MemoryFormat format;
  std::vector<std::string> names;

  /// Bytes in memory, padding of blocked formats included.
  int64_t bytes() const { return format.padded_elements(shape) * dtype_size(dtype); }
  int64_t elements() const { return shape.elements(); }
  /// "f32 [8,64,56,56] channels_last"; contiguous is left out.
  std::string str() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
  friend std::ostream& operator<<(std::ostream& out, const TensorType& type) { return out << type.str(); }
};

}  // namespace galley
