#pragma once
// Multi-head self-attention, and programs that continue sequences with a key-value cache.
//
// A program that is captured with BuilderOptions::cache reads T further tokens of each sequence. Its keys and values go to a cache that the
// request carries from run to run, one for each attention; queries read the cache. So prefill and decoding are programs of different T that
// continue the same request. Besides the tokens it is fed the inputs named below. Sequences of different length are padded on the right:
// what padding leaves in the cache is at positions that no query reads before a token is written there.

//
// A program that is captured in the open form (open_form below), which is exported, has no number of nodes that depends on the number of
// tokens. A causal model then has the inputs and outputs that transformers and optimum name: tokens continue earlier ones, whose keys and
// values are inputs, and padding may be anywhere.

#include <cstdint>
#include <string_view>

#include "libcore/graph/graph.h"

namespace galley {

class Builder;

/// A second input of the language models gpt, gpt2, gpt_neo, llama and its relatives without a cache, i64 [N,T]: the position of each token
/// in its document, for packed blocks (data/pack.h). Tokens attend to their document alone. It is taken where the data have it.
inline constexpr const char* kPositionIds = "position_ids";

/// Inputs of a program with a key-value cache of N sequences, i64.
namespace cache_input {
inline constexpr const char* kStart = "start";          ///< [N]: position of the first token; negative: none
inline constexpr const char* kPositions = "positions";  ///< [N,T]: of each token, for learned position embeddings
inline constexpr const char* kLast = "last";            ///< [N]: the token of 0..T-1 whose result is asked for; absent for T = 1
inline constexpr const char* kLength = "length";        ///< [N]: tokens of each sequence, where rotary frequencies depend on them
}  // namespace cache_input

/// Inputs and results of the open form of a causal model: N sequences of T tokens after P earlier ones, with G heads of keys of D features.
namespace open_port {
inline constexpr const char* kPositions = "position_ids";  ///< i64 [N,T]: of each token
inline constexpr const char* kMask = "attention_mask";     ///< i64 [N,P+T]: 0 for padding, which no token reads
inline constexpr const char* kPast = "past_key_values.";   ///< with "LAYER.key" and "LAYER.value": f32 [N,G,P,D]; absent for P = 0
inline constexpr const char* kPresent = "present.";        ///< with the same ends: an output, f32 [N,G,P+T,D]; absent for P = 0
}  // namespace open_port

struct SelfAttentionOptions {
  int64_t heads = 1;
  bool causal = false;                             ///< Position t attends to positions 0..t.
  double dropout = 0;                              ///< Of the attention weights, while training.
  std::string_view dropout_name = "attn_dropout";  ///< The module that draws the dropped weights.
  double scale = 0;                                ///< Of the scores; 0: 1 / sqrt(features of a head).
  Value bias = {};                                 ///< Added to the scores; its shape is that of the operator's bias (ops/attention.h).
  Value lengths = {};                              ///< [N]: tokens from here on are padding, which no token reads; absent: none.
};

/// Self-attention of packed projections by the operator attention: qkv [N,T,3E] holds query, key and value of each token, each split into
/// heads of E / heads features. Returns [N,T,E] (Vaswani et al. 2017).
/// With a cache (BuilderOptions::cache) token t of sequence n has the position start[n] + t; attention that is not causal has no cache.
Value self_attention(Builder& b, Value qkv, const SelfAttentionOptions& options);
struct CausalAttentionOptions {
  Value bias = {};                                 ///< Added to the scores; its shape is that of the operator's bias.
  int64_t window = 0;                              ///< A token attends to itself and the window - 1 tokens before it; 0: to all before it.
  double scale = 0;                                ///< Of the scores; 0: 1 / sqrt(D).
  double dropout = 0;                              ///< Of the attention weights, while training.
  std::string_view dropout_name = "attn_dropout";  ///< The module that draws the dropped weights.
};
/// Causal self-attention of q [N,T,H,D] to k and v [N,T,G,D], where G divides H (grouped queries). Returns [N,T,H D]. With a cache, token t
/// of sequence n has the position start[n] + t.
Value causal_attention(Builder& b, Value q, Value k, Value v, const CausalAttentionOptions& options);
/// A bias [N,1,T,T] for attention within the documents of packed blocks (data/pack.h). positions [N,T] count from 0 in each document:
/// tokens are of one document where index and position differ by the same number. Absent without positions.
Value document_bias(Value positions);
/// BuilderOptions::cache of the open form with `past` earlier tokens.
constexpr int64_t open_form(int64_t past) { return -1 - past; }
bool is_open(const Builder& b);
/// Whether the positions of tokens are inputs: in a program with a cache, and in the open form.
bool has_positions(const Builder& b);
/// These positions, [N,T].
Value fed_positions(Builder& b, int64_t sequences, int64_t tokens);
/// x [N,T,E] -> [N,E]: the token of each sequence whose result is asked for, in a program with a cache; x with BuilderOptions::every_token.
Value last_tokens(Builder& b, Value x);

}  // namespace galley
