#include "libcore/backends/ref/table.h"

#include <map>

#include "libcore/backends/ref/instances.h"
#include "libcore/base/error.h"

namespace galley {

RefFunction find_reference(std::string_view op) {
  static const std::map<std::string_view, RefFunction> by_name = [] {
    std::map<std::string_view, RefFunction> all;
    for (std::span<const RefEntry> (*family)() :
         {ref_conv, ref_matmul, ref_pool, ref_random, ref_elementwise, ref_broadcast, ref_reduce, ref_shape, ref_index, ref_update,
          ref_quantize, ref_rotary, ref_cache, ref_boxes, ref_detection, ref_instances, ref_sampling, ref_collective, ref_orthonormal}) {
      for (const RefEntry& entry : family()) GALLEY_ASSERT(all.emplace(entry.op, entry.run).second, "two references of ", entry.op);
    }
    return all;
  }();
  const auto found = by_name.find(op);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace galley
