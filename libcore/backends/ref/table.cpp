#include "libcore/backends/ref/table.h"

#include <map>
#include <mutex>
#include <shared_mutex>

#include "libcore/base/error.h"

namespace galley {
namespace {

class References {
 public:
  References() {
    for (std::span<const RefEntry> (*family)() : {ref_conv, ref_matmul, ref_pool, ref_random, ref_elementwise, ref_broadcast, ref_reduce,
                                                  ref_shape, ref_index, ref_update, ref_quantize}) {
      add(family());
    }
  }
  void add(std::span<const RefEntry> entries) {
    const std::unique_lock lock(mutex_);
    for (const RefEntry& entry : entries) GALLEY_ASSERT(by_name_.emplace(entry.op, entry.run).second, "two references of ", entry.op);
  }
  RefFunction find(std::string_view op) const {
    const std::shared_lock lock(mutex_);
    const auto found = by_name_.find(op);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::string_view, RefFunction> by_name_;
};

References& references() {
  static References all;
  return all;
}

}  // namespace

void register_references(std::span<const RefEntry> entries) { references().add(entries); }
RefFunction find_reference(std::string_view op) { return references().find(op); }

}  // namespace galley
