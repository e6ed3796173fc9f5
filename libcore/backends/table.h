#pragma once
// Which kernels an operator has, fastest first, the reference last.

#include <span>
#include <string_view>
#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

/// All kernels of an operator of that name, in order of preference.
std::vector<const Kernel*> kernels_of(std::string_view op);

struct KernelChoice {
  const Kernel* kernel = nullptr;
  std::vector<std::string> declined;  // "onednn: reason"
};
/// The first kernel that supports the node. `reference_only` skips all but the reference.
KernelChoice choose_kernel(const KernelQuery& query, bool reference_only = false);

// The back ends' tables (each in its folder).
std::span<const Kernel> cpu_kernels();
std::span<const Kernel> onednn_kernels();
std::span<const Kernel> ref_kernels();

}  // namespace galley
