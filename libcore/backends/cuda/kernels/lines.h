#pragma once
// Matrices whose rows begin at odd addresses, to and from such that libraries read fast.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

/// A thread writes a word of two elements.
GALLEY_KERNEL(copy_lines, (const CopyLinesCall call)) {
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const uint16_t* from = call.from + row * call.from_line;
    uint16_t* to = call.to + row * call.to_line;
    // The first word of the row begins at its second element if its first one lies in the middle of a word.
    const int head = static_cast<int>(row * call.to_line % 2);
    const auto words = static_cast<int>((call.columns - head) / 2);
    auto* wide = reinterpret_cast<uint32_t*>(to + head);
    GALLEY_UNROLL_BY_4
    for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads)
      wide[i] = static_cast<uint32_t>(from[head + 2 * i]) | static_cast<uint32_t>(from[head + 2 * i + 1]) << 16;
    if (call.pad != 0 && threadIdx.x >= kWarp && call.columns + threadIdx.x - kWarp < call.to_line)
      to[call.columns + threadIdx.x - kWarp] = 0;
    if (threadIdx.x == 0 && head == 1) to[0] = from[0];
    if (threadIdx.x == 1 && (call.columns - head) % 2 == 1) to[call.columns - 1] = from[call.columns - 1];
  }
}

}  // namespace galley::device
