#include "libcore/backends/table.h"

#include "libcore/ops/registry.h"

namespace galley {

KernelTable::KernelTable(std::initializer_list<std::span<const Kernel>> lists) {
  ensure_ops_registered();
  for (std::span<const Kernel> list : lists) {
    for (const Kernel& kernel : list) kernels_[&find_op(kernel.op)].push_back(&kernel);
  }
}

std::span<const Kernel* const> KernelTable::of(const OpDef& op) const {
  const auto found = kernels_.find(&op);
  if (found == kernels_.end()) return {};
  return found->second;
}

}  // namespace galley
