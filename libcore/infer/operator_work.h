#pragma once
// Single operators: NAME:SHAPES[:ATTRIBUTES], e.g. relu:16x64x56x56, matmul:64x512+512x256, conv2d:16x64x56x56+64x64x3x3:padding=1.
// Shapes are of the inputs, joined by +; -, an optional input left out; @i64 after a shape, integers. Convolutions and linear layers also
// take sizes by letters: conv2d:mb16ic64ih56oc64kh3 (mb batch, ic oc channels, ih iw image, kh kw kernel, sh sw stride, ph pw padding
// (default (k-1)/2), dh dw dilation, g groups), linear:mb16ic512oc1000; quantized_conv2d and quantized_linear likewise, of u8 and i8.
// Images are channels_last.

#include <string>
#include <string_view>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/profiler/benchmark_rows.h"

namespace galley {

/// Such an operator on random inputs, compiled as the back end of that device would, ready to be timed; `winograd` as precision.winograd.
/// Throws (kUsage) for text that is no case, (kResource) where the device is not there.
BenchmarkWork operator_work(const std::string& text, bool winograd, std::string_view device = backend_rows().front().name);
/// The usual cases of the operator of that name, or of all operators for "". Throws (kUsage) where there are none.
std::vector<std::string> operator_cases(const std::string& name);

}  // namespace galley
