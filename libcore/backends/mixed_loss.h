#pragma once
// Cross entropy in f32 of logits in bf16 or f16, for the rewrites of back ends: of a language model, the logits are the largest array, and
// copies of them in f32 are twice that.

#include "libcore/ops/loss.h"
#include "libcore/passes/target.h"

namespace galley {

/// cross_entropy of the logits as f32, where class_weight is f32 or absent: the loss is f32.
const OpDef& mixed_cross_entropy_op();
/// grad f32, logits, target, class_weight? -> cross_entropy_backward of the logits as f32, rounded to the dtype of the logits.
const OpDef& mixed_cross_entropy_backward_op();
Value mixed_cross_entropy(Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs);
Value mixed_cross_entropy_backward(Value grad, Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs);

/// Registers the operators, once.
void ensure_mixed_loss_operators();

/// kBeforeLayout: cross_entropy of logits that are cast to f32 reads them as they were, and its gradient is made in that dtype where
/// nothing else reads the one in f32. The results have the same bits.
PassReport use_mixed_losses(Graph& graph, const Target& target);

}  // namespace galley
