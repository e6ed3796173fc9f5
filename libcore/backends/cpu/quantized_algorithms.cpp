// Convolutions and linear layers of integers: the algorithms of each operator, in the order in which they are tried. Each multiplies by the
// best instructions that the machine has and the layer permits: quantized_paths.cpp.

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/table.h"

namespace galley {
namespace {

constexpr AlgorithmRow kRows[] = {
    {"quantized_conv2d", "depthwise", algorithm::kQuantizedDepthwise, "depthwise convolutions without dilation",
     "two rows of the image share one product of pairs; a matrix product would have a depth of 1"},
    {"quantized_conv2d", "implicit_gemm", algorithm::kQuantizedConv, "all others in channels_last",
     "copies each input pixel once for all taps; no image is unrolled"},
    {"quantized_linear", "packed_gemm", algorithm::kQuantizedLinear, "contiguous", "the products of implicit_gemm, rows as pixels"},
    {"dynamic_quantized_linear", "packed_gemm", algorithm::kDynamicQuantizedLinear, "contiguous", "as quantized_linear"},
    // use_winograd decides where these operators take the place of quantized_conv2d (winograd::worthwhile_whole).
    {"quantized_winograd_conv2d", "winograd_4x4", algorithm::kQuantizedWinogradConv,
     "channels_last, on machines with vectors of 256 bits or more and neither VNNI nor AMX", "a quarter of the products, in 16 bits"},
    {"quantized_winograd_weights", "winograd_4x4", algorithm::kQuantizedWinogradTransform, "contiguous weights",
     "runs once, before inference"},
};

}  // namespace

std::span<const AlgorithmRow> quantized_algorithms() { return kRows; }

std::span<const Kernel> cpu_quantized_conv() {
  static const std::vector<Kernel> kernels = kernels_of(quantized_algorithms());
  return kernels;
}

}  // namespace galley
