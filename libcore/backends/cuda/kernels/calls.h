#pragma once
// The arguments of kernels, for the host and the device.

#include <cstdint>

namespace galley::device {

/// Threads of a block in all launches.
inline constexpr int kThreads = 256;

inline constexpr int kMaxDimensions = 6;

/// y = f(inputs), with inputs that broadcast. Dimensions are from outer to inner in the order of y's memory, joined where all walk alike.
struct ElementwiseCall {
  const void* inputs[3];
  void* output;
  float numbers[2];
  int function;    // position in Functions
  int dimensions;  // 1: all operands are walked by one step
  int64_t elements;
  int64_t sizes[kMaxDimensions];
  int64_t steps[3][kMaxDimensions];  // in elements, of each input; 0: broadcast
};

/// dx = grad * slope(from), where `from` is x or y.
struct ElementwiseBackwardCall {
  const void *grad, *from;
  void* output;
  float numbers[2];
  int function;
  int64_t elements;
};

}  // namespace galley::device
