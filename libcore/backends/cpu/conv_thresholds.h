#pragma once
// The thresholds of convolutions and matrix products in f32 and bf16.

#include <array>

#include "libcore/backends/cpu/threshold.h"

namespace galley::conv_threshold {

// ---- Choice of algorithms

inline constexpr Threshold kSkinnyRows{32, "rows of linear that skinny_gemm takes at most, f32",
                                       "galley-benchmark op linear:mb32ic2048oc1000"};
inline constexpr Threshold kSkinnyRowsBf16{16, "rows of linear that skinny_gemm takes at most, bf16",
                                           "estimate: oneDNN multiplies bf16 at twice the rate of f32"};
inline constexpr Threshold kWeightOnlyRows{16, "rows of linear that weight_only_gemm takes at most",
                                           "galley-benchmark op weight_only_linear:16x4096+4096x4096@i8+4096"};
inline constexpr Threshold kSkinnyAhead{16 << 10, "bytes ahead of its reads at which skinny_gemm prefetches the weight of one row",
                                        "galley-benchmark op linear:1x768+50257x768+50257"};
inline constexpr Threshold kWeightOnlyAhead{6 << 10, "bytes ahead of its reads at which weight_only_gemm prefetches a weight",
                                            "galley-benchmark op weight_only_linear:1x768+50257x768@i8+50257"};
inline constexpr Threshold kWeightOnlyInt4Ahead{
    4 << 10, "bytes ahead of its reads at which int8_dot_gemm prefetches a weight",
    "galley-benchmark op weight_only_linear:1x768+50257x384@u8+50257x24:bits=4,group_size=32,rounded=true"};
inline constexpr Threshold kSkinnyImages{16, "one-pixel images that skinny_gemm takes at most",
                                         "galley-benchmark op conv2d:mb16ic240ih1oc960kh1"};
inline constexpr Threshold kPacked1x1Weight{98304, "values of a weight that packed_1x1 takes at most",
                                            "galley-benchmark op conv2d:mb16ic256ih14oc1024kh1"};
inline constexpr Threshold kPacked1x1Pixels{1024, "pixels that packed_1x1 takes at least",
                                            "galley-benchmark op conv2d:mb4ic256ih14oc256kh1"};
inline constexpr Threshold kLineBufferChannels{48, "input channels of a 1x1 convolution whose output line_buffer recomputes, at most",
                                               "galley-benchmark benchmark/mobilenet_v3_large_synthetic what=train_step batch=32"};
inline constexpr Threshold kImplicitGemmChannels{32, "channels that implicit_gemm takes at least, several taps, AVX2",
                                                 "galley-benchmark op conv2d_backward_weights:mb128ic32ih16oc32kh3ph1"};
inline constexpr Threshold kImplicitGemmChannelsAvx512{48, "channels that implicit_gemm takes at least, several taps, AVX-512",
                                                       "galley-benchmark op conv2d_backward_weights:mb16ic128ih56oc128kh3ph1sh2"};
inline constexpr Threshold kImplicitGemmChannels1x1{128, "channels that implicit_gemm takes at least, one tap",
                                                    "galley-benchmark op conv2d_backward_weights:mb16ic64ih56oc256kh1"};
inline constexpr Threshold kImplicitGemmWeightBytes{16 << 20, "bytes of a weight that implicit_gemm takes at most, AVX-512",
                                                    "galley-benchmark op conv2d_backward_weights:mb16ic512ih14oc512kh3ph1sh2"};
inline constexpr Threshold kImplicitGemmPadding{8, "of this many products, implicit_gemm wastes at most one on padded panels",
                                                "galley-benchmark op conv2d_backward_weights:mb16ic80ih28oc80kh3ph1sh2"};
inline constexpr Threshold kDirectChannels{4, "input channels that direct takes at most",
                                           "galley-benchmark op conv2d_backward_weights:mb16ic3ih224oc64kh7ph3sh2"};
inline constexpr Threshold kUnpacked1x1Channels{64, "channels of the narrower side that unpacked_1x1 takes at most, few pixels",
                                                "galley-benchmark op conv2d_backward_weights:mb32ic80ih14oc480kh1"};
inline constexpr Threshold kUnpacked1x1ChannelsManyPixels{128, "channels of the narrower side that unpacked_1x1 takes at most, many pixels",
                                                          "galley-benchmark op conv2d_backward_weights:mb16ic128ih28oc512kh1"};
inline constexpr Threshold kUnpacked1x1ManyPixels{8192, "pixels from which unpacked_1x1 counts them as many",
                                                  "galley-benchmark op conv2d_backward_weights:mb16ic128ih28oc512kh1"};
inline constexpr Threshold kAmxUsefulPercent{25, "percent of the tiles' products that must be useful for implicit_gemm_amx",
                                             "estimate: by counting tiles; oneDNN 3.2 reaches an eighth of the unit's rate in ResNet-50"};
inline constexpr Threshold kTransposeRows{512, "a transposed left operand of matmul is copied where this divides its rows, AVX2",
                                          "galley-benchmark op matmul:2048x1024+2048x256:transpose_a=true"};
inline constexpr Threshold kTransposeSize{32, "columns and depth from which a transposed left operand of matmul is copied, AVX2",
                                          "estimate: the copy is then a small part of the products"};

// ---- Winograd against the plain convolution (winograd::worthwhile): operations at the rate of plain convolutions

inline constexpr Threshold kWinogradProductsPercent{80, "rate of Winograd's products in percent of a plain convolution's",
                                                    "galley-benchmark op winograd_conv2d:16x64x56x56+36x64x64:padding=1"};
inline constexpr Threshold kWinogradTransform{800, "operations that transforming a tile costs for each of its channels",
                                              "galley-benchmark op winograd_conv2d:128x16x32x32+36x16x16:padding=1"};
inline constexpr Threshold kWinogradFixedKernel{20, "operations for each value of kernels that are transformed once (inference)",
                                                "galley-benchmark op winograd_conv2d:1x256x14x14+36x256x256:padding=1"};
inline constexpr Threshold kWinogradChangingKernel{95, "operations for each value of kernels that are transformed at every run",
                                                   "galley-benchmark op winograd_weights:512x512x3x3"};
inline constexpr Threshold kWinogradMarginPercent{110, "cost of a plain convolution in percent of Winograd's operations, at least",
                                                  "estimate: the error of the estimate"};

// ---- Cache blocks and parts of threads

inline constexpr Threshold kSkinnyRowBytes{256 << 10, "bytes of rows that stay in the second-level cache while the weight passes",
                                           "galley-benchmark op linear:mb32ic3072oc768"};
inline constexpr Threshold kPackedRowBlock{96, "rows that stay in the second-level cache while the packed panels pass",
                                           "galley-benchmark op conv2d:mb16ic64ih56oc64kh1"};
inline constexpr Threshold kPackedCachedFloats{8192, "floats of packed panels that are in the first-level cache and not prefetched",
                                               "galley-benchmark op conv2d:mb32ic16ih112oc16kh1"};
inline constexpr Threshold kPacked1x1TaskRows{192, "pixels that a thread of packed_1x1 takes at a time",
                                              "galley-benchmark op conv2d:mb16ic64ih56oc64kh1"};
inline constexpr Threshold kPacked1x1BlockRows{48, "pixels that are still in a near cache when residual and activation are applied",
                                               "galley-benchmark op conv2d:mb16ic64ih56oc256kh1"};
inline constexpr Threshold kPointwiseRowBlock{
    48, "pixels of which all panels are computed one after the other",
    "galley-benchmark op pointwise_batch_norm_depthwise:32x16x112x112+64x16x1x1+64x1x3x3+64+64:stride=2,padding=1,activation=relu"};
inline constexpr Threshold kPointwisePrefetchRows{
    24, "rows from those that are read or written to those that are prefetched",
    "galley-benchmark op pointwise_batch_norm_depthwise:32x16x112x112+64x16x1x1+64x1x3x3+64+64:stride=2,padding=1,activation=relu"};
inline constexpr Threshold kWeightSumBytes{32 << 20, "bytes of a weight gradient's sums that all threads keep, at most",
                                           "derived: bounds the scratch memory"};
inline constexpr Threshold kImplicitGemmPixels{256, "pixels of a block of implicit_gemm, AVX2",
                                               "galley-benchmark op conv2d_backward_weights:mb16ic128ih28oc128kh3ph1"};
inline constexpr Threshold kImplicitGemmPixelsAvx512{512, "pixels of a block of implicit_gemm, AVX-512",
                                                     "galley-benchmark op conv2d_backward_weights:mb16ic256ih28oc256kh3ph1sh2"};
inline constexpr Threshold kImplicitGemmInputs{252, "input channels that are packed at a time; a multiple of a panel's 6 and 12",
                                               "galley-benchmark op conv2d_backward_weights:mb16ic512ih14oc512kh3ph1sh2"};
inline constexpr Threshold kImplicitGemmOutputs{256, "output channels that are packed at a time; a multiple of a panel's 16 and 32",
                                                "galley-benchmark op conv2d_backward_weights:mb16ic512ih14oc512kh3ph1sh2"};
inline constexpr Threshold kDirectPixels{512, "pixels of a block of direct: with fewer, sums are read and written more often",
                                         "galley-benchmark op conv2d_backward_weights:mb16ic3ih224oc64kh7ph3sh2"};
inline constexpr Threshold kDirectParts{16, "parts of the batch whose sums direct keeps apart",
                                        "galley-benchmark op conv2d_backward_weights:mb16ic3ih224oc64kh7ph3sh2"};
inline constexpr Threshold kUnpacked1x1BlockBytes{32 << 10, "bytes of both operands of a block of unpacked_1x1, AVX2",
                                                  "galley-benchmark op conv2d_backward_weights:mb8ic24ih56oc72kh1 --threads 1"};
inline constexpr Threshold kUnpacked1x1BlockBytesAvx512{64 << 10, "bytes of both operands of a block of unpacked_1x1, AVX-512",
                                                        "galley-benchmark op conv2d_backward_weights:mb16ic64ih56oc256kh1"};
inline constexpr Threshold kUnpacked1x1Parts{16, "parts of the pixels whose sums unpacked_1x1 keeps apart",
                                             "galley-benchmark op conv2d_backward_weights:mb32ic24ih56oc72kh1"};
inline constexpr Threshold kUnpacked1x1PartBytes{1 << 20,
                                                 "bytes of the sums of unpacked_1x1, at most, where there are more parts than threads",
                                                 "galley-benchmark op conv2d_backward_weights:mb32ic24ih56oc72kh1"};
inline constexpr Threshold kUnpacked1x1PartPixels{2048, "pixels of a part of unpacked_1x1, at least",
                                                  "galley-benchmark op conv2d_backward_weights:mb32ic24ih56oc72kh1"};
inline constexpr Threshold kPivotSamples{256, "pixels whose mean is the pivot of PointwiseMoments",
                                         "derived: any value near the mean serves"};
inline constexpr Threshold kDepthwiseChunks{8, "chunks of 16 channels that a task of depthwise weight gradients takes, at most",
                                            "galley-benchmark op conv2d_backward_weights:mb32ic120ih28oc120kh5ph2g120"};
inline constexpr Threshold kDepthwiseBandPixels{256, "pixels that depthwise weight gradients sum in float",
                                                "derived: bounds the rounding of float sums"};
inline constexpr Threshold kDepthwiseParts{8, "parts of the batch whose sums are kept apart, for any number of threads",
                                           "galley-benchmark op conv2d_backward_weights:mb32ic120ih28oc120kh5ph2g120"};
inline constexpr Threshold kLineBandPixels{512, "pixels that line_buffer sums in float",
                                           "derived: 512 sums round by at most 2^-15 of their largest"};
inline constexpr Threshold kLineBlockPixels{128, "pixels whose gradients stay in the second-level cache",
                                            "galley-benchmark benchmark/mobilenet_v3_large_synthetic what=train_step batch=32"};
inline constexpr Threshold kLineParts{16, "parts of the batch whose sums line_buffer keeps apart",
                                      "galley-benchmark op "
                                      "pointwise_batch_norm_depthwise_backward:32x72x56x56+72x1x3x3+72+72+72+72+32x24x56x56+72x24x1x1+"
                                      "32x24x56x56+25x24:padding=1,activation=relu"};
inline constexpr Threshold kLineSliceChunks{
    2, "chunks of 16 channels of a slice of a line, forward",
    "galley-benchmark op batch_norm_depthwise:32x64x112x112+64x1x3x3+64+64:stride=2,padding=1,activation=relu"};
inline constexpr Threshold kLineSliceChunksBackward{
    4, "chunks of a slice, backward, at most",
    "galley-benchmark op batch_norm_depthwise_backward:32x672x14x14+672x1x3x3+32x672x14x14+672+672+672+672:padding=1,activation=hardswish"};
inline constexpr Threshold kLineSliceBytes{
    16 << 10, "bytes of the packed lines of all kernel rows of a slice, backward: half of a first-level cache",
    "galley-benchmark op batch_norm_depthwise_backward:32x672x14x14+672x1x3x3+32x672x14x14+672+672+672+672:padding=1,activation=hardswish"};
inline constexpr Threshold kLinePrefetchPixels{
    32, "pixels from those that are computed to those that are prefetched, at least",
    "galley-benchmark op batch_norm_depthwise:32x64x112x112+64x1x3x3+64+64:stride=2,padding=1,activation=relu"};
inline constexpr Threshold kLineFloatBlocks{8, "blocks of lines whose products are summed in float",
                                            "derived: bounds the rounding of float sums"};
inline constexpr Threshold kLineNarrowFloats{4 << 10, "floats of x whose part of the gradient is computed together",
                                             "galley-benchmark op "
                                             "pointwise_batch_norm_depthwise_backward:32x72x56x56+72x1x3x3+72+72+72+72+32x24x56x56+"
                                             "72x24x1x1+32x24x56x56+25x24:padding=1,activation=relu"};
inline constexpr Threshold kWinogradRowBytes{1 << 20, "bytes of the transformed values of a part of the tiles",
                                             "galley-benchmark op winograd_conv2d:16x256x14x14+36x256x256:padding=1"};
inline constexpr Threshold kWinogradFewestRows{24, "Winograd tiles of a part, at least",
                                               "galley-benchmark op winograd_conv2d:1x256x14x14+36x256x256:padding=1"};
inline constexpr Threshold kWinogradMostRows{96, "Winograd tiles of a part, at most",
                                             "galley-benchmark op winograd_conv2d:16x64x56x56+36x64x64:padding=1"};
inline constexpr Threshold kWinogradOwnSumBytes{1 << 20, "bytes of a weight gradient's sums that each thread keeps for itself, at most",
                                                "galley-benchmark op conv2d_backward_weights:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradOwnBytes{768 << 10, "bytes of the transformed tiles of a round, in a core's cache",
                                             "galley-benchmark op conv2d_backward_weights:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradSharedBytes{4 << 20, "bytes of the transformed tiles of a round, in the shared cache",
                                                "galley-benchmark op conv2d_backward_weights:mb16ic256ih14oc256kh3ph1"};
inline constexpr Threshold kWinogradOneRoundBytes{24 << 20, "bytes of all transformed tiles that are taken in one round",
                                                  "galley-benchmark op conv2d_backward_weights:mb16ic512ih7oc512kh3ph1"};
inline constexpr Threshold kWinogradRoundRows{192, "tiles of one of several rounds, at most",
                                              "galley-benchmark op conv2d_backward_weights:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradDepth{128, "tiles that a register tile of sums passes at a time: the first-level cache holds them",
                                          "galley-benchmark op conv2d_backward_weights:mb16ic256ih14oc256kh3ph1"};
inline constexpr Threshold kWinogradInputs{96, "input channels of a block whose sums the second-level cache holds",
                                           "galley-benchmark op conv2d_backward_weights:mb16ic256ih14oc256kh3ph1"};
inline constexpr Threshold kWinogradOutputs{32, "output channels of a block whose sums the second-level cache holds",
                                            "galley-benchmark op conv2d_backward_weights:mb16ic256ih14oc256kh3ph1"};
inline constexpr Threshold kAmxSteps{24, "tiles of 32 pixels of a block of implicit_gemm_amx",
                                     "estimate: 24 steps of 32 pixels by 16 inputs are 24 KiB; no machine with AMX was available"};
inline constexpr Threshold kAmxInnerSteps{12, "tiles of pixels that stay in the first-level cache while all inputs and taps pass",
                                          "estimate: 12 steps of two output tiles are 24 KiB, half of a first-level cache"};
inline constexpr Threshold kAmxTiles{16, "tiles of 16 channels of a side that are packed at a time, at most",
                                     "estimate: with kAmxSteps, 16 tiles are 384 KiB"};
inline constexpr Threshold kAmxInputTiles{8, "tiles of input channels that are packed at a time where there are several taps, at most",
                                          "estimate: with several taps a packed tile has more lines: half of kAmxTiles"};
inline constexpr Threshold kAmxInputBytes{768 << 10, "bytes of the packed inputs of implicit_gemm_amx, at most",
                                          "estimate: a third of a second-level cache of 2 MiB"};
inline constexpr Threshold kAmxSumBytes{640 << 10, "bytes of the sums of a block of implicit_gemm_amx, at most",
                                        "estimate: a third of a second-level cache of 2 MiB"};

/// All of them, for lists and tests.
inline constexpr std::array kAll{kSkinnyRows,
                                 kSkinnyRowsBf16,
                                 kWeightOnlyRows,
                                 kSkinnyAhead,
                                 kWeightOnlyAhead,
                                 kWeightOnlyInt4Ahead,
                                 kSkinnyImages,
                                 kPacked1x1Weight,
                                 kPacked1x1Pixels,
                                 kLineBufferChannels,
                                 kImplicitGemmChannels,
                                 kImplicitGemmChannelsAvx512,
                                 kImplicitGemmChannels1x1,
                                 kImplicitGemmWeightBytes,
                                 kImplicitGemmPadding,
                                 kDirectChannels,
                                 kUnpacked1x1Channels,
                                 kUnpacked1x1ChannelsManyPixels,
                                 kUnpacked1x1ManyPixels,
                                 kAmxUsefulPercent,
                                 kTransposeRows,
                                 kTransposeSize,
                                 kWinogradProductsPercent,
                                 kWinogradTransform,
                                 kWinogradFixedKernel,
                                 kWinogradChangingKernel,
                                 kWinogradMarginPercent,
                                 kSkinnyRowBytes,
                                 kPackedRowBlock,
                                 kPackedCachedFloats,
                                 kPacked1x1TaskRows,
                                 kPacked1x1BlockRows,
                                 kPointwiseRowBlock,
                                 kPointwisePrefetchRows,
                                 kWeightSumBytes,
                                 kImplicitGemmPixels,
                                 kImplicitGemmPixelsAvx512,
                                 kImplicitGemmInputs,
                                 kImplicitGemmOutputs,
                                 kDirectPixels,
                                 kDirectParts,
                                 kUnpacked1x1BlockBytes,
                                 kUnpacked1x1BlockBytesAvx512,
                                 kUnpacked1x1Parts,
                                 kUnpacked1x1PartBytes,
                                 kUnpacked1x1PartPixels,
                                 kPivotSamples,
                                 kDepthwiseChunks,
                                 kDepthwiseBandPixels,
                                 kDepthwiseParts,
                                 kLineBandPixels,
                                 kLineBlockPixels,
                                 kLineParts,
                                 kLineSliceChunks,
                                 kLineSliceChunksBackward,
                                 kLineSliceBytes,
                                 kLinePrefetchPixels,
                                 kLineFloatBlocks,
                                 kLineNarrowFloats,
                                 kWinogradRowBytes,
                                 kWinogradFewestRows,
                                 kWinogradMostRows,
                                 kWinogradOwnSumBytes,
                                 kWinogradOwnBytes,
                                 kWinogradSharedBytes,
                                 kWinogradOneRoundBytes,
                                 kWinogradRoundRows,
                                 kWinogradDepth,
                                 kWinogradInputs,
                                 kWinogradOutputs,
                                 kAmxSteps,
                                 kAmxInnerSteps,
                                 kAmxTiles,
                                 kAmxInputTiles,
                                 kAmxInputBytes,
                                 kAmxSumBytes};

}  // namespace galley::conv_threshold
