#pragma once
// All kernels, X(name): the emulation finds them by this list, nvcc's image by its symbols.

#define GALLEY_CUDA_KERNELS(X) \
  X(elementwise1_f32)          \
  X(elementwise1_bf16)         \
  X(elementwise2_f32)          \
  X(elementwise2_bf16)         \
  X(elementwise3_f32)          \
  X(elementwise3_bf16)         \
  X(elementwise_backward_f32)  \
  X(elementwise_backward_bf16)
