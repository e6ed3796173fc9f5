#include "libcore/ops/cache.h"

#include <algorithm>

#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer(const OpContext& c) {
  const TensorType &cache = c.in(0), &values = c.in(1);
  const int64_t first = c.attrs<CacheWriteAttrs>().first;
  GALLEY_CHECK(cache.shape.rank() == 4, "cache must be [batch,capacity,heads,width], is ", cache.shape);
  GALLEY_CHECK(values.dtype == cache.dtype, "cache is ", cache, ", values are ", values, ": their types differ");
  GALLEY_CHECK(values.shape.rank() == 4 && values.shape[0] == cache.shape[0] && values.shape[2] >= first + cache.shape[2] &&
                   values.shape[3] == cache.shape[3],
               "values must be [", cache.shape[0], ",tokens,at least ", first + cache.shape[2], ",", cache.shape[3], "] for cache ",
               cache.shape, ", are ", values.shape);
  GALLEY_CHECK(c.in(2).dtype == DType::kI64 && c.in(2).shape == Shape({cache.shape[0]}), "position must be i64 [", cache.shape[0], "], is ",
               c.in(2));
  return {cache};
}

}  // namespace

void CacheWriteAttrs::options(OptionVisitor& v) { v.option({.name = "first", .doc = "first head of the cache to write", .min = 0}, first); }

const OpDef& cache_write_op() {
  static const OpDef def{.name = "cache_write",
                         .doc = "stores keys and values of tokens at their positions of a cache, in place",
                         .inputs = {Port::state("cache"), "values", Port::index("position")},
                         .outputs = {Port::state("cache")},
                         .make_attrs = make_options<CacheWriteAttrs>,
                         .infer = infer,
                         .no_gradient = "it updates a cache, which training does not have",
                         .cost =
                             [](const OpContext& c) {
                               // Of the cache, only the new tokens are written.
                               Cost cost;
                               const double tokens = static_cast<double>(c.in(1).shape[0]) * static_cast<double>(c.in(1).shape[1]);
                               const auto row = static_cast<double>(c.in(0).shape[2] * c.in(0).shape[3] * dtype_size(c.in(0).dtype));
                               cost.bytes_read = cost.bytes_written = tokens * row;
                               return cost;
                             },
                         .work = WorkClass::kState,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}},
                         .has_effect = true};
  return def;
}

Value cache_write(Value cache, Value values, Value position, const CacheWriteAttrs& attrs) {
  return emit("cache_write", {cache, values, position}, attrs);
}

OpTable cache_ops() { return {&cache_write_op()}; }

}  // namespace galley
