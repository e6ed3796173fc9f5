#pragma once
// Multi-head attention of language models.

#include "libcore/graph/graph.h"

namespace galley {

class Builder;

struct SelfAttentionOptions {
  int64_t heads = 1;
  double dropout = 0;  ///< Of the attention weights, while training.
};

/// Causal self-attention of packed projections: qkv [N,T,3E] holds query, key and value of each token, each split into heads of
/// E / heads features. Returns [N,T,E]; position t attends to positions 0..t (Vaswani et al. 2017).
Value causal_self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options);

}  // namespace galley
