#include "libcore/nn/attention.h"

#include "libcore/nn/builder.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/shape.h"

namespace galley {

Value self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options) {
  const int64_t n = qkv.shape()[0], length = qkv.shape()[1], width = qkv.shape()[2] / 3, head = width / options.heads;
  AttentionInputs inputs{.q = reshape(qkv, {n, length, 3 * options.heads, head}), .bias = options.bias};
  AttentionAttrs attrs;
  attrs.causal = options.causal;
  if (b.training() && options.dropout > 0) {
    attrs.dropout = options.dropout;
    attrs.stream = b.random_stream(options.dropout_name);
    inputs.rng = b.rng();
  }
  return reshape(attention(inputs, attrs).o, {n, length, width});
}

}  // namespace galley
