// The update phase against PyTorch's optimizers in float64 (tests/golden/optim/make.py), and against the laws of clipping,
// accumulation and averaging.

#include "libcore/optim/updates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/ops/binary.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/order_updates.h"
#include "tests/optim/golden.h"
#include "tests/optim/run.h"

namespace galley {
namespace {

// The same sums in another order, in double: a few ulp of numbers near 1 after five steps; RMSprop divides by small roots.
constexpr double kTolerance = 1e-12;

/// A graph whose gradients are fed: parameters `names` of shape [2,3], gradients "<name>.gradient".
struct Trainer {
  Graph graph;
  Gradients gradients;
  explicit Trainer(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const Value parameter = graph.add_input(name, type_of(DType::kF64, {2, 3}), ValueRole::kParameter);
      const Value gradient = graph.add_input(name + ".gradient", type_of(DType::kF64, {2, 3}), ValueRole::kInput);
      gradients[parameter.id()] = gradient.id();
    }
  }
};

template <class Options>
std::shared_ptr<Optimizer> make(void (*set)(Options&)) {
  auto options = std::make_shared<Options>();
  options->lr = 0.1;
  set(*options);
  return options;
}

std::map<std::string, std::shared_ptr<Optimizer>> golden_optimizers() {
  return {
      {"sgd", make<Sgd>([](Sgd&) {})},
      {"sgd_decay", make<Sgd>([](Sgd& o) { o.weight_decay = 0.05; })},
      {"sgd_momentum", make<Sgd>([](Sgd& o) { o.momentum = 0.9, o.weight_decay = 0.05; })},
      {"sgd_dampening", make<Sgd>([](Sgd& o) { o.momentum = 0.9, o.dampening = 0.3; })},
      {"sgd_nesterov", make<Sgd>([](Sgd& o) { o.momentum = 0.9, o.nesterov = true, o.weight_decay = 0.05; })},
      {"adam", make<Adam>([](Adam&) {})},
      {"adam_options", make<Adam>([](Adam& o) { o.betas = {0.7, 0.95}, o.eps = 0.1, o.weight_decay = 0.05; })},
      {"adamw", make<AdamW>([](AdamW&) {})},
      {"adamw_options", make<AdamW>([](AdamW& o) { o.betas = {0.7, 0.95}, o.eps = 0.1, o.weight_decay = 0.2; })},
      {"rmsprop", make<RmsProp>([](RmsProp&) {})},
      {"rmsprop_momentum", make<RmsProp>([](RmsProp& o) { o.alpha = 0.9, o.eps = 0.0316, o.momentum = 0.9, o.weight_decay = 0.05; })},
      {"rmsprop_centered", make<RmsProp>([](RmsProp& o) { o.alpha = 0.9, o.centered = true, o.eps = 0.01; })},
      {"rmsprop_both", make<RmsProp>([](RmsProp& o) { o.alpha = 0.9, o.centered = true, o.eps = 0.01, o.momentum = 0.8; })},
  };
}

TEST(Updates, FiveStepsAsPyTorch) {
  const auto golden = read_golden("updates.txt");
  const auto optimizers = golden_optimizers();
  ASSERT_EQ(golden.size(), optimizers.size());
  for (const auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    Trainer trainer({"w"});
    UpdateOptions options;
    options.groups = resolve_groups(*optimizer);
    const UpdateTable table = add_updates(trainer.graph, trainer.gradients, options);
    EXPECT_EQ(table.states.size(), optimizer->states().size());
    GraphRunner runner(trainer.graph);
    runner["w"] = start_array();
    runner.set("lr.0", 0.1);
    runner.start(table);
    int step = 0;
    for (const auto& [key, values] : golden.at(name)) {
      if (key != "param") {
        expect_near(runner["w." + key], values, kTolerance, key);
        continue;
      }
      runner.set("step", ++step);
      runner["w.gradient"] = gradient_array(step);
      runner.run();
      expect_near(runner["w"], values, kTolerance, cat("step ", step));
    }
    EXPECT_EQ(step, 5);
  }
}

// TensorFlow's eps: one step by hand, p - lr * g / sqrt((1-alpha) g^2 + eps).
TEST(Updates, RmsPropWithEpsInsideTheRoot) {
  const auto optimizer = make<RmsProp>([](RmsProp& o) { o.alpha = 0.9, o.eps = 0.5, o.tf_eps = true; });
  Trainer trainer({"w"});
  UpdateOptions options;
  options.groups = resolve_groups(*optimizer);
  const UpdateTable table = add_updates(trainer.graph, trainer.gradients, options);
  GraphRunner runner(trainer.graph);
  runner["w"] = start_array();
  runner["w.gradient"] = gradient_array(1);
  runner.set("lr.0", 0.1);
  runner.set("step", 1);
  runner.start(table);
  runner.run();
  std::vector<double> want;
  for (int i = 0; i < 6; ++i) {
    const double g = gradient_array(1)[i];
    want.push_back(start_array()[i] - 0.1 * g / std::sqrt(0.1 * g * g + 0.5));
  }
  expect_near(runner["w"], want, kTolerance, "w");
}

/// Runs one step of plain SGD with lr 1 from zero parameters, so that parameters become the negated gradient after clipping.
GraphRunner run_plain(const Trainer& trainer, const UpdateTable& table) {
  GraphRunner runner(trainer.graph);
  for (ValueId id : trainer.graph.inputs()) {
    const ValueInfo& info = trainer.graph.value(id);
    if (info.role == ValueRole::kParameter) runner[info.name] = RefArray{{2, 3}, std::vector<double>(6)};
  }
  runner["a.gradient"] = gradient_array(1);
  runner["b.gradient"] = gradient_array(2);
  runner.set("lr.0", 1);
  runner.set("step", 1);
  runner.start(table);
  return runner;
}

std::vector<double> negative(std::vector<double> values) {
  for (double& value : values) value = -value;
  return values;
}

TEST(Updates, ClipByNormAsPyTorch) {
  for (const auto& [name, rows] : read_golden("clip.txt")) {
    SCOPED_TRACE(name);
    Trainer trainer({"a", "b"});
    UpdateOptions options;
    options.groups = resolve_groups(Sgd());
    options.clip = ClipMode::kNorm;
    options.clip_max = std::stod(name.substr(5));
    const UpdateTable table = add_updates(trainer.graph, trainer.gradients, options);
    GraphRunner runner = run_plain(trainer, table);
    runner.run();
    expect_near(runner.output("grad_norm"), rows[0].second, kTolerance, "norm");
    expect_near(runner["a"], negative(rows[1].second), kTolerance, "a");
    expect_near(runner["b"], negative(rows[2].second), kTolerance, "b");
  }
}

TEST(Updates, ClipByValueAndNormBeforeClipping) {
  Trainer trainer({"a", "b"});
  UpdateOptions options;
  options.groups = resolve_groups(Sgd());
  options.clip = ClipMode::kValue;
  options.clip_max = 0.3;
  const UpdateTable table = add_updates(trainer.graph, trainer.gradients, options);
  GraphRunner runner = run_plain(trainer, table);
  runner.run();
  double squares = 0;
  std::vector<double> want;
  for (int i = 0; i < 6; ++i) {
    squares += std::pow(gradient_array(1)[i], 2) + std::pow(gradient_array(2)[i], 2);
    want.push_back(-std::clamp(gradient_array(1)[i], -0.3, 0.3));
  }
  expect_near(runner["a"], want, kTolerance, "a");
  expect_near(runner.output("grad_norm"), {std::sqrt(squares)}, kTolerance, "norm");
}

// Three micro-batches, accumulated, equal one step with the mean of the gradients, clipped alike; then accumulators are zero.
TEST(Updates, AccumulationIsTheMeanGradient) {
  for (ClipMode clip : {ClipMode::kNone, ClipMode::kNorm, ClipMode::kValue}) {
    SCOPED_TRACE(static_cast<int>(clip));
    UpdateOptions options;
    const auto sgd = make<Sgd>([](Sgd& o) { o.momentum = 0.9, o.weight_decay = 0.05; });
    options.groups = resolve_groups(*sgd);
    options.clip = clip;
    options.clip_max = 0.3;
    Trainer once({"w"}), last({"w"}), earlier({"w"});
    const UpdateTable once_table = add_updates(once.graph, once.gradients, options);
    options.accumulation = 3;
    const UpdateTable last_table = add_updates(last.graph, last.gradients, options);
    EXPECT_EQ(add_accumulation(earlier.graph, earlier.gradients, options).states.size(), 1u);

    GraphRunner whole(once.graph), final_part(last.graph), part(earlier.graph);
    whole["w"] = final_part["w"] = part["w"] = start_array();
    whole.start(once_table);
    final_part.start(last_table);
    for (GraphRunner* runner : {&whole, &final_part}) {
      runner->set("lr.0", 0.1);
      runner->set("step", 1);
    }
    RefArray mean{{2, 3}, std::vector<double>(6)};
    part["w.grad"] = final_part["w.grad"];
    for (int micro = 1; micro <= 3; ++micro) {
      for (int i = 0; i < 6; ++i) mean[i] += gradient_array(micro)[i] / 3;
      if (micro == 3) break;
      part["w.gradient"] = gradient_array(micro);
      part.run();
    }
    final_part["w.grad"] = part["w.grad"];
    final_part["w.gradient"] = gradient_array(3);
    final_part.run();
    whole["w.gradient"] = mean;
    whole.run();
    expect_near(final_part["w"], whole["w"].v, kTolerance, "w");
    expect_near(final_part["w.momentum_buffer"], whole["w.momentum_buffer"].v, kTolerance, "buffer");
    expect_near(final_part.output("grad_norm"), whole.output("grad_norm").v, kTolerance, "norm");
    expect_near(final_part["w.grad"], std::vector<double>(6), 0, "accumulator");
  }
}

TEST(Updates, MovingAverageOfParametersAndBuffers) {
  for (bool buffers : {true, false}) {
    SCOPED_TRACE(buffers);
    Trainer trainer({"w"});
    trainer.graph.add_input("mean", type_of(DType::kF64, {1}), ValueRole::kBuffer);
    trainer.graph.add_input("count", type_of(DType::kI64, {}), ValueRole::kBuffer);
    UpdateOptions options;
    options.groups = resolve_groups(Sgd());
    options.ema = true;
    options.ema_buffers = buffers;
    const UpdateTable table = add_updates(trainer.graph, trainer.gradients, options);
    GraphRunner runner(trainer.graph);
    runner["w"] = start_array();
    runner["mean"] = RefArray{{1}, {4}};
    runner.set("count", 7);
    runner.set("lr.0", 0.1);
    runner.set("step", 1);
    runner.set("ema_decay", 0.75);
    runner.start(table);
    expect_near(runner["w.ema"], start_array().v, 0, "starts as a copy");
    runner["mean.ema"] = RefArray{{1}, {8}};
    runner["w.gradient"] = gradient_array(1);
    runner.run();
    std::vector<double> want;
    // The average uses the parameter after its update.
    for (int i = 0; i < 6; ++i) want.push_back(0.75 * start_array()[i] + 0.25 * (start_array()[i] - 0.1 * gradient_array(1)[i]));
    expect_near(runner["w.ema"], want, kTolerance, "w.ema");
    expect_near(runner["mean.ema"], {buffers ? 7.0 : 4.0}, kTolerance, "mean.ema");
    expect_near(runner["count.ema"], {7}, 0, "count.ema");
  }
}

TEST(Updates, GroupsShareInputsAndKeepOwnSettings) {
  Sgd sgd;
  sgd.lr = 0.1;
  sgd.weight_decay = 0.5;
  ParameterOverride fast, no_decay;
  fast.lr = Multiple(10, true);
  no_decay.weight_decay = Multiple(0, false);
  const ParameterGroups groups = resolve_groups(sgd, {{"a", fast}, {"b", no_decay}, {"c", fast}, {"d", ParameterOverride()}});
  ASSERT_EQ(groups.groups.size(), 3u);
  EXPECT_EQ(groups.of("a").name, groups.of("c").name);
  EXPECT_EQ(groups.of("d").name, "0");
  EXPECT_DOUBLE_EQ(groups.of("a").optimizer->lr, 1.0);
  EXPECT_DOUBLE_EQ(groups.of("a").optimizer->weight_decay, 0.5);
  EXPECT_DOUBLE_EQ(groups.of("b").optimizer->weight_decay, 0.0);
  EXPECT_DOUBLE_EQ(groups.of("b").optimizer->lr, 0.1);

  Trainer trainer({"a", "b", "c"});
  UpdateOptions options;
  options.groups = groups;
  add_updates(trainer.graph, trainer.gradients, options);
  EXPECT_NE(trainer.graph.find_input("lr." + groups.of("a").name), kNoValue);
  EXPECT_NE(trainer.graph.find_input("lr." + groups.of("b").name), kNoValue);
  EXPECT_EQ(trainer.graph.find_input("lr.0"), kNoValue) << "no parameter is left in group 0";
  Trainer other({"a", "b"});  // the groups name c, which it does not have
  EXPECT_THROW(add_updates(other.graph, other.gradients, options), Error);
}

TEST(Updates, MomentumOfAnOptimizerWithoutOneIsAnError) {
  ParameterOverride own;
  own.momentum = Multiple(0.5, false);
  EXPECT_THROW(resolve_groups(Adam(), {{"w", own}}), Error);
  Sgd sgd;
  EXPECT_EQ(resolve_groups(sgd, {{"w", own}}).of("w").optimizer->states().size(), 1u);
}

// Law of order_updates after add_updates: forward first; the update of a parameter after its last reader; other nodes keep their order.
TEST(Updates, OrderedAsEarlyAsTheLawsAllow) {
  Graph graph;
  const Value a = graph.add_input("a", type_of(DType::kF32, {2}), ValueRole::kParameter);
  const Value b = graph.add_input("b", type_of(DType::kF32, {2}), ValueRole::kParameter);
  const Value x = graph.add_input("x", type_of(DType::kF32, {2}), ValueRole::kInput);
  const Value y = mul(mul(x, a), b);
  graph.set_phase(Phase::kBackward);
  const Value db = relu(y);  // final before b is read for the last time
  const Value dx = mul(y, b);
  const Value da = mul(dx, x);
  graph.add_output("y", y);
  UpdateOptions options;
  options.groups = resolve_groups(Sgd());
  add_updates(graph, {{a.id(), da.id()}, {b.id(), db.id()}}, options);
  graph.remove_dead_nodes();
  order_updates(graph);
  std::vector<std::string> order;
  for (const Node& node : graph.nodes()) {
    order.push_back(node.is("sgd_update") ? "update " + graph.value(node.inputs[0]).name : std::string(node.op->name));
  }
  const auto at = [&](const std::string& what, int occurrence = 0) {
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i] == what && occurrence-- == 0) return static_cast<int>(i);
    }
    return -1;
  };
  // mul mul | relu, mul (last reader of b), update b, mul, update a
  EXPECT_GT(at("update b"), at("mul", 2));
  EXPECT_LT(at("update b"), at("mul", 3));
  EXPECT_GT(at("update a"), at("mul", 3));
  EXPECT_LT(at("relu"), at("mul", 2));
}

// Law of groups: an update waits for others until the group writes so many bytes; the last group is smaller. Updates keep their order.
TEST(Updates, WaitForOthersOfTheirGroup) {
  Graph graph;
  const Value x = graph.add_input("x", type_of(DType::kF32, {2}), ValueRole::kInput);
  std::vector<Value> parameters, gradients;
  Value y = x;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(graph.add_input(std::string(1, static_cast<char>('a' + i)), type_of(DType::kF32, {2}), ValueRole::kParameter));
    y = mul(y, parameters.back());
  }
  graph.add_output("y", y);
  graph.set_phase(Phase::kBackward);
  Value dy = y;
  std::map<ValueId, ValueId> pairs;
  for (int i = 4; i >= 0; --i) {
    pairs[parameters[static_cast<size_t>(i)].id()] = mul(dy, x).id();
    dy = mul(dy, parameters[static_cast<size_t>(i)]);
  }
  UpdateOptions options;
  options.groups = resolve_groups(Sgd());
  add_updates(graph, pairs, options);
  order_updates_in_groups(graph, 16);  // of two parameters
  std::string order;
  for (const Node& node : graph.nodes())
    order += node.is("sgd_update") ? graph.value(node.inputs[0]).name : node.phase == Phase::kBackward ? "." : "";
  EXPECT_EQ(order, "....ed....cb..a");
}

}  // namespace
}  // namespace galley
