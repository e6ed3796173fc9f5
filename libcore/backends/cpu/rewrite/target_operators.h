#pragma once
// The CPU's own operators, and what they compute: their references.

#include "libcore/backends/ref/ref.h"

namespace galley {

/// Registers the operators and their references, once.
void ensure_cpu_operators();

// By their files.
std::span<const RefEntry> batch_norm_depthwise_references();
std::span<const RefEntry> pointwise_references();
std::span<const RefEntry> winograd_references();

}  // namespace galley
