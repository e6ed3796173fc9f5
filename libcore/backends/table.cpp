#include "libcore/backends/table.h"

#include "libcore/base/error.h"

namespace galley {

std::vector<const Kernel*> kernels_of(std::string_view op) {
  std::vector<const Kernel*> found;
  const auto take = [&](std::span<const Kernel> table) {
    for (const Kernel& kernel : table) {
      if (kernel.op == op) found.push_back(&kernel);
    }
  };
#ifdef GALLEY_WITH_CPU
  take(cpu_kernels());
#endif
#ifdef GALLEY_WITH_ONEDNN
  take(onednn_kernels());
#endif
  take(ref_kernels());
  return found;
}

KernelChoice choose_kernel(const KernelQuery& query, bool reference_only) {
  KernelChoice choice;
  for (const Kernel* kernel : kernels_of(query.node.op->name)) {
    if (reference_only && !kernel->reference) continue;
    const Support support = kernel->supports(query);
    if (support) {
      choice.kernel = kernel;
      return choice;
    }
    choice.declined.push_back(cat(kernel->algorithm, ": ", support.reason));
  }
  return choice;
}

}  // namespace galley
