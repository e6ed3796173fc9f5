#pragma once
// Compares a language model in double with the results of a reference framework: tests/golden/nn/decoders.txt and transformer.txt.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/builder.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/order_updates.h"
#include "tests/nn/golden_file.h"
#include "tests/support/golden_weights.h"

namespace galley {

/// The training pass of a model, with inputs and parameters.
struct TrainingPass {
  /// Takes the parameters of `b`, whose graph is this one's, and gives them the values of the golden files.
  void take_parameters(Builder& b) {
    specs = b.take_parameters();
    for (const ParameterSpec& spec : specs) {
      parameters.push_back(graph.find_input(spec.name));
      feeds[spec.name] = {spec.type.shape, golden_state(spec.name, spec.type.shape)};
    }
  }
  Graph graph;
  std::vector<ParameterSpec> specs;
  std::vector<ValueId> parameters;
  std::map<std::string, RefArray> feeds;
  ValueId logits = kNoValue, loss = kNoValue;
};

/// Expects `want`'s logits, loss and gradients of all parameters.
inline void expect_golden_gradients(TrainingPass& model, const GoldenFile& want) {
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, model.loss, model.parameters);
  const std::map<ValueId, RefArray> values = interpret(model.graph, model.feeds);
  // Both sides compute in double, with sums in other orders, and 12 digits are stored.
  expect_golden("logits", want.at("logits"), values.at(model.logits).v, 1e-10);
  expect_golden("loss", want.at("loss"), values.at(model.loss).v, 1e-10);
  for (size_t i = 0; i < model.specs.size(); ++i) {
    const std::string key = "grad:" + model.specs[i].name;
    ASSERT_TRUE(want.contains(key)) << key;
    // The gradient of a key bias is 0: softmax does not see it.
    expect_golden(key, want.at(key), values.at(gradients.at(model.parameters[i])).v, 1e-9, 1e-13);
  }
  EXPECT_EQ(std::ssize(model.specs),
            std::count_if(want.begin(), want.end(), [](const auto& entry) { return entry.first.starts_with("grad:"); }));
}

/// Expects `want`'s losses and parameters of five AdamW steps. `feed` sets the inputs of a step; parameters whose names end with
/// `key_bias` have a gradient of nearly 0: AdamW divides rounding by rounding there, and moves them by up to lr in either direction.
inline void expect_golden_steps(TrainingPass& model, const GoldenFile& want, const std::function<void(int)>& feed,
                                const std::string& key_bias) {
  AdamW adamw;
  adamw.lr = 1e-3;
  adamw.betas = {0.9, 0.99};
  adamw.weight_decay = 0.05;
  UpdateOptions options;
  options.groups = resolve_groups(adamw);
  const UpdateTable updates = add_updates(model.graph, differentiate(model.graph, model.loss, model.parameters), options);
  order_updates(model.graph);
  for (const StateSpec& state : updates.states)
    model.feeds[state.name] = {state.type.shape, std::vector<double>(static_cast<size_t>(state.type.elements()))};
  model.feeds["lr." + options.groups.groups[0].name] = {{}, {adamw.lr}};
  for (int step = 0; step < 5; ++step) {
    feed(step);
    model.feeds["step"] = {{}, {static_cast<double>(step + 1)}};
    auto values = interpret(model.graph, model.feeds);
    expect_golden("loss", want.at("loss" + std::to_string(step)), values.at(model.loss).v, 1e-7);
    for (const Node& node : model.graph.nodes()) {
      for (const InPlace& update : node.op->updates) {
        const ValueId input = node.input(static_cast<size_t>(update.input));
        if (input != kNoValue) model.feeds[model.graph.value(input).name] = values.at(node.outputs[static_cast<size_t>(update.output)]);
      }
    }
  }
  for (const ParameterSpec& spec : model.specs)
    expect_golden(spec.name, want.at("after:" + spec.name), model.feeds.at(spec.name).v, 1e-6, spec.name.ends_with(key_bias) ? 5e-3 : 0);
}

}  // namespace galley
