#include "libcore/ops/cached_attention.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/rules.h"

namespace galley {
namespace {

using namespace cached_attention_port;

void check_whole_numbers(const OpContext& c, int i, std::string_view name, int64_t count) {
  if (c.has(i))
    GALLEY_CHECK(c.in(i).dtype == DType::kI64 && c.in(i).shape == Shape({count}), name, " must be i64 [", count, "], is ", c.in(i));
}

/// Heads of keys and values among those of a packed q, or in k and v.
void find_heads(const OpContext& c, CachedAttentionShape& s) {
  const TensorType& q = c.in(kQ);
  const auto& attrs = c.attrs<CachedAttentionAttrs>();
  s.packed = !c.has(kK);
  if (s.packed) {
    GALLEY_CHECK(attrs.kv_heads > 0 || s.q_heads % 3 == 0, "without k, q holds queries, keys and values, but its ", s.q_heads,
                 " heads do not divide into three parts; set kv_heads");
    s.kv_heads = attrs.kv_heads > 0 ? attrs.kv_heads : s.q_heads / 3;
    s.heads = s.q_heads - 2 * s.kv_heads;
    s.new_heads = s.q_heads;
    s.first_key = s.heads;
    s.first_value = s.heads + s.kv_heads;
    return;
  }
  GALLEY_CHECK(attrs.kv_heads == 0, "kv_heads is for keys and values in q; k is given, with ", c.in(kK).shape);
  GALLEY_CHECK(c.has(kV), "k is given without v");
  s.heads = s.q_heads;
  for (const int i : {kK, kV}) {
    const TensorType& type = c.in(i);
    GALLEY_CHECK(type.dtype == q.dtype, "q is ", q, ", ", i == kK ? "k" : "v", " is ", type, ": their types differ");
    GALLEY_CHECK(type.shape.rank() == 4 && type.shape[0] == s.batch && type.shape[1] == s.tokens && type.shape[3] == s.width,
                 i == kK ? "k" : "v", " must be [", s.batch, ",", s.tokens, ",heads,", s.width, "] as q ", q.shape, ", is ", type.shape);
  }
  s.kv_heads = s.new_heads = c.in(kK).shape[2];
  GALLEY_CHECK(c.in(kV).shape[2] == s.kv_heads, "k has ", s.kv_heads, " heads, v has ", c.in(kV).shape[2]);
}

std::vector<TensorType> infer(const OpContext& c) {
  const CachedAttentionShape s = cached_attention_shape(c);
  GALLEY_CHECK(c.attrs<CachedAttentionAttrs>().window >= 0, "window must not be negative, is ", c.attrs<CachedAttentionAttrs>().window);
  check_whole_numbers(c, kPosition, "position", s.batch);
  check_whole_numbers(c, kLast, "last", s.batch);
  TensorType o;
  o.dtype = c.in(kQ).dtype;
  o.shape = {s.batch, s.tokens, s.heads, s.width};
  std::vector<TensorType> types{o, c.in(kCache)};
  if (c.has(kScales)) types.push_back(c.in(kScales));
  return types;
}

/// Attention to the whole cache, which is read once; only the rows of new tokens are written.
Cost cost(const OpContext& c) {
  const CachedAttentionShape s = cached_attention_shape(c);
  const double queries = static_cast<double>(s.batch * s.tokens * s.heads);
  Cost cost;
  cost.flops = 4 * static_cast<double>(s.width) * queries * static_cast<double>(s.reach(c.attrs<CachedAttentionAttrs>()));
  double row = static_cast<double>(2 * s.kv_heads * s.width * dtype_size(c.in(kCache).dtype));
  if (c.has(kScales)) row += static_cast<double>(2 * s.kv_heads) * 4;
  const double type = static_cast<double>(dtype_size(c.in(kQ).dtype)), width = static_cast<double>(s.width);
  const double added = static_cast<double>(s.batch * s.tokens * 2 * s.kv_heads) * width * type;
  cost.bytes_read = static_cast<double>(s.batch * s.capacity) * row + queries * width * type + added;
  cost.bytes_written = static_cast<double>(s.batch * std::min(s.tokens, s.capacity)) * row + queries * width * type;
  return cost;
}

}  // namespace

void CachedAttentionAttrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "scale of q k^T; 0: 1 / sqrt(width of a head)", .min = 0}, scale);
  v.option({.name = "window", .doc = "tokens that a token attends to, itself included; 0: all that the cache holds", .min = 0}, window);
  v.option({.name = "kv_heads", .doc = "key heads of a packed q; 0: a third of its heads", .min = 0}, kv_heads);
}

double CachedAttentionShape::scale(const CachedAttentionAttrs& attrs) const {
  return attrs.scale != 0 ? attrs.scale : 1 / std::sqrt(static_cast<double>(width));
}

CachedAttentionShape cached_attention_shape(const OpContext& c) {
  const TensorType &q = c.in(kQ), &cache = c.in(kCache);
  check_floating(q, "q");
  GALLEY_CHECK(q.shape.rank() == 4 && q.shape[3] >= 1, "q must be [batch,tokens,heads,width], is ", q.shape);
  CachedAttentionShape s{};
  s.batch = q.shape[0];
  s.tokens = q.shape[1];
  s.q_heads = q.shape[2];
  s.width = q.shape[3];
  find_heads(c, s);
  GALLEY_CHECK(s.heads >= 1 && s.kv_heads >= 1 && s.heads % s.kv_heads == 0, s.kv_heads, " key heads do not divide ", s.heads,
               " query heads");
  GALLEY_CHECK(cache.shape.rank() == 4 && cache.shape[0] == s.batch && cache.shape[1] >= 1 && cache.shape[2] == 2 * s.kv_heads &&
                   cache.shape[3] == s.width,
               "cache must be [", s.batch, ",capacity,", 2 * s.kv_heads, ",", s.width, "] for q ", q.shape, ", is ", cache.shape);
  s.capacity = cache.shape[1];
  GALLEY_CHECK(cache.dtype == q.dtype || cache.dtype == DType::kBF16 || cache.dtype == DType::kI8, "cache must be ", q.dtype,
               " as q, bf16 or i8, is ", cache);
  GALLEY_CHECK(c.has(kScales) == (cache.dtype == DType::kI8), "an i8 cache needs scales, others have none; cache is ", cache);
  if (c.has(kScales))
    GALLEY_CHECK(c.in(kScales).dtype == DType::kF32 && c.in(kScales).shape == Shape({s.batch, s.capacity, 2 * s.kv_heads}),
                 "scales must be f32 [", s.batch, ",", s.capacity, ",", 2 * s.kv_heads, "], are ", c.in(kScales));
  return s;
}

const OpDef& cached_attention_op() {
  static const OpDef def{
      .name = "cached_attention",
      .doc = "causal attention of new tokens with the keys and values of a cache, to which theirs are added in place",
      .inputs = {"q", "k?", "v?", Port::state("cache"), Port::state("scales?"), Port::index("position"), Port::index("last?")},
      .outputs = {"o", Port::state("cache"), Port::state("scales")},
      .make_attrs = make_options<CachedAttentionAttrs>,
      .infer = infer,
      .no_gradient = "it updates a cache, which training does not have",
      .cost = cost,
      .work = WorkClass::kProduct,
      .layout = {FormatRule::kContiguous},
      .precision = PrecisionRule::kKeepF32,
      .updates = {{1, kCache}, {2, kScales}},
      .has_effect = true};
  return def;
}

CachedAttention cached_attention(const CachedAttentionInputs& in, const CachedAttentionAttrs& attrs) {
  const std::vector<Value> r = emit_all("cached_attention", std::make_unique<CachedAttentionAttrs>(attrs),
                                        std::vector<Value>{in.q, in.k, in.v, in.cache, in.scales, in.position, in.last});
  return {r[0], r[1], r.size() > 2 ? r[2] : Value()};
}

OpTable cache_ops() { return {&cached_attention_op()}; }

}  // namespace galley
