#pragma once
// Weights of quantized layers in the format that their kernel reads.

#include <cstddef>
#include <cstring>

#include "libcore/graph/tensor_type.h"

namespace galley::quantized {

inline int64_t aligned_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// The weight in the format of the inner loops: in place, or packed into scratch memory at every run (graphs without a layout pass).
class Packed {
 public:
  Packed(const TensorType& type, const MemoryFormat& format)
      : shape_(type.shape), from_(type.format), to_(format), packed_(type.format == format) {}
  int64_t scratch_bytes() const { return packed_ ? 0 : aligned_bytes(to_.padded_elements(shape_)); }
  const int8_t* get(const int8_t* weight, std::byte* scratch) const {
    if (packed_) return weight;
    auto* out = reinterpret_cast<int8_t*>(scratch);
    std::memset(out, 0, static_cast<size_t>(to_.padded_elements(shape_)));
    Shape index = shape_;
    for (int64_t i = 0; i < shape_.elements(); ++i) {
      int64_t rest = i;
      for (int d = shape_.rank() - 1; d >= 0; --d) {
        index[d] = rest % shape_[d];
        rest /= shape_[d];
      }
      out[to_.offset(shape_, index)] = weight[from_.offset(shape_, index)];
    }
    return out;
  }

 private:
  Shape shape_;
  MemoryFormat from_, to_;
  bool packed_;
};

}  // namespace galley::quantized
