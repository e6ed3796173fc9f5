#pragma once
// The kernels of the CUDA back end, by family, in order of preference.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cuda_attention();
std::span<const Kernel> cuda_batch_norm();
std::span<const Kernel> cuda_cached_attention();
std::span<const Kernel> cuda_bias_sums();
std::span<const Kernel> cuda_boxes();
std::span<const Kernel> cuda_chains();
std::span<const Kernel> cuda_elementwise();
std::span<const Kernel> cuda_collective();
std::span<const Kernel> cuda_copy();
std::span<const Kernel> cuda_index();
std::span<const Kernel> cuda_reduce();
std::span<const Kernel> cuda_products();
/// By cuBLASLt and cuDNN, before cuda_products(). `tf32`: operands in f32 may be rounded to TF32. `deterministic`: equal operands give
/// equal bits in each run, as those of all other kernels do.
std::span<const Kernel> cuda_library_products(bool tf32, bool deterministic);
std::span<const Kernel> cuda_library_attention(bool deterministic);
/// Integers by cuBLASLt and cuDNN, before cuda_quantized().
std::span<const Kernel> cuda_library_integers();
/// Layers of f8_e4m3 by cuBLASLt, and their parts for GPUs that lack it.
std::span<const Kernel> cuda_library_f8();
std::span<const Kernel> cuda_layer_norms();
std::span<const Kernel> cuda_loss();
std::span<const Kernel> cuda_pixels();
std::span<const Kernel> cuda_pool();
std::span<const Kernel> cuda_quantized();
std::span<const Kernel> cuda_rows();
std::span<const Kernel> cuda_sampling();
std::span<const Kernel> cuda_select();
std::span<const Kernel> cuda_update();

}  // namespace galley
