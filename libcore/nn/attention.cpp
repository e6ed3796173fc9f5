#include "libcore/nn/attention.h"

#include "libcore/nn/builder.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/cache.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {

Value self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options) {
  const int64_t n = qkv.shape()[0], length = qkv.shape()[1], width = qkv.shape()[2] / 3, head = width / options.heads;
  AttentionInputs inputs{.q = reshape(qkv, {n, length, 3 * options.heads, head}), .bias = options.bias, .lengths = options.lengths};
  AttentionAttrs attrs;
  attrs.causal = options.causal;
  attrs.scale = options.scale;
  if (b.cache() > 0 && options.causal) {
    GALLEY_ASSERT(!options.bias, "attention with a cache has no bias");
    const Value cache = b.carried("cache", {.dtype = qkv.dtype(), .shape = {n, b.cache(), 2 * options.heads, head}});
    CacheWriteAttrs keys_and_values;
    keys_and_values.first = options.heads;
    inputs.position = b.fed(cache_input::kStart, {.dtype = DType::kI64, .shape = {n}});
    inputs.k = cache_write(cache, inputs.q, inputs.position, keys_and_values);
    inputs.q = slice(inputs.q, 2, 0, options.heads);
  }
  if (b.training() && options.dropout > 0) {
    attrs.dropout = options.dropout;
    attrs.stream = b.random_stream(options.dropout_name);
    inputs.rng = b.rng();
  }
  return reshape(attention(inputs, attrs).o, {n, length, width});
}

Value causal_attention(Builder& b, Value q, Value k, Value v, const CausalAttentionOptions& options) {
  const int64_t n = q.shape()[0], length = q.shape()[1];
  AttentionInputs inputs{.q = q, .k = k, .v = v, .bias = options.bias};
  AttentionAttrs attrs;
  attrs.causal = true;
  attrs.window = options.window;
  attrs.scale = options.scale;
  if (b.cache() > 0) {
    GALLEY_ASSERT(!options.bias, "attention with a cache has no bias");
    inputs.position = b.fed(cache_input::kStart, {.dtype = DType::kI64, .shape = {n}});
    const auto stored = [&](std::string_view name, Value x) {
      const Value cache = b.carried(name, {.dtype = x.dtype(), .shape = {n, b.cache(), x.shape()[2], x.shape()[3]}});
      return cache_write(cache, x, inputs.position);
    };
    inputs.k = stored("key_cache", k);
    inputs.v = stored("value_cache", v);
  }
  if (b.training() && options.dropout > 0) {
    attrs.dropout = options.dropout;
    attrs.stream = b.random_stream(options.dropout_name);
    inputs.rng = b.rng();
  }
  return reshape(attention(inputs, attrs).o, {n, length, q.shape()[2] * v.shape()[3]});
}

Value document_bias(Value positions) {
  if (!positions) return {};
  constexpr double kForbidden = 1e30;  // subtracted from a score: its exponential is 0
  const int64_t n = positions.shape()[0], length = positions.shape()[1];
  const Value index = iota(positions.graph(), positions.dtype(), positions.shape(), 1), begin = sub(index, positions);
  const Value same = equal(reshape(begin, {n, length, 1}), reshape(begin, {n, 1, length}));
  return reshape(affine(cast(same, DType::kF32), kForbidden, -kForbidden), {n, 1, length, length});
}

Value cache_positions(Builder& b, int64_t sequences, int64_t tokens) {
  return b.fed(cache_input::kPositions, {.dtype = DType::kI64, .shape = {sequences, tokens}});
}

Value last_tokens(Builder& b, Value x) {
  const int64_t n = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  if (length == 1) return reshape(x, {n, width});
  const Value last = b.fed(cache_input::kLast, {.dtype = DType::kI64, .shape = {n}});
  return reshape(gather(x, broadcast_to(reshape(last, {n, 1, 1}), {n, 1, width}), 1), {n, width});
}

}  // namespace galley
