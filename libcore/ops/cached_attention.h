#pragma once
// Attention of new tokens with a key-value cache: keys and values of the past tokens of a sequence, which a request carries from run to run
// (ValueRole::kCarried).
//
// A row of the cache holds the keys and values of one token: G heads of keys, then G heads of values. The token at position p has row
// p mod capacity, so a cache with fewer rows than tokens is a ring that holds the last `capacity` tokens. Rows are stored as f32 (the type
// of q), bf16, or i8 with an f32 scale for each head: scale = largest |x| / 127, code = x / scale, rounded to the nearest even. The new
// tokens are attended to as they are stored, so results do not depend on how a sequence is divided into runs.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct CachedAttentionAttrs : OptionsOf<CachedAttentionAttrs> {
  double scale = 0;      // of q k^T; 0: 1 / sqrt(width of a head)
  int64_t window = 0;    // a token attends to itself and the window - 1 tokens before it; 0: to all that the cache holds
  int64_t kv_heads = 0;  // key heads of a packed q; 0: a third of its heads
  void options(OptionVisitor& v) override;
};

/// Inputs by position.
namespace cached_attention_port {
inline constexpr int kQ = 0, kK = 1, kV = 2, kCache = 3, kScales = 4, kPosition = 5, kLast = 6;
}

/// Sizes, and where the heads of queries, keys and values are in their arrays.
struct CachedAttentionShape {
  int64_t batch, tokens, heads, kv_heads, width, capacity;
  int64_t q_heads, new_heads;      // heads of the arrays that hold the queries, and the new keys and values
  int64_t first_key, first_value;  // the first head of keys and of values in theirs
  bool packed;                     // keys and values are in q
  int64_t group() const { return heads / kv_heads; }
  /// The most tokens that a token attends to.
  int64_t reach(const CachedAttentionAttrs& attrs) const { return attrs.window > 0 && attrs.window < capacity ? attrs.window : capacity; }
  double scale(const CachedAttentionAttrs& attrs) const;
};
/// Throws if the types do not match.
CachedAttentionShape cached_attention_shape(const OpContext& c);

const OpDef& cached_attention_op();

/// The inputs of cached_attention.
struct CachedAttentionInputs {
  Value q, k, v;   // q [B,T,H,D], k and v [B,T,G,D], where G divides H; or all in q [B,T,H+2G,D]
  Value cache;     // [B,capacity,2G,D], carried
  Value scales;    // f32 [B,capacity,2G], carried; for an i8 cache
  Value position;  // i64 [B]: of the first new token; negative: the sequence has no new token, and its rows do not change
  Value last;      // i64 [B]: the last new token of 0..T-1; those after it are padding; absent: T - 1
};
struct CachedAttention {
  Value o;              // [B,T,H,D]; padding gives 0
  Value cache, scales;  // the new ones
};
/// Attention of each new token to itself and the tokens before it. T may exceed the capacity.
CachedAttention cached_attention(const CachedAttentionInputs& inputs, const CachedAttentionAttrs& attrs = {});

}  // namespace galley
