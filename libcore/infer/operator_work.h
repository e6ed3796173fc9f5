#pragma once
// Single operators: NAME:SHAPES[:ATTRIBUTES], e.g. relu:16x64x56x56, matmul:64x512+512x256, conv2d:16x64x56x56+64x64x3x3:padding=1.
// The shapes of the inputs are separated by +. A - omits an optional input; @i64 after a shape gives the dtype. Convolutions and linear
// layers also accept named sizes: conv2d:mb16ic64ih56oc64kh3 (mb batch, ic oc channels, ih iw image, kh kw kernel, sh sw stride, ph pw
// padding (default (k-1)/2), dh dw dilation, g groups), linear:mb16ic512oc1000; quantized_conv2d and quantized_linear likewise, of u8 and
// i8. Images are channels_last.

#include <string>
#include <string_view>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/profiler/benchmark_rows.h"

namespace galley {

/// Compiles such an operator for a device, with random inputs, ready to be timed. `winograd`: as precision.winograd. Throws (kUsage) for an
/// invalid text, (kResource) if the device is not available.
BenchmarkWork operator_work(const std::string& text, bool winograd, std::string_view device = backend_rows().front().name);
/// The default cases of an operator, or of all operators for "". Throws (kUsage) if there are none.
std::vector<std::string> operator_cases(const std::string& name);

}  // namespace galley
