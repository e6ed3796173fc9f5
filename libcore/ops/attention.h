#pragma once
// Attention: softmax(scale q k^T + bias) v of each head (Vaswani et al. 2017), and its backward operator.
//
// Layout. q is [B,Tq,H,D]: what a linear layer writes, so that heads need no transpose. The graph has no strided views; instead keys and
// values may share an array with what they come from, along the axis of heads, and are read and written there without a copy:
//   q [B,Tq,H,D],  k [B,Tk,G,D],  v [B,Tk,G,Dv]   three arrays
//   q [B,Tq,H,D],  k [B,Tk,2G,D]                  v absent: G heads of keys, then G heads of values
//   q [B,T,H+2G,D]                                k and v absent: H heads of queries, G of keys, G of values (attribute kv_heads = G;
//                                                 0: thirds)
// H is a multiple of G: query head h reads key head h / (H / G) (grouped queries; G = 1: multi-query). A gradient has the form of its
// input.

#include <array>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// How attention is computed (passes/choose_attention.h).
enum class AttentionAlgorithm {
  kAuto,             // flash where the back end has such a kernel and no other reason speaks against it
  kFlash,            // one kernel that works in tiles and never stores the scores (Dao et al. 2022)
  kMemoryEfficient,  // the definition in blocks of query rows, whose scores the backward pass computes again; not with dropout
  kMath,             // the definition: stores the scores [B,H,Tq,Tk]
};
inline constexpr std::array<std::string_view, 4> kAttentionAlgorithmNames{"auto", "flash", "memory_efficient", "math"};

/// For both operators. The query of row i of sample b has the position i + position[b]; key j has the position j.
struct AttentionAttrs : OptionsOf<AttentionAttrs> {
  double scale = 0;            // of q k^T; 0: 1 / sqrt(D)
  bool causal = false;         // a query reads keys up to its own position
  int64_t window = 0;          // a query reads keys less than `window` positions away; 0: any
  double softcap = 0;          // scores become softcap * tanh(score / softcap), before the bias is added; 0: they do not
  int64_t kv_heads = 0;        // key heads of a packed q; 0: a third of its heads
  bool pad_queries = false;    // `lengths` also ends the queries: later ones read no key
  double dropout = 0;          // dropout probability of the attention weights; others are scaled by 1 / (1 - dropout)
  int64_t stream = 0;          // of dropout
  int64_t first_head = 0;      // the place of head 0 among the heads of all ranks: dropout draws the masks that one rank draws
  bool bias_gradient = false;  // attention_backward: the last output is the gradient of bias
  AttentionAlgorithm algorithm = AttentionAlgorithm::kAuto;
  int64_t block_rows = 0;  // memory_efficient: query rows of a block; 0: as many as have 16 MiB of scores
  void options(OptionVisitor& v) override;
};

/// Sizes, and where the heads of queries, keys and values are in their arrays.
struct AttentionShape {
  int64_t batch, queries, keys, heads, kv_heads, width, value_width;  // width: D
  int64_t q_heads, k_heads, v_heads;                                  // heads in the arrays that hold q, k, v
  int64_t first_key, first_value;                                     // the first head of keys and of values in theirs
  int arrays;                                                         // 1: all in q; 2: q, and k with v; 3
  int64_t group() const { return heads / kv_heads; }
  double scale(const AttentionAttrs& attrs) const;
};
/// The sizes of attention from the types of q, k and v; nullptr: absent. Throws if they do not match.
AttentionShape attention_shape(const AttentionAttrs& attrs, const TensorType& q, const TensorType* k, const TensorType* v);

/// Inputs by position.
namespace attention_port {
inline constexpr int kQ = 0, kK = 1, kV = 2, kBias = 3, kLengths = 4, kPosition = 5, kRng = 6;  // of attention
/// Further inputs of attention_backward: the gradient of o, o, lse and the gradient of lse.
inline constexpr int kGrad = 7, kO = 8, kLse = 9, kGradLse = 10;
}  // namespace attention_port

const OpDef& attention_op();
const OpDef& attention_backward_op();

/// The inputs of attention.
struct AttentionInputs {
  Value q, k, v;  // k, v: see above
  Value bias;  // added to the scores: f32 [Bb, H or 1, Tq or 1, Tk], where Bb divides B: sample b reads bias b mod Bb; -inf forbids a key
  Value lengths;   // i64 [B]: keys from here on are padding
  Value position;  // i64 [B]: the position of the first query; absent: 0
  Value rng;       // i64 [3]: seed, step, global index of sample 0; required for dropout
};
struct Attention {
  Value o;    // [B,Tq,H,Dv]
  Value lse;  // [B,H,Tq]: the logarithm of the sum of the exponentials of the scores
};
/// A query that may read no key gives o = 0 and lse = -inf, and its gradients are 0. Dropout draws the word of element
/// (h * Tq + i) * Tk + j of each sample (random_mask.h), so that the backward pass and every algorithm drop the same.
Attention attention(const AttentionInputs& inputs, const AttentionAttrs& attrs = {});
/// The gradients of q[, k[, v]] and, with bias_gradient, of bias. grad_lse may be absent.
std::vector<Value> attention_backward(const AttentionInputs& inputs, Value grad, Value o, Value lse, Value grad_lse,
                                      const AttentionAttrs& attrs);

}  // namespace galley
