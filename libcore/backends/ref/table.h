#pragma once
// The references, family after family. For backends/ref only; others ask find_reference or ref_kernels.

#include <span>

#include "libcore/backends/ref/ref.h"

namespace galley {

std::span<const RefEntry> ref_conv();
std::span<const RefEntry> ref_matmul();
std::span<const RefEntry> ref_norm();
std::span<const RefEntry> ref_pool();
std::span<const RefEntry> ref_softmax();
std::span<const RefEntry> ref_loss();
std::span<const RefEntry> ref_random();
std::span<const RefEntry> ref_embedding();
std::span<const RefEntry> ref_recurrent();
std::span<const RefEntry> ref_quantized_recurrent();
std::span<const RefEntry> ref_elementwise();
std::span<const RefEntry> ref_broadcast();
std::span<const RefEntry> ref_reduce();
std::span<const RefEntry> ref_shape();
std::span<const RefEntry> ref_shuffle();
std::span<const RefEntry> ref_update();
std::span<const RefEntry> ref_quantize();
std::span<const RefEntry> ref_quantized();
std::span<const RefEntry> ref_fake_quantize();

/// All references that are registered.
std::vector<RefEntry> all_references();

}  // namespace galley
