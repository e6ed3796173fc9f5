#include "libcore/nn/attention.h"

#include <algorithm>

#include "libcore/nn/builder.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/cached_attention.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"

namespace galley {

namespace {

/// Attention of the new tokens q [N,T,...] to those of the module's cache, G = `kv_heads` heads of D values. A layer with a window keeps no
/// more tokens than it reads.
Value attend_with_cache(Builder& b, CachedAttentionInputs inputs, int64_t kv_heads, const CachedAttentionAttrs& attrs) {
  const int64_t n = inputs.q.shape()[0], width = inputs.q.shape()[3];
  const int64_t rows = attrs.window > 0 ? std::min(attrs.window, b.cache()) : b.cache();
  const DType dtype = b.cache_dtype() == DType::kF32 ? inputs.q.dtype() : b.cache_dtype();
  inputs.cache = b.carried("cache", {.dtype = dtype, .shape = {n, rows, 2 * kv_heads, width}});
  if (dtype == DType::kI8) inputs.scales = b.carried("cache_scales", {.dtype = DType::kF32, .shape = {n, rows, 2 * kv_heads}});
  inputs.position = b.fed(cache_input::kStart, {.dtype = DType::kI64, .shape = {n}});
  if (inputs.q.shape()[1] > 1) inputs.last = b.fed(cache_input::kLast, {.dtype = DType::kI64, .shape = {n}});
  return cached_attention(inputs, attrs).o;
}

}  // namespace

Value self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options) {
  const int64_t n = qkv.shape()[0], length = qkv.shape()[1], width = qkv.shape()[2] / 3, head = width / options.heads;
  const Value q = reshape(qkv, {n, length, 3 * options.heads, head});
  if (b.cache() > 0) {
    GALLEY_ASSERT(options.causal && !options.bias, "attention with a cache is causal and has no bias");
    CachedAttentionAttrs attrs;
    attrs.scale = options.scale;
    return reshape(attend_with_cache(b, {.q = q}, options.heads, attrs), {n, length, width});
  }
  AttentionInputs inputs{.q = q, .bias = options.bias};
  AttentionAttrs attrs;
  attrs.causal = options.causal;
  attrs.scale = options.scale;
  if (b.training() && options.dropout > 0) {
    attrs.dropout = options.dropout;
    attrs.stream = b.random_stream(options.dropout_name);
    inputs.rng = b.rng();
  }
  return reshape(attention(inputs, attrs).o, {n, length, width});
}

Value causal_attention(Builder& b, Value q, Value k, Value v, const CausalAttentionOptions& options) {
  const Shape result{q.shape()[0], q.shape()[1], q.shape()[2] * v.shape()[3]};
  if (b.cache() > 0) {
    CachedAttentionAttrs attrs;
    attrs.scale = options.scale;
    attrs.window = options.window;
    return reshape(attend_with_cache(b, {.q = q, .k = k, .v = v}, k.shape()[2], attrs), result);
  }
  AttentionInputs inputs{.q = q, .k = k, .v = v};
  AttentionAttrs attrs;
  attrs.causal = true;
  attrs.window = options.window;
  attrs.scale = options.scale;
  if (b.training() && options.dropout > 0) {
    attrs.dropout = options.dropout;
    attrs.stream = b.random_stream(options.dropout_name);
    inputs.rng = b.rng();
  }
  return reshape(attention(inputs, attrs).o, result);
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
