#pragma once
// The plan model of a decoder, from its sizes alone, with the kernels of other frameworks: for published runs.

#include "libcore/dist/plan_model.h"

namespace galley {

/// What the backward pass computes again. kOperators: every second matrix product and all element-wise functions (torchtitan's selective
/// policy "op"); kAttentionCore: scores, softmax and dropout (Korthikanti et al. 2022).
enum class Recomputation : uint8_t { kNone, kAttentionCore, kOperators, kFull };

/// The sizes of a transformer.
struct TransformerShape {
  int64_t layers = 1, hidden = 1, heads = 1, kv_heads = 0, ffn = 0;  ///< kv_heads 0: heads; ffn 0: 4 hidden.
  bool gated = false;                                                ///< Three matrices in the feed-forward part.
  bool tied = true;                                                  ///< The head is the token embedding.
  int64_t vocabulary = 1, sequence = 1;

  double layer_parameters() const;
  double parameters() const;
};

/// How a framework runs it.
struct TransformerRun {
  int64_t micro_batch = 1;
  int64_t tensor = 1;
  bool sequence_parallel = false;
  bool flash = false;     ///< Attention without stored scores, which skips the masked half.
  double passes = 2;      ///< Times that a stored activation crosses memory in a forward pass: 2 for plain kernels, less for fused ones.
  bool compiled = false;  ///< Results that nothing reads are not kept.
  Recomputation recompute = Recomputation::kFull;
  DType dtype = DType::kBF16;  ///< Of products: kI8 stands for 8-bit floats.
  StateBytes bytes{2, 2, 12};
  int64_t reduce_bytes = 2;
  double logit_bytes = 6;           ///< Bytes per logit at the loss: the logits and their f32 copies.
  double block_parameters = 100e6;  ///< Matrices are units of their own if they have as many.
};

PlanModel transformer_model(const TransformerShape& shape, const TransformerRun& run);

}  // namespace galley
