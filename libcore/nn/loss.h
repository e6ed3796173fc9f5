#pragma once
// Losses by name, and what they compare the model's output with.

#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

/// As torch.nn.functional.cross_entropy.
struct CrossEntropyParams : OptionsOf<CrossEntropyParams> {
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  std::vector<double> weight;  // one a class, or none
  int64_t dim = 1;             // of the classes: 1 or -1
  void options(OptionVisitor& v) override;
};
struct MseParams : OptionsOf<MseParams> {
  void options(OptionVisitor& v) override;
};
struct BceWithLogitsParams : OptionsOf<BceWithLogitsParams> {
  void options(OptionVisitor& v) override;
};

/// The losses, with a line of doc each: cross_entropy, mse, bce_with_logits.
ComponentKinds losses();

/// A loss of that name with its defaults. Throws, with the nearest name, where there is none.
Component make_loss(std::string_view type);
/// The loss with the classes of cross_entropy in the last dimension; other losses as they are.
Component over_last_dimension(Component loss);
/// Dimension of the classes in an output of this type, 1 or the last; -1 where the loss has no classes, or the output no such dimension.
int class_axis(const Component& loss, const TensorType& output);

/// Type of the target that belongs to an output: cross_entropy takes class indices i64 [N,...] for logits [N,C,...], or class
/// probabilities of the logits' type (`probabilities`: mixup, cutmix); the others a target of the output's type.
TensorType loss_target(const Component& loss, const TensorType& output, bool probabilities = false);

/// The training objective: a scalar, mean over the batch as PyTorch's default. Path "loss".
Value build_loss(Builder& b, const Component& loss, Value output, Value target);
/// The loss of each element of the targets: [N,...] without the dimension of the classes. Path "loss".
Value build_element_losses(Builder& b, const Component& loss, Value output, Value target);
/// The loss of each sample, [N]: means over a sample's own positions, where it has several.
Value build_sample_losses(Builder& b, const Component& loss, Value output, Value target);

}  // namespace galley
