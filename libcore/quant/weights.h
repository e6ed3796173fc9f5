#pragma once
// Weights as integers: chosen by a WeightScheme, packed two a byte for int4, and back.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/quant/config.h"
#include "libcore/tensor/tensor.h"

namespace galley {

struct QuantizedWeight {
  Tensor values;      ///< i8 in the weight's shape, contiguous; int4: u8 [..., ceil(last/2)], see pack_int4.
  Tensor scale;       ///< f32: [O] per channel (per tensor: O equal ones), [O,G] with groups.
  Tensor zero_point;  ///< i8, shape of scale; zeros for symmetric schemes.
  Shape shape;        ///< Of the float weight.
  int64_t bits = 8;
  int64_t group_size = 0;
};

/// Quantizes a contiguous f32 weight [O,...] (at least rank 2). Groups cut the elements of one output, in order, in runs of group_size; the
/// last may be shorter. `bounds`, f32 [O] or []: the largest magnitudes that integers stand for, of symmetric schemes without groups,
/// instead of what the observer finds; smaller ones cut, and one scale for all takes the largest. Throws Error (kNumeric), naming `name`,
/// for values that are not finite, (kRecipe) for a scheme that cannot be.
QuantizedWeight quantize_weight(const Tensor& weight, const WeightScheme& scheme, std::string_view name, const Tensor* bounds = nullptr);
/// The values that the integers stand for, f32, contiguous, in the float weight's shape.
Tensor dequantize_weight(const QuantizedWeight& weight);

/// Signed values -8..7 along the last axis, two a byte, low nibble first, in two's complement; a last axis of odd length is padded with 0.
Tensor pack_int4(const Tensor& values);
/// i8 of `shape` from its packed form.
Tensor unpack_int4(const Tensor& packed, const Shape& shape);

}  // namespace galley
