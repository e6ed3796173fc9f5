#pragma once
// The functions of primitives, family after family. For backends/ref only; others ask find_reference or ref_kernels.

#include <span>

#include "libcore/backends/ref/ref.h"

namespace galley {

std::span<const RefEntry> ref_collective();
std::span<const RefEntry> ref_conv();
std::span<const RefEntry> ref_matmul();
std::span<const RefEntry> ref_pool();
std::span<const RefEntry> ref_random();
std::span<const RefEntry> ref_elementwise();
std::span<const RefEntry> ref_broadcast();
std::span<const RefEntry> ref_reduce();
std::span<const RefEntry> ref_shape();
std::span<const RefEntry> ref_index();
std::span<const RefEntry> ref_update();
std::span<const RefEntry> ref_quantize();
std::span<const RefEntry> ref_rotary();
std::span<const RefEntry> ref_cache();
std::span<const RefEntry> ref_boxes();
std::span<const RefEntry> ref_detection();
std::span<const RefEntry> ref_orthonormal();
std::span<const RefEntry> ref_sampling();

}  // namespace galley
