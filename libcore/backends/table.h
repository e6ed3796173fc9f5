#pragma once
// KernelTable: the kernels of a back end for each operator.

#include <initializer_list>
#include <span>
#include <unordered_map>
#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

/// Kernels by operator, built once. Keeps the order of the lists.
class KernelTable {
 public:
  /// The operators must be registered. The lists must outlive the table.
  KernelTable(std::initializer_list<std::span<const Kernel>> lists);
  std::span<const Kernel* const> of(const OpDef& op) const;

 private:
  std::unordered_map<const OpDef*, std::vector<const Kernel*>> kernels_;
};

/// The reference kernels of all operators (backends/ref).
std::span<const Kernel> ref_kernels();

}  // namespace galley
