#include "libcore/nn/attention.h"

#include <cmath>

#include "libcore/nn/builder.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

/// [length,length]: 0 where the row's position may attend to the column's, a large negative number elsewhere.
Value causal_mask(Graph& graph, DType dtype, int64_t length) {
  const Shape shape{length, length};
  const Value distance = sub(iota(graph, dtype, shape, 0), iota(graph, dtype, shape, 1));
  return affine(clamp(distance, -1, 0), 1e30);
}

}  // namespace

Value causal_self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options) {
  const int64_t n = qkv.shape()[0], length = qkv.shape()[1], width = qkv.shape()[2] / 3, head = width / options.heads;
  const Value parts = permute(reshape(qkv, {n, length, 3, options.heads, head}), {2, 0, 3, 1, 4});
  const auto part = [&](int64_t i) { return squeeze(slice(parts, 0, i, i + 1), 0); };  // [N,heads,T,head]
  Value scores = matmul(affine(part(0), 1 / std::sqrt(static_cast<double>(head))), part(1), {false, true});
  scores = add(scores, causal_mask(b.graph(), scores.dtype(), length));
  const Value weights = b.dropout("attn_dropout", softmax(scores), options.dropout);
  return reshape(transpose(matmul(weights, part(2)), 1, 2), {n, length, width});
}

}  // namespace galley
