#pragma once
// Losses, as in torch.nn.functional.

#include <array>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

enum class Reduction { kMean, kSum, kNone };
inline constexpr std::array<std::string_view, 3> kReductionNames{"mean", "sum", "none"};

struct CrossEntropyAttrs : OptionsOf<CrossEntropyAttrs> {
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
  void options(OptionVisitor& v) override;
};
struct LossAttrs : OptionsOf<LossAttrs> {
  Reduction reduction = Reduction::kMean;
  void options(OptionVisitor& v) override;
};

const OpDef& cross_entropy_op();
const OpDef& cross_entropy_backward_op();
const OpDef& mse_loss_op();
const OpDef& bce_with_logits_op();

/// logits [N,C,...]; target i64 [N,...] class indices or floating [N,C,...] class probabilities; class_weight [C] or absent.
/// kMean divides by the sum of the targets' weights (class indices) or by the number of targets (probabilities). Result [] or [N,...].
Value cross_entropy(Value logits, Value target, Value class_weight = {}, const CrossEntropyAttrs& attrs = {});
/// grad: gradient of the loss, [] or [N,...].
Value cross_entropy_backward(Value grad, Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs);
/// (x - target)^2, reduced.
Value mse_loss(Value x, Value target, const LossAttrs& attrs = {});
/// Binary cross entropy of sigmoid(x), computed stably; weight of x's shape or absent.
Value bce_with_logits(Value x, Value target, Value weight = {}, const LossAttrs& attrs = {});

}  // namespace galley
