#pragma once
// Multi-head self-attention.

#include <string_view>

#include "libcore/graph/graph.h"

namespace galley {

class Builder;

struct SelfAttentionOptions {
  int64_t heads = 1;
  bool causal = false;                             ///< Position t attends to positions 0..t.
  double dropout = 0;                              ///< Of the attention weights, while training.
  std::string_view dropout_name = "attn_dropout";  ///< The module that draws the dropped weights.
  Value bias = {};                                 ///< Added to the scores; its shape is that of the operator's bias (ops/attention.h).
};

/// Self-attention of packed projections by the operator attention: qkv [N,T,3E] holds query, key and value of each token, each split into
/// heads of E / heads features. Returns [N,T,E] (Vaswani et al. 2017).
Value self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options);

}  // namespace galley
