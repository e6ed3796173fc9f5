#pragma once
// Multi-head self-attention, and programs that continue sequences with a key-value cache.
//
// A program that is captured with BuilderOptions::cache reads T further tokens of each sequence. Its keys and values go to a cache that the
// request carries from run to run, one for each attention; queries read the cache. So prefill and decoding are programs of different T that
// continue the same request. Besides the tokens it is fed the inputs named below. Sequences of different length are padded on the right:
// what padding leaves in the cache is at positions that no query reads before a token is written there.

#include <string_view>

#include "libcore/graph/graph.h"

namespace galley {

class Builder;

/// Inputs of a program with a key-value cache of N sequences, i64.
namespace cache_input {
inline constexpr const char* kStart = "start";          ///< [N]: position of the first token; negative: none
inline constexpr const char* kPositions = "positions";  ///< [N,T]: of each token, for learned position embeddings
inline constexpr const char* kLast = "last";            ///< [N]: the token of 0..T-1 whose result is asked for; absent for T = 1
inline constexpr const char* kLong = "long";            ///< [N]: 1 for a sequence of more than ModelInfo::cache_switch tokens, else 0
}  // namespace cache_input

struct SelfAttentionOptions {
  int64_t heads = 1;
  bool causal = false;                             ///< Position t attends to positions 0..t.
  double dropout = 0;                              ///< Of the attention weights, while training.
  std::string_view dropout_name = "attn_dropout";  ///< The module that draws the dropped weights.
  double scale = 0;                                ///< Of the scores; 0: 1 / sqrt(features of a head).
  Value bias = {};                                 ///< Added to the scores; its shape is that of the operator's bias (ops/attention.h).
};

/// Self-attention of packed projections by the operator attention: qkv [N,T,3E] holds query, key and value of each token, each split into
/// heads of E / heads features. Returns [N,T,E] (Vaswani et al. 2017).
/// With a cache (BuilderOptions::cache) it must be causal, and token t of sequence n has the position start[n] + t.
Value self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options);
struct CausalAttentionOptions {
  int64_t window = 0;                              ///< A token attends to itself and the window - 1 tokens before it; 0: to all before it.
  double scale = 0;                                ///< Of the scores; 0: 1 / sqrt(D).
  double dropout = 0;                              ///< Of the attention weights, while training.
  std::string_view dropout_name = "attn_dropout";  ///< The module that draws the dropped weights.
};
/// Causal self-attention of q [N,T,H,D] to k and v [N,T,G,D], where G divides H (grouped queries). Returns [N,T,H D]. With a cache, token t
/// of sequence n has the position start[n] + t.
Value causal_attention(Builder& b, Value q, Value k, Value v, const CausalAttentionOptions& options);
/// The positions [N,T] of the tokens of a program with a cache.
Value cache_positions(Builder& b, int64_t sequences, int64_t tokens);
/// x [N,T,E] -> [N,E]: the token of each sequence whose result is asked for, in a program with a cache.
Value last_tokens(Builder& b, Value x);

}  // namespace galley
