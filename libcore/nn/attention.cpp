#include "libcore/nn/attention.h"

#include <algorithm>

#include "libcore/nn/builder.h"
#include "libcore/nn/capture.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/cached_attention.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

constexpr double kForbidden = -1e30;  // added to a score whose key may not be read: its exponential is 0

int64_t past_tokens(const Builder& b) { return -1 - b.cache(); }

/// The bias of the scores of the open form, f32 [N,1,T,P+T]: forbids padding, later tokens and those outside the window.
Value open_bias(Builder& b, int64_t sequences, int64_t tokens, int64_t window) {
  const int64_t keys = past_tokens(b) + tokens;
  const Value mask = b.fed(open_port::kMask, {.dtype = DType::kI64, .shape = {sequences, keys}});
  const auto number = [&](DType dtype, double value) { return full(b.graph(), {.dtype = dtype, .shape = {}}, value); };
  const Value index = iota(b.graph(), DType::kI64, {keys}, 0);
  const Value key = reshape(index, {1, keys}), query = reshape(slice(index, 0, past_tokens(b), keys), {tokens, 1});
  const Value zero = number(DType::kF32, 0), forbidden = number(DType::kF32, kForbidden);
  Value order = where(greater(key, query), forbidden, zero);
  if (window > 0) order = where(less(key, sub(query, number(DType::kI64, static_cast<double>(window - 1)))), forbidden, order);
  const Value padding = equal(reshape(mask, {sequences, 1, 1, keys}), number(DType::kI64, 0));
  return where(padding, forbidden, reshape(order, {1, 1, tokens, keys}));
}

/// Adds the keys or values x [N,T,G,D] to those of earlier tokens: [N,P+T,G,D].
Value with_past(Builder& b, const std::string& name, Value x) {
  if (past_tokens(b) == 0) return x;
  const Shape shape{x.shape()[0], x.shape()[2], past_tokens(b), x.shape()[3]};
  const Value past = b.fed(cat(open_port::kPast, name), {.dtype = x.dtype(), .shape = shape});
  const Value all = concat({past, permute(x, {0, 2, 1, 3})}, 2);
  b.graph().add_output(cat(open_port::kPresent, name), all);
  return permute(all, {0, 2, 1, 3});
}

/// Sets keys, values and bias of the open form.
void open_attention(Builder& b, AttentionInputs& inputs, AttentionAttrs& attrs) {
  inputs.bias = open_bias(b, inputs.q.shape()[0], inputs.q.shape()[1], attrs.window);
  attrs.causal = false;
  attrs.window = 0;
  const size_t layer = b.graph().outputs().size() / 2;  // the only outputs while the model is captured
  inputs.k = with_past(b, cat(layer, ".key"), inputs.k);
  inputs.v = with_past(b, cat(layer, ".value"), inputs.v);
}

}  // namespace

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
  if (b.cache() > 0 && options.causal) {
    GALLEY_ASSERT(!options.bias, "attention with a cache has no bias");
    CachedAttentionAttrs attrs;
    attrs.scale = options.scale;
    return reshape(attend_with_cache(b, {.q = q}, options.heads, attrs), {n, length, width});
  }
  AttentionInputs inputs{.q = q, .bias = options.bias, .lengths = options.lengths};
  AttentionAttrs attrs;
  attrs.causal = options.causal;
  attrs.scale = options.scale;
  if (is_open(b) && options.causal) {
    GALLEY_ASSERT(!options.bias, "the open form of causal attention has no bias");
    const std::vector<Value> parts = chunk(inputs.q, 3, 2);
    inputs = {.q = parts[0], .k = parts[1], .v = parts[2]};
    open_attention(b, inputs, attrs);
  }
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
    GALLEY_ASSERT(!options.bias, "attention with a cache has no bias");
    CachedAttentionAttrs attrs;
    attrs.scale = options.scale;
    attrs.window = options.window;
    return reshape(attend_with_cache(b, {.q = q, .k = k, .v = v}, k.shape()[2], attrs), result);
  }
  AttentionInputs inputs{.q = q, .k = k, .v = v, .bias = options.bias};
  AttentionAttrs attrs;
  attrs.causal = true;
  attrs.window = options.window;
  attrs.scale = options.scale;
  if (is_open(b)) open_attention(b, inputs, attrs);
  if (b.training() && options.dropout > 0) {
    attrs.dropout = options.dropout;
    attrs.stream = b.random_stream(options.dropout_name);
    inputs.rng = b.rng();
  }
  return reshape(attention(inputs, attrs).o, result);
}

Value document_bias(Value positions) {
  if (!positions) return {};
  constexpr double kForbidden = 1e30;  // subtracted from a score: its exponential is 0
  const int64_t n = positions.shape()[0], length = positions.shape()[1];
  const Value index = iota(positions.graph(), positions.dtype(), positions.shape(), 1), begin = sub(index, positions);
  const Value same = equal(reshape(begin, {n, length, 1}), reshape(begin, {n, 1, length}));
  return reshape(affine(cast(same, DType::kF32), kForbidden, -kForbidden), {n, 1, length, length});
}

bool is_open(const Builder& b) { return b.cache() < 0; }
bool has_positions(const Builder& b) { return b.cache() != 0; }

Value fed_positions(Builder& b, int64_t sequences, int64_t tokens) {
  return b.fed(is_open(b) ? open_port::kPositions : cache_input::kPositions, {.dtype = DType::kI64, .shape = {sequences, tokens}});
}

Value last_tokens(Builder& b, Value x) {
  if (b.every_token()) return x;
  const int64_t n = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  if (length == 1) return reshape(x, {n, width});
  const Value last = b.fed(cache_input::kLast, {.dtype = DType::kI64, .shape = {n}});
  return reshape(gather(x, broadcast_to(reshape(last, {n, 1, 1}), {n, 1, width}), 1), {n, width});
}

}  // namespace galley
