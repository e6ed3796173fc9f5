// Law: with equal weights, every family has torchvision's results: logits in evaluation and training, loss, gradients of the input and of
// every parameter, running statistics. The numbers are from tests/golden/models/make_golden.py, in double; the reference interpreter also
// computes in double.
#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/optim/updates.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/order_updates.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/training_model.h"

namespace galley {
namespace {

class GoldenFamily : public testing::TestWithParam<GoldenModel> {};

/// For each input that a node updates in place, the updated value.
std::map<std::string, ValueId> updated_values(const Graph& graph) {
  std::map<std::string, ValueId> after;
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId input = node.input(static_cast<size_t>(update.input));
      if (input != kNoValue) after[graph.value(input).name] = node.outputs[static_cast<size_t>(update.output)];
    }
  }
  return after;
}

TEST_P(GoldenFamily, Evaluation) {
  const GoldenModel& golden = GetParam();
  const GoldenFile want = read_golden(golden.file);
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  const Value x = b.input("input", {.shape = golden.input});
  const Value logits = build_model(b, with_ten_classes(golden), x).front().second;
  graph.add_output("logits", logits);
  std::map<std::string, RefArray> feeds = golden_feeds(b.parameters());
  feeds["input"] = {golden.input, golden_input("input", golden.input)};
  const auto values = interpret(graph, feeds);
  // Both sides round at 1e-16; the sums of 50 layers, and 12 printed digits, stay below 1e-10 of the largest logits.
  expect_golden("logits", want.at("eval"), values.at(logits.id()).v, 1e-10);
}

TEST_P(GoldenFamily, Training) {
  const GoldenModel& golden = GetParam();
  const GoldenFile want = read_golden(golden.file);
  TrainingModel model(golden, 0.1);
  std::map<std::string, RefArray> feeds = golden_feeds(model.specs);
  feeds["input"] = {golden.input, golden_input("input", golden.input)};
  feeds["target"] = golden_labels(target_shape(golden));
  std::vector<ValueId> wanted{model.graph.find_input("input")};
  for (const ParameterSpec& spec : model.specs) {
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  }
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, model.loss, wanted);
  const auto values = interpret(model.graph, feeds);

  // Batch statistics over few values divide by small deviations, which amplifies the rounding of 1e-16; 1e-8 leaves room for that
  // and is far below the error of a wrong rule. Vanishing gradients (a bias before a batch norm) are noise, so their error is relative to
  // the largest gradient.
  double largest = 0;
  for (const auto& [key, entry] : want) {
    if (key.starts_with("grad:")) largest = std::max(largest, entry.rms());
  }
  expect_golden("logits", want.at("train"), values.at(model.logits).v, 1e-8);
  expect_golden("loss", want.at("loss"), values.at(model.loss).v, 1e-8);
  const std::map<std::string, ValueId> after = updated_values(model.graph);
  size_t compared = 0;
  for (const auto& [key, entry] : want) {
    const std::string name = key.substr(key.find(':') + 1);
    if (key.starts_with("grad:")) {
      const ValueId id = model.graph.find_input(name);
      ASSERT_TRUE(gradients.contains(id)) << name;
      expect_golden(key, entry, values.at(gradients.at(id)).v, 1e-8, 1e-11 * largest);
      ++compared;
    } else if (key.starts_with("buffer:")) {
      ASSERT_TRUE(after.contains(name)) << name;
      expect_golden(key, entry, values.at(after.at(name)).v, 1e-8);
      ++compared;
    }
  }
  const auto tables = std::count_if(model.specs.begin(), model.specs.end(),
                                    [](const ParameterSpec& spec) { return spec.init.kind == Init::Kind::kValues; });
  EXPECT_EQ(compared,
            model.specs.size() - static_cast<size_t>(tables) + 1);  // each parameter, each buffer that changes, and the input's gradient
}

/// Five steps on different batches; parameters, buffers and optimizer states are carried from step to step.
void expect_five_steps(const GoldenModel& golden, const Optimizer& optimizer) {
  const GoldenFile want = read_golden(golden.file);
  TrainingModel model(golden, 0);
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs) {
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  }
  const Gradients gradients = differentiate(model.graph, model.loss, wanted);
  EXPECT_EQ(gradients.size(), wanted.size());
  UpdateOptions options;
  options.groups = resolve_groups(optimizer);
  const UpdateTable updates = add_updates(model.graph, gradients, options);
  order_updates(model.graph);

  std::map<std::string, RefArray> feeds = golden_feeds(model.specs);
  for (const StateSpec& state : updates.states)
    feeds[state.name] = {state.type.shape, std::vector<double>(static_cast<size_t>(state.type.elements()))};
  feeds["lr." + options.groups.groups[0].name] = {{}, {optimizer.lr}};
  feeds["target"] = golden_labels(target_shape(golden));
  const std::map<std::string, ValueId> after = updated_values(model.graph);
  EXPECT_EQ(after.size(), model.specs.size() + updates.states.size());
  for (int step = 0; step < 5; ++step) {
    feeds["input"] = {golden.input, golden_input("input" + std::to_string(step), golden.input)};
    feeds["step"] = {{}, {static_cast<double>(step + 1)}};
    auto values = interpret(model.graph, feeds);
    // Batch norms over few values amplify rounding in each step; a wrong update gives an error in the first digits.
    expect_golden("loss" + std::to_string(step), want.at("loss" + std::to_string(step)), values.at(model.loss).v, 1e-7);
    for (const auto& [name, id] : after) feeds[name] = std::move(values.at(id));
  }
  for (const ParameterSpec& spec : model.specs) expect_golden(spec.name, want.at("after:" + spec.name), feeds.at(spec.name).v, 1e-6);
}

TEST(GoldenSteps, Sgd) {
  Sgd sgd;
  sgd.lr = 0.05;
  sgd.momentum = 0.9;
  sgd.nesterov = true;
  sgd.weight_decay = 1e-4;
  expect_five_steps({"sgd_cifar_resnet20", "cifar_resnet20", {4, 3, 16, 16}, {}}, sgd);
}

const std::vector<std::pair<std::string, std::vector<double>>> kSmall{{"width_mult", {0.35}}, {"dropout", {0}}};

TEST(GoldenSteps, AdamW) {
  AdamW adamw;
  adamw.lr = 1e-3;
  adamw.betas = {0.9, 0.99};
  adamw.weight_decay = 0.05;
  expect_five_steps({"adamw_mobilenet_v3_small", "mobilenet_v3_small", {4, 3, 32, 32}, kSmall}, adamw);
}

TEST(GoldenSteps, RmsProp) {
  RmsProp rmsprop;
  rmsprop.lr = 1e-3;
  rmsprop.alpha = 0.9;
  rmsprop.eps = 0.0316;
  rmsprop.momentum = 0.9;
  rmsprop.weight_decay = 1e-5;
  expect_five_steps({"rmsprop_mobilenet_v3_small", "mobilenet_v3_small", {4, 3, 32, 32}, kSmall}, rmsprop);
}

INSTANTIATE_TEST_SUITE_P(Zoo, GoldenFamily, testing::ValuesIn(golden_models()), [](const auto& info) { return info.param.file; });

}  // namespace
}  // namespace galley
