#pragma once
// Tables of kernels: what a back end has for each operator.

#include <initializer_list>
#include <span>
#include <unordered_map>
#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

/// Kernels by operator, built once. Kernels of one operator stay in the order of the lists.
class KernelTable {
 public:
  /// The operators must be registered, and the lists must live as long as the table.
  KernelTable(std::initializer_list<std::span<const Kernel>> lists);
  std::span<const Kernel* const> of(const OpDef& op) const;

 private:
  std::unordered_map<const OpDef*, std::vector<const Kernel*>> kernels_;
};

/// The reference kernels of all operators (backends/ref).
std::span<const Kernel> ref_kernels();

}  // namespace galley
