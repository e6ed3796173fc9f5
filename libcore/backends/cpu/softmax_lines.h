#pragma once
// Shared by softmax and cross entropy: an array as lines along one axis, and the maximum and the sum of exponentials of lines. Lines of
// consecutive elements are handled one by one, others in bundles of neighboring lines, so that memory is read in order either way.

#include <cstdint>

#include "libcore/graph/tensor_type.h"

namespace galley {

/// The array as outer x length x inner in memory; a line's elements are `inner` apart.
struct Lines {
  int64_t outer = 1, length = 1, inner = 1;
};
/// `axis` counts from 0. Not for blocked formats.
Lines lines_of(const TensorType& x, int axis);

/// Neighboring lines of one bundle.
constexpr int64_t kBundle = 64;
/// Bundles of an array with inner > 1: the last of each outer block may hold fewer lines.
inline int64_t bundles_of(const Lines& lines) { return (lines.inner + kBundle - 1) / kBundle; }

/// Largest element of a line, NaN ignored; -inf of an empty line.
float line_maximum(const float* x, int64_t length);
/// Sum of exp(x - largest), which is also stored in e unless that is nullptr.
float line_exp_sum(const float* x, float largest, float* e, int64_t length);

/// The maximum of each of `count` <= kBundle lines; elements of a line are `step` apart.
void bundle_maximum(const float* x, int64_t length, int64_t step, int64_t count, float* largest);
/// e: nullptr, or as x.
void bundle_exp_sum(const float* x, const float* largest, float* e, int64_t length, int64_t step, int64_t count, float* sum);

}  // namespace galley
