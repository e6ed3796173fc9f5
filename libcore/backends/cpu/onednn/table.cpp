// The vendor's CPU kernels, family after family.

#include "libcore/backends/cpu/onednn/table.h"

namespace galley {

std::span<const Kernel> onednn_kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
    for (const auto& family : {onednn_conv(), onednn_matmul(), onednn_reorder()}) list.insert(list.end(), family.begin(), family.end());
    return list;
  }();
  return all;
}

}  // namespace galley
