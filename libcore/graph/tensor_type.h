#pragma once
// TensorType: the type of a graph value.

#include <ostream>
#include <string>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/graph/placement.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/format.h"

namespace galley {

/// dtype, logical shape (N,C,H,W in every memory format) of what this rank holds, memory format, dimension names (none, or one per
/// dimension; "": unnamed), and what the ranks hold of the value.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  MemoryFormat format;
  std::vector<std::string> names;
  Placement placement = {};

  /// Bytes in memory, padding of blocked formats included.
  int64_t bytes() const { return format.padded_elements(shape) * dtype_size(dtype); }
  int64_t elements() const { return shape.elements(); }
  /// "f32 [8,64,56,56] channels_last"; contiguous and the placement are left out.
  std::string str() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
  friend std::ostream& operator<<(std::ostream& out, const TensorType& type) { return out << type.str(); }
};

}  // namespace galley
