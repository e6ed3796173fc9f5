// Convolutions in f32 and bf16: the algorithms of each operator, in the order in which they are tried. The numbers in the rules are those
// of conv_thresholds.h.

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/table.h"

namespace galley {
namespace {

constexpr AlgorithmRow kRows[] = {
    {"conv2d", "skinny_gemm", algorithm::kSkinnyGemmConv, "one-pixel images and kernels (squeeze-and-excitation) of at most 16 images",
     "reads the weight once, where it is, at the speed of memory"},
    {"conv2d", "packed_1x1", algorithm::kPacked1x1,
     "1x1 kernels of stride 1 in f32 with few channels on many pixels, without an activation or with a residual",
     "rows of pixels fill vectors where oneDNN's blocks of channels leave them half empty"},
#ifdef GALLEY_WITH_ONEDNN
    {"conv2d", "onednn", algorithm::kOneDnnConv, "f32 everywhere, bf16 where the processor multiplies it faster than f32",
     "generated code for every window, group and layout"},
#endif

    {"conv2d_backward_data", "depthwise", algorithm::kDepthwiseData, "strided depthwise convolutions in bf16",
     "oneDNN 3.2 computes them by its reference only"},
    {"conv2d_backward_data", "packed_1x1", algorithm::kPacked1x1Data, "as conv2d; a residual is added on the way",
     "as conv2d; oneDNN adds a residual by a transposed convolution"},
#ifdef GALLEY_WITH_ONEDNN
    {"conv2d_backward_data", "onednn", algorithm::kOneDnnConvData, "as conv2d; a residual with AVX-512 only", "as conv2d"},
#endif

    {"conv2d_backward_weights", "depthwise", algorithm::kDepthwiseWeights,
     "depthwise convolutions without dilation, kernels of at most 7 columns and 49 taps", "oneDNN takes about twice the time"},
    {"conv2d_backward_weights", "implicit_gemm_amx", algorithm::kConvWeightsAmx,
     "bf16 on a processor with AMX, where at least a quarter of the tiles' products is useful",
     "oneDNN 3.2 reaches an eighth of the unit's rate"},
    {"conv2d_backward_weights", "implicit_gemm", algorithm::kConvWeightsImplicitGemm,
     "f32 with many channels: all windows with AVX2, strided kernels of several pixels with AVX-512",
     "packs each operand once for all taps"},
    {"conv2d_backward_weights", "direct", algorithm::kConvWeightsDirect,
     "f32 with at most 4 input channels and a kernel of several columns: a network's first layer",
     "fills vectors with output channels, so that few input channels cost nothing"},
    {"conv2d_backward_weights", "unpacked_1x1", algorithm::kConvWeights1x1, "1x1 kernels of stride 1 in f32 with few channels on one side",
     "with few channels, packing takes as long as the products"},
#ifdef GALLEY_WITH_ONEDNN
    {"conv2d_backward_weights", "onednn", algorithm::kOneDnnConvWeights, "as conv2d", "as conv2d"},

    {"conv3d", "onednn", algorithm::kOneDnnConv, "as conv2d", "as conv2d"},
    {"conv3d_backward_data", "onednn", algorithm::kOneDnnConvData, "as conv2d_backward_data", "as conv2d"},
    {"conv3d_backward_weights", "onednn", algorithm::kOneDnnConvWeights, "as conv2d", "as conv2d"},
#endif

    // use_winograd decides where these operators take the place of conv2d (winograd::worthwhile).
    {"winograd_conv2d", "winograd_4x4", algorithm::kWinogradConv, "f32 in channels_last, with vectors of 256 bits or more",
     "a quarter of the products"},
    {"winograd_weights", "winograd_4x4", algorithm::kWinogradTransform, "f32, with vectors of 256 bits or more", "transforms whole panels"},
    {"winograd_conv2d_backward_weights", "winograd_4x4", algorithm::kWinogradWeights,
     "f32 in channels_last, with vectors of 256 bits or more", "a quarter of the products"},

    // fuse_batch_norm_depthwise and fuse_pointwise make these operators wherever these algorithms support the result.
    {"batch_norm_depthwise", "line_buffer", algorithm::kBatchNormDepthwise, "f32 or bf16 in channels_last, kernels of at most 7 x 7",
     "the normalized image is never written to memory"},
    {"batch_norm_depthwise_backward", "line_buffer", algorithm::kBatchNormDepthwiseBackward, "as batch_norm_depthwise",
     "the normalized image and its gradient are never written to memory"},
    {"pointwise_batch_norm_depthwise", "line_buffer", algorithm::kPointwiseBatchNormDepthwise,
     "f32 in channels_last, 1x1 kernels of at most 48 input channels, with vectors of 256 bits or more",
     "few products: computing the wide image costs less than writing and reading it"},
    {"pointwise_batch_norm_depthwise_backward", "line_buffer", algorithm::kPointwiseBatchNormDepthwiseBackward,
     "as pointwise_batch_norm_depthwise", "the wide image and its gradient are recomputed line by line"},
};

}  // namespace

std::span<const AlgorithmRow> conv_algorithms() { return kRows; }

std::span<const Kernel> cpu_conv() {
  static const std::vector<Kernel> kernels = kernels_of(conv_algorithms());
  return kernels;
}

}  // namespace galley
