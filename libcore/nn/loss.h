#pragma once
// Losses by name, and the targets that they need.

#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

/// Options of cross_entropy, as in torch.nn.functional.cross_entropy.
struct CrossEntropyParams : OptionsOf<CrossEntropyParams> {
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  std::vector<double> weight;  // one weight per class, or empty
  int64_t dim = 1;             // dimension of the classes: 1 or -1
  void options(OptionVisitor& v) override;
};
/// Options of mse: none.
struct MseParams : OptionsOf<MseParams> {
  void options(OptionVisitor& v) override;
};
/// Options of bce_with_logits: none.
struct BceWithLogitsParams : OptionsOf<BceWithLogitsParams> {
  void options(OptionVisitor& v) override;
};

/// The losses that a recipe may name: cross_entropy, mse, bce_with_logits.
ComponentKinds losses();

/// The loss of that name with default options. Throws Error, suggesting the nearest name, if there is none.
Component make_loss(std::string_view type);
/// Sets the class dimension of cross_entropy to the last one; returns other losses unchanged.
Component over_last_dimension(Component loss);
/// The dimension of the classes in an output of this type: 1 or the last. -1 if the loss has no classes or the output does not have this
/// dimension.
int class_axis(const Component& loss, const TensorType& output);

/// Type of the target for an output. cross_entropy takes class indices i64 [N,...] for logits [N,C,...], or class probabilities of the
/// logits' type if `probabilities` (mixup, cutmix). Other losses take a target of the output's type.
TensorType loss_target(const Component& loss, const TensorType& output, bool probabilities = false);

/// Captures the training objective: a scalar, the mean over the batch, as PyTorch's default. Its path is "loss".
Value build_loss(Builder& b, const Component& loss, Value output, Value target);
/// Captures the loss of each target element: [N,...] without the dimension of the classes. Its path is "loss".
Value build_element_losses(Builder& b, const Component& loss, Value output, Value target);
/// Captures the loss of each sample, [N]: the mean over the sample's positions. Its path is "loss".
Value build_sample_losses(Builder& b, const Component& loss, Value output, Value target);

}  // namespace galley
