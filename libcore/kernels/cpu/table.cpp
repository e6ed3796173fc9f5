// The own CPU kernels, family after family.

#include "libcore/kernels/table.h"

namespace galley {

std::span<const Kernel> cpu_kernels() { return {}; }

}  // namespace galley
