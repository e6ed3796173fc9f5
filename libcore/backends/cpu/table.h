#pragma once
// The kernels of each family, each in its file.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

/// All of them.
std::span<const Kernel> cpu_kernels();

std::span<const Kernel> cpu_attention();
std::span<const Kernel> cpu_boxes();
std::span<const Kernel> cpu_detection();
std::span<const Kernel> cpu_cache();
std::span<const Kernel> cpu_cast();
std::span<const Kernel> cpu_conv();
std::span<const Kernel> cpu_elementwise();
std::span<const Kernel> cpu_elementwise_chain();
std::span<const Kernel> cpu_embedding();
std::span<const Kernel> cpu_extremum();
std::span<const Kernel> cpu_fake_quantize();
std::span<const Kernel> cpu_fill();
std::span<const Kernel> cpu_flow();
std::span<const Kernel> cpu_group_norm();
std::span<const Kernel> cpu_index();
std::span<const Kernel> cpu_layer_norm();
std::span<const Kernel> cpu_loss();
std::span<const Kernel> cpu_matmul();
std::span<const Kernel> cpu_norm();
std::span<const Kernel> cpu_pool();
std::span<const Kernel> cpu_quantized_conv();
std::span<const Kernel> cpu_quantized_elementwise();
std::span<const Kernel> cpu_random();
std::span<const Kernel> cpu_recurrent();
std::span<const Kernel> cpu_quantized_recurrent();
std::span<const Kernel> cpu_reduce();
std::span<const Kernel> cpu_resize();
std::span<const Kernel> cpu_rms_norm();
std::span<const Kernel> cpu_rotary();
std::span<const Kernel> cpu_sampling();
std::span<const Kernel> cpu_select();
std::span<const Kernel> cpu_shape();
std::span<const Kernel> cpu_shuffle();
std::span<const Kernel> cpu_softmax();
std::span<const Kernel> cpu_update();

}  // namespace galley
