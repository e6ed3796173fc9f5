#pragma once
// Quantization of weights by a WeightScheme, packing of int4 values two per byte, and the inverse operations.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/quant/config.h"
#include "libcore/tensor/tensor.h"

namespace galley {

struct QuantizedWeight {
  Tensor values;      ///< i8 or f8_e4m3 in the weight's shape, contiguous; int4: u8 [..., ceil(last/2)], see pack_int4.
  Tensor scale;       ///< f32: [O] per channel (per tensor: O equal values), [O,G] with groups.
  Tensor zero_point;  ///< i8, shape of `scale`; zeros for symmetric schemes. f8_e4m3: empty.
  Shape shape;        ///< Shape of the float weight.
  int64_t bits = 8;
  int64_t group_size = 0;
};

/// Quantizes a contiguous f32 weight [O,...] (at least rank 2). Groups divide the elements of one output, in order, into runs of
/// group_size; the last may be shorter. `bounds`, f32 [O] or []: largest representable magnitudes to use instead of the observer's result,
/// for symmetric schemes of integers without groups; values beyond them are clipped, and a scheme per tensor uses the largest bound. Throws
/// Error: kNumeric with `name` if values are not finite, kRecipe for an invalid scheme.
QuantizedWeight quantize_weight(const Tensor& weight, const WeightScheme& scheme, std::string_view name, const Tensor* bounds = nullptr);
/// The dequantized weight, f32, contiguous, in the shape of the float weight.
Tensor dequantize_weight(const QuantizedWeight& weight);

/// Packs signed values -8..7 along the last axis, two per byte, low nibble first, in two's complement; an odd last axis is padded with 0.
Tensor pack_int4(const Tensor& values);
/// The inverse of pack_int4: i8 of `shape`.
Tensor unpack_int4(const Tensor& packed, const Shape& shape);

}  // namespace galley
