// Pooling: the algorithms of each operator, in the order in which they are tried.

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/table.h"

namespace galley {
namespace {

constexpr AlgorithmRow kRows[] = {
    {"max_pool2d", "channels", algorithm::kMaxPoolChannels, "f32 or bf16 in channels_last", "channels fill the vectors"},
    {"max_pool2d", "planes", algorithm::kMaxPoolPlanes, "contiguous f32", "a plane at a time"},
    {"max_pool2d", "bytes", algorithm::kMaxPoolBytes, "u8 or i8 in channels_last", "compares bytes, 16 to 64 channels at a time"},
    {"max_pool2d_backward", "channels", algorithm::kMaxPoolChannelsBackward, "as max_pool2d", "as max_pool2d"},
    {"max_pool2d_backward", "planes", algorithm::kMaxPoolPlanesBackward, "as max_pool2d", "as max_pool2d"},
    {"avg_pool2d", "channels", algorithm::kAvgPoolChannels, "f32 or bf16 in channels_last", "channels fill the vectors"},
    {"avg_pool2d", "planes", algorithm::kAvgPoolPlanes, "contiguous f32", "a plane at a time"},
    {"avg_pool2d_backward", "channels", algorithm::kAvgPoolChannelsBackward, "f32 in channels_last; bf16 where windows do not overlap",
     "channels fill the vectors"},
    {"avg_pool2d_backward", "planes", algorithm::kAvgPoolPlanesBackward, "contiguous f32", "a plane at a time"},
    {"adaptive_avg_pool2d", "inside", algorithm::kAdaptiveAvgPoolInside, "f32, images with extents", "sums of the lines inside each image"},
    {"adaptive_avg_pool2d", "channels", algorithm::kAdaptiveAvgPoolChannels, "as avg_pool2d", "as avg_pool2d"},
    {"adaptive_avg_pool2d", "planes", algorithm::kAdaptiveAvgPoolPlanes, "as avg_pool2d", "as avg_pool2d"},
    {"adaptive_avg_pool2d_backward", "channels", algorithm::kAdaptiveAvgPoolChannelsBackward, "as avg_pool2d_backward",
     "as avg_pool2d_backward"},
    {"adaptive_avg_pool2d_backward", "planes", algorithm::kAdaptiveAvgPoolPlanesBackward, "as avg_pool2d_backward",
     "as avg_pool2d_backward"},
    {"adaptive_max_pool2d", "elements", algorithm::kAdaptiveMaxPool, "f32, u8 or i8, contiguous or channels_last",
     "rare: a plain loop over the elements"},
    {"adaptive_max_pool2d_backward", "elements", algorithm::kAdaptiveMaxPoolBackward, "f32, contiguous or channels_last",
     "as adaptive_max_pool2d"},

    {"quantized_avg_pool2d", "integer_sums", algorithm::kQuantizedAvgPool, "u8 or i8 in channels_last", "sums of 256 pixels fit 16 bits"},
    {"quantized_adaptive_avg_pool2d", "integer_sums", algorithm::kQuantizedAdaptiveAvgPool, "as quantized_avg_pool2d",
     "as quantized_avg_pool2d"},
};

}  // namespace

std::span<const AlgorithmRow> pool_algorithms() { return kRows; }

std::span<const Kernel> cpu_pool() {
  static const std::vector<Kernel> kernels = kernels_of(pool_algorithms());
  return kernels;
}

}  // namespace galley
