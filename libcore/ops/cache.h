#pragma once
// Key-value caches: keys and values of the past tokens of a sequence, which a request carries from run to run (ValueRole::kCarried).

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct CacheWriteAttrs : OptionsOf<CacheWriteAttrs> {
  int64_t first = 0;  // the first head of `values` that is stored
  void options(OptionVisitor& v) override;
};

const OpDef& cache_write_op();

/// Writes tokens into a cache, in place: cache[b, position[b] + t] = values[b, t, first .. first + heads). cache [B,capacity,heads,width]
/// is carried, values [B,T,at least first + heads,width], position i64 [B], at least 0. Tokens past the capacity are not written. Returns
/// the new cache.
Value cache_write(Value cache, Value values, Value position, const CacheWriteAttrs& attrs = {});

}  // namespace galley
