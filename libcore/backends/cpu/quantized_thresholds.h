#pragma once
// The thresholds of convolutions and linear layers of integers.

#include <array>

#include "libcore/backends/cpu/threshold.h"

namespace galley::quantized_threshold {

// ---- Choice of algorithms

inline constexpr Threshold kAmxPixels{8, "pixels from which a product takes amx, below vnni", "estimate: half a tile's rows"};
inline constexpr Threshold kAmxQuads{8, "quads of inputs of a run from which a product takes amx, below vnni",
                                     "estimate: half a tile's rows"};
inline constexpr Threshold kUnwidenedPixels{4, "copied pixels up to which exact reads the weights without widening them first",
                                            "galley-benchmark op quantized_linear:mb1ic960oc1280"};
inline constexpr Threshold kOneThreadProducts{64 * 1024, "products up to which one thread computes the layer",
                                              "galley-benchmark op quantized_linear:mb1ic128oc1000"};

// ---- Winograd against the plain convolution (winograd::worthwhile_whole): operations at the rate of plain convolutions

inline constexpr Threshold kWinogradProductsPercent{90, "rate of Winograd's products in percent of a plain convolution's",
                                                    "galley-benchmark op quantized_conv2d:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradImageTransform{400, "operations that transforming a tile of an image costs for each channel",
                                                   "galley-benchmark op quantized_conv2d:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradResultTransform{560, "operations that transforming a tile of results costs for each channel and part",
                                                    "galley-benchmark op quantized_conv2d:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradKernel{18, "operations for each value of the transformed kernels, which come from memory",
                                           "galley-benchmark op quantized_conv2d:mb1ic512ih7oc512kh3ph1"};
inline constexpr Threshold kWinogradMarginPercent{110, "cost of a plain convolution in percent of Winograd's operations, at least",
                                                  "estimate: the error of the estimate"};

// ---- Cache blocks and parts of threads

inline constexpr Threshold kResidentWeightBytes{128 * 1024,
                                                "bytes of widened weights that are widened once for all pixels of a band, at most",
                                                "galley-benchmark op quantized_conv2d:mb16ic128ih28oc128kh3ph1"};
inline constexpr Threshold kExactBandBytes{384 * 1024, "bytes of a band's inputs and results, exact",
                                           "estimate: they stay in a second-level cache of 512 KiB"};
inline constexpr Threshold kByteBandBytes{96 * 1024, "bytes of a band's inputs and results, paths that multiply bytes",
                                          "galley-benchmark benchmark/resnet50_synthetic what=forward batch=16 weights=INT8.safetensors"};
inline constexpr Threshold kPrefetchBytes{2 << 20, "bytes of a layer's inputs and results from which the next pixels are prefetched",
                                          "galley-benchmark op quantized_conv2d:mb16ic256ih56oc64kh1"};
inline constexpr Threshold kPrefetchQuads{64, "quads of inputs up to which the places of the next pixels' results are prefetched",
                                          "galley-benchmark op quantized_conv2d:mb16ic64ih56oc256kh1"};
inline constexpr Threshold kPrefetchOutputs{512, "outputs up to which the places of the next pixels' results are prefetched",
                                            "galley-benchmark op quantized_conv2d:mb16ic64ih56oc256kh1"};
inline constexpr Threshold kBandPixels{12, "pixels of a band, at least", "galley-benchmark op quantized_conv2d:mb1ic512ih7oc512kh3ph1"};
inline constexpr Threshold kSplitOutputs{64, "outputs of a part of a layer that threads divide by outputs, at least",
                                         "galley-benchmark op quantized_linear:mb1ic960oc1280"};
inline constexpr Threshold kAmxTiles{128, "tiles of 16 pixels that are copied at a time, at most",
                                     "estimate: no machine with AMX was available"};
inline constexpr Threshold kAmxPanelBytes{512 * 1024, "bytes of the tiles of 16 pixels that are copied at a time, at most",
                                          "estimate: they stay in the second-level cache"};
inline constexpr Threshold kAmxTailPixels{6, "pixels after the last whole tile that are left to vpdpbusd, at most",
                                          "estimate: fewer than half of a tile's rows"};
inline constexpr Threshold kWinogradImageBytes{384 << 10, "bytes of the transformed images of a part of the tiles",
                                               "galley-benchmark op quantized_conv2d:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradSumBytes{216 << 10, "bytes of the sums of a step of outputs of a part",
                                             "galley-benchmark op quantized_conv2d:mb16ic64ih56oc64kh3ph1"};
inline constexpr Threshold kWinogradFewestTiles{12, "tiles of a part, at least",
                                                "galley-benchmark op quantized_conv2d:mb1ic256ih14oc256kh3ph1"};
inline constexpr Threshold kWinogradFewTiles{128, "tiles up to which all are transformed before the threads divide the outputs",
                                             "galley-benchmark op quantized_conv2d:mb1ic256ih14oc256kh3ph1"};

/// All of them, for lists and tests.
inline constexpr std::array kAll{kAmxPixels,
                                 kAmxQuads,
                                 kUnwidenedPixels,
                                 kOneThreadProducts,
                                 kWinogradProductsPercent,
                                 kWinogradImageTransform,
                                 kWinogradResultTransform,
                                 kWinogradKernel,
                                 kWinogradMarginPercent,
                                 kResidentWeightBytes,
                                 kExactBandBytes,
                                 kByteBandBytes,
                                 kPrefetchBytes,
                                 kPrefetchQuads,
                                 kPrefetchOutputs,
                                 kBandPixels,
                                 kSplitOutputs,
                                 kAmxTiles,
                                 kAmxPanelBytes,
                                 kAmxTailPixels,
                                 kWinogradImageBytes,
                                 kWinogradSumBytes,
                                 kWinogradFewestTiles,
                                 kWinogradFewTiles};

}  // namespace galley::quantized_threshold
