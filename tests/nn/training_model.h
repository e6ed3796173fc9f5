#pragma once
// The training pass of a golden model.

#include "libcore/ops/binary.h"
#include "libcore/ops/unary.h"
#include "tests/nn/golden_model.h"

namespace galley {

/// The objective of a training pass: the loss of the main result plus the weighted losses of auxiliary classifiers.
inline Value training_loss(Builder& b, const Component& loss, const ModelInfo& model, const NamedValues& results, Value target) {
  Value total = build_loss(b, loss, results.front().second, target);
  for (size_t i = 1; i < results.size(); ++i) {
    const auto weight = std::find_if(model.loss_weights.begin(), model.loss_weights.end(),
                                     [&](const auto& item) { return item.first == results[i].first; });
    if (weight != model.loss_weights.end()) total = add(total, affine(build_loss(b, loss, results[i].second, target), weight->second));
  }
  return total;
}

/// A training graph up to the loss.
struct TrainingModel {
  TrainingModel(const GoldenModel& golden, double label_smoothing) {
    Builder b(graph);
    const Value x = b.input("input", {.shape = golden.input});
    const Component model = with_ten_classes(golden);
    const NamedValues results = build_model(b, model, x);
    const Value output = results.front().second;
    Component cross_entropy = make_loss("cross_entropy");
    Setter smoothing("label_smoothing", {label_smoothing});
    cross_entropy.params->options(smoothing);
    const Value target = b.input("target", loss_target(cross_entropy, output.type()));
    logits = output.id();
    loss = training_loss(b, cross_entropy, model_info(model), results, target).id();
    specs = b.take_parameters();
  }
  Graph graph;
  std::vector<ParameterSpec> specs;
  ValueId logits = kNoValue;
  ValueId loss = kNoValue;
};

}  // namespace galley
