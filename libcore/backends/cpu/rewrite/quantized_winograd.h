#pragma once
// Winograd's F(4x4, 3x3) (winograd.h) on integers, without rounding: the usual points 0, +-1, +-2 and infinity, with every transform scaled
// to integers. Images and kernels are transformed in 16 bits; sums and results are integers modulo 2^32. A result comes out times 36, 72,
// 144, 288 or 576 and is divided exactly, since 9 has an inverse modulo 2^32 and the powers of two are shifts. For this the sum of a result
// must fit the remaining bits, which holds for 224 channels with any values; more channels are computed in parts. For machines that
// multiply in 16 bits.

#include <array>

#include "libcore/backends/cpu/rewrite/winograd.h"
#include "libcore/ops/quantized.h"

namespace galley {

namespace winograd {

/// Rows of the 1-D transforms: scale[i] results[i] = kWholeResult[i] ((kWholeKernel g) * (kWholeImage d)), scale 24, 12, 6, 6.
constexpr int32_t kWholeImage[kIn][kIn] = {{4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
                                           {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
constexpr int32_t kWholeKernel[kIn][kTaps] = {{6, 0, 0}, {1, 1, 1}, {1, -1, 1}, {1, 2, 4}, {1, -2, 4}, {0, 0, 6}};
constexpr int32_t kWholeResult[kOut][kIn] = {{1, -4, -4, 1, 1, 0}, {0, -2, 2, 1, -1, 0}, {0, -1, -1, 1, 1, 0}, {0, -1, 1, 2, -2, 1}};
constexpr int32_t kWholeScale[kOut] = {24, 12, 6, 6};

/// Channels of a part: a sum of 9 * 224 products of numbers within +-128 is within +-2^25, the 26 bits that a division by 64 modulo 2^32
/// leaves.
constexpr int64_t kMostChannels = 224;
/// The format of transformed weights: panels of 16 output channels, [panel][position][pair of input channels][16][2].
MemoryFormat whole_format();
/// As executed_flops: 36 products of each tile, input and output channel; 200 operations to transform a channel of its image, 180 of its
/// results.
double executed_whole_flops(const Shape& x, const Shape& y);
/// Is it faster in inference than plain products of 16 bits? As worthwhile(), for x [N,C,H,W] and y [N,O,H',W'].
bool worthwhile_whole(const Shape& x, const Shape& y);

}  // namespace winograd

const OpDef& quantized_winograd_weights_op();
const OpDef& quantized_winograd_conv2d_op();

/// weight i8 [O,C,3,3] -> i16 [O,36,C] in the format blocked(AbC16a2c): kernels transformed by kWholeKernel.
Value quantized_winograd_weights(Value weight);
/// The same integers as quantized_conv2d, from a transformed weight i16 [O,36,C]; the attributes' window must fit (winograd::fits).
Value quantized_winograd_conv2d(Value x, Value transformed, Value weight_scale, Value bias, const QuantizedConv2dAttrs& attrs,
                                Value residual = {});

}  // namespace galley
