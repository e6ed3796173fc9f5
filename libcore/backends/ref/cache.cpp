// Tokens written into a cache.

#include "libcore/ops/cache.h"

#include "libcore/backends/ref/table.h"

namespace galley {
namespace {

void cache_write_ref(RefCall& call) {
  const int64_t first = call.attrs<CacheWriteAttrs>().first;
  const Shape &cache = call.in(0).shape, &values = call.in(1).shape;
  call.out().v = call.in(0).v;
  for (int64_t b = 0; b < cache[0]; ++b) {
    for (int64_t t = 0; t < values[1]; ++t) {
      const auto at = static_cast<int64_t>(call.in(2)[b]) + t;
      if (at < 0 || at >= cache[1]) continue;
      for (int64_t i = 0; i < cache[2] * cache[3]; ++i)
        call.out()[(b * cache[1] + at) * cache[2] * cache[3] + i] = call.in(1)[((b * values[1] + t) * values[2] + first) * values[3] + i];
    }
  }
}

constexpr RefEntry kEntries[] = {{"cache_write", cache_write_ref}};

}  // namespace

std::span<const RefEntry> ref_cache() { return kEntries; }

}  // namespace galley
