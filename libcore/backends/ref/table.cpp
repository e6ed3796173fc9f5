#include "libcore/backends/ref/table.h"

#include <map>

#include "libcore/base/error.h"

namespace galley {

std::span<const RefEntry> all_references() {
  static const std::vector<RefEntry> table = [] {
    std::vector<RefEntry> entries;
    for (std::span<const RefEntry> (*family)() : {ref_conv, ref_matmul, ref_norm, ref_batch_norm_depthwise, ref_pointwise, ref_pool, ref_softmax, ref_loss, ref_random, ref_embedding, ref_recurrent, ref_quantized_recurrent,
                                                  ref_unary, ref_binary, ref_reduce, ref_shape, ref_shuffle, ref_update, ref_quantize, ref_quantized,
                                                  ref_fake_quantize, ref_winograd}) {
      for (const RefEntry& entry : family()) entries.push_back(entry);
    }
    return entries;
  }();
  return table;
}

RefFunction find_reference(std::string_view op) {
  static const std::map<std::string_view, RefFunction> by_name = [] {
    std::map<std::string_view, RefFunction> map;
    for (const RefEntry& entry : all_references()) {
      GALLEY_ASSERT(map.emplace(entry.op, entry.run).second, "two references of ", entry.op);
    }
    return map;
  }();
  const auto found = by_name.find(op);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace galley
