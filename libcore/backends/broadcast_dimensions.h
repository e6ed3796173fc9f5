#pragma once
// How operands that broadcast are walked in the order of the output's memory.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "libcore/graph/tensor_type.h"

namespace galley {

/// A dimension of a walk over up to kMax operands.
template <size_t kMax>
struct BroadcastDimension {
  int64_t size = 1;
  std::array<int64_t, kMax> steps{};  ///< In elements, of each operand; 0: it is broadcast.
};

/// The dimensions of the output from outer to inner, at least one. Neighboring dimensions that all operands walk alike are joined.
template <size_t kMax>
std::vector<BroadcastDimension<kMax>> broadcast_dimensions(std::span<const TensorType* const> operands, const TensorType& out) {
  std::vector<BroadcastDimension<kMax>> dimensions;
  std::array<Shape, kMax> own;
  for (size_t o = 0; o < operands.size(); ++o) own[o] = operands[o]->format.strides(operands[o]->shape);
  for (const int d : out.format.order(out.shape.rank())) {
    if (out.shape[d] == 1) continue;
    BroadcastDimension<kMax> next{out.shape[d], {}};
    bool joins = !dimensions.empty();
    for (size_t o = 0; o < operands.size(); ++o) {
      const Shape& shape = operands[o]->shape;
      const int at = d - (out.shape.rank() - shape.rank());
      next.steps[o] = at < 0 || shape[at] == 1 ? 0 : own[o][at];
      joins = joins && dimensions.back().steps[o] == next.steps[o] * next.size;
    }
    if (joins) {
      dimensions.back() = {dimensions.back().size * next.size, next.steps};
    } else {
      dimensions.push_back(next);
    }
  }
  if (dimensions.empty()) dimensions.push_back({});
  return dimensions;
}

}  // namespace galley
