#pragma once
// The training pass of a golden model.

#include "tests/nn/golden_model.h"

namespace galley {

/// A training graph up to its loss.
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
    loss = build_training_loss(b, cross_entropy, model_info(model), results, target).id();
    specs = b.take_parameters();
  }
  Graph graph;
  std::vector<ParameterSpec> specs;
  ValueId logits = kNoValue;
  ValueId loss = kNoValue;
};

}  // namespace galley
