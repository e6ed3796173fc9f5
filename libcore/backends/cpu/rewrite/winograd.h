#pragma once
// 3 x 3 convolutions with fewer products: F(4x4, 3x3) of Winograd's minimal filtering (Lavin and Gray, "Fast Algorithms for Convolutional
// Neural Networks", 2016). Four by four results of a channel take 36 products instead of 144; images and kernels are transformed before the
// products, sums after them. use_winograd (rewrites.h) replaces plain convolutions by these operators.
//
// The interpolation points are 0, +-sqrt(1/2), +-sqrt(2) and infinity. They keep the entries of the transforms near 1: with 256 channels of
// float32 the error of a result is twice that of plain sums, and with the usual points 0, +-1, +-2 it is four times.

#include <array>

#include "libcore/ops/conv.h"

namespace galley {

namespace winograd {

constexpr int64_t kOut = 4, kTaps = 3, kIn = 6;  // rows and columns of a tile: of results, of the kernel, of the image
constexpr int64_t kPositions = kIn * kIn;
constexpr double kA = 0.70710678118654752, kB = 1.4142135623730951;  // the points

/// Rows of the 1-D transforms: results = kResult ((kKernel g) * (kImage d)).
constexpr double kImage[kIn][kIn] = {{1, 0, -2.5, 0, 1, 0},        {0, -2 * kA, -2, kA, 1, 0},   {0, 2 * kA, -2, -kA, 1, 0},
                                     {0, -kB / 2, -0.5, kB, 1, 0}, {0, kB / 2, -0.5, -kB, 1, 0}, {0, 1, 0, -2.5, 0, 1}};
constexpr double kKernel[kIn][kTaps] = {{1, 0, 0},
                                        {-2.0 / 3, -2.0 / 3 * kA, -1.0 / 3},
                                        {-2.0 / 3, 2.0 / 3 * kA, -1.0 / 3},
                                        {1.0 / 6, kB / 6, 1.0 / 3},
                                        {1.0 / 6, -kB / 6, 1.0 / 3},
                                        {0, 0, 1}};
constexpr double kResult[kOut][kIn] = {
    {1, 1, 1, 1, 1, 0}, {0, kA, -kA, kB, -kB, 0}, {0, 0.5, 0.5, 2, 2, 0}, {0, kA / 2, -kA / 2, 2 * kB, -2 * kB, 1}};

/// The format of transformed weights: for each position panels of 16 output channels, [panel][input channel][16].
MemoryFormat transformed_format();
/// Tiles that cover an image of that many rows and columns.
constexpr int64_t tiles(int64_t rows, int64_t columns) { return ((rows + kOut - 1) / kOut) * ((columns + kOut - 1) / kOut); }

/// Is this window supported: 3 x 3, neither strided, dilated nor grouped?
bool fits(const Conv2dWindow& window, const Shape& weight);
/// Operations for an image x [N,C,H,W] and results y [N,O,H',W']: products at 36 positions of each tile, 144 to transform a channel of its
/// image, 120 of its results.
double executed_flops(const Shape& x, const Shape& y);
/// Is it faster than the plain convolution, for an image x [N,C,H,W] and results y [N,O,H',W']? `fixed`: the kernels are transformed once,
/// not at every run. An estimate of operations and bytes (conv_thresholds.h).
bool worthwhile(const Shape& x, const Shape& y, bool fixed);

}  // namespace winograd

struct WinogradWeightsAttrs : OptionsOf<WinogradWeightsAttrs> {
  bool backward = false;  // for the input gradient: rotated by 180 degrees, input and output channels exchanged
  void options(OptionVisitor& v) override;
};
struct WinogradConv2dAttrs : OptionsOf<WinogradConv2dAttrs> {
  std::vector<int64_t> padding{0};
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};

const OpDef& winograd_weights_op();
const OpDef& winograd_conv2d_op();
const OpDef& winograd_conv2d_backward_weights_op();

/// weight [O,C,3,3] -> [36,O,C] (backward: [36,C,O]) in the format blocked(aBc16b): the transformed kernels, position by position.
Value winograd_weights(Value weight, const WinogradWeightsAttrs& attrs);
/// x [N,C,H,W], transformed weight [36,O,C], bias [O] or absent, residual [N,O,H',W'] or absent -> the output of conv2d with stride 1,
/// [N,O,H',W'], H' = H + 2 padding - 2.
Value winograd_conv2d(Value x, Value transformed, Value bias, const WinogradConv2dAttrs& attrs, Value residual = {});
/// As conv2d_backward_weights, by the adjoint of winograd_conv2d; the attributes' window must fit (winograd::fits).
Value winograd_conv2d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs);

}  // namespace galley
