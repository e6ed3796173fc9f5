// The order of passes: when a back end may rewrite, and the checks and logs after each pass.

#include "libcore/passes/pipelines.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/base/log.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/pass_runner.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// Records the graph at each stage.
struct WatchingTarget : FakeTarget {
  mutable std::vector<Stage> stages;
  mutable std::vector<bool> differentiated, formats;
  void rewrite(Graph& graph, Stage stage, PassReport& report) const override {
    stages.push_back(stage);
    const auto& nodes = graph.nodes();
    differentiated.push_back(std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.phase == Phase::kBackward; }));
    formats.push_back(
        std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return graph.type(node.outputs[0]).format.is_channels_last(); }));
    report.done.push_back("something");
  }
};

TrainingPasses training_of(const TinyNet& net) {
  TrainingPasses how;
  for (const ValueId id : net.parameters) how.trained.push_back(net.graph.value(id).name);
  how.updates = [](Graph& graph, const GradientMap& gradients) {
    for (const auto& [of, gradient] : gradients) graph.add_output("d" + graph.value(of).name, graph.at(gradient));
  };
  return how;
}

TEST(Pipelines, BackEndsRewriteAtThreeStages) {
  TinyNet net;
  build_tiny_net(net);
  WatchingTarget target;
  const PassReport fusion = training_passes(net.graph, target, training_of(net));
  EXPECT_EQ(target.stages, std::vector<Stage>{Stage::kForward});
  EXPECT_EQ(count(net.graph, "relu"), 0) << "the target sees what fusion left";
  EXPECT_EQ(fusion.done.back(), "something");
  const CompileReport report = compile_passes(net.graph, target, {});
  EXPECT_EQ(target.stages, (std::vector<Stage>{Stage::kForward, Stage::kBeforeLayout, Stage::kAfterLayout}));
  EXPECT_EQ(target.differentiated, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(target.formats, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(report.rewrites.done.size(), 2u);
}

TEST(Pipelines, TrainingGivesTheSameGradientsWithAndWithoutRecomputation) {
  const auto gradients = [](bool recomputes) {
    TinyNet net;
    build_tiny_net(net);
    TrainingPasses how = training_of(net);
    if (recomputes) how.recompute = [](const Graph& graph) { return recompute_full(graph); };
    training_passes(net.graph, FakeTarget(), how);
    EXPECT_EQ(std::any_of(net.graph.nodes().begin(), net.graph.nodes().end(),
                          [](const Node& node) { return node.phase == Phase::kBackward && node.is("batch_norm"); }),
              recomputes);
    return results(net.graph, feeds_for(net.graph));
  };
  expect_same(gradients(true), gradients(false));
}

// A weight stored as integers is unpacked once for the forward and once for the backward pass, and not kept between steps; in inference it
// is unpacked once for all runs.
TEST(Pipelines, TrainingUnpacksStoredWeightsInEachPass) {
  const auto build = [](Graph& graph) {
    const Value x = graph.add_input("x", {.shape = {2, 4}}, ValueRole::kInput);
    const Value down = graph.add_input("down", {.shape = {4, 4}}, ValueRole::kParameter);
    const Value w = graph.add_input("w", {.dtype = DType::kI8, .shape = {3, 4}}, ValueRole::kParameter);
    const Value scale = graph.add_input("scale", {.shape = {3}}, ValueRole::kParameter);
    const Value y = linear(linear(x, down), dequantize_weight(w, scale, {}));
    graph.add_output("loss", mean(y));
  };
  Graph training;
  build(training);
  TrainingPasses how{.trained = {"down"}};
  how.updates = [](Graph& graph, const GradientMap& gradients) {
    for (const auto& [of, gradient] : gradients) graph.add_output("d" + graph.value(of).name, graph.at(gradient));
  };
  training_passes(training, FakeTarget(), how);
  const CompileReport report = compile_passes(training, FakeTarget(), {});
  std::vector<Phase> phases;
  size_t at = 0;
  for (const Node& node : training.nodes()) {
    if (node.is("dequantize_weight")) {
      phases.push_back(node.phase);
      EXPECT_GE(at, report.prepare_nodes) << "it is kept";
    }
    ++at;
  }
  EXPECT_EQ(phases, (std::vector<Phase>{Phase::kForward, Phase::kBackward}));

  Graph inference;
  build(inference);
  inference_passes(inference);
  EXPECT_EQ(compile_passes(inference, FakeTarget(), {}).prepare_nodes, 1u);
  EXPECT_EQ(count(inference, "dequantize_weight"), 1);
}

TEST(Pipelines, InferenceIsTheSameForEveryBackEnd) {
  TinyNet net;
  build_tiny_net(net, false);
  const auto feeds = feeds_for(net.graph);
  const auto want = results(net.graph, feeds);
  std::vector<std::string> order;
  InferencePasses how;
  how.capture = [&](Graph& graph) {
    order.push_back(cat("capture of ", count(graph, "relu"), " relu, ", count(graph, "batch_norm_inference"), " norms"));
  };
  how.fake_quantize = [&](Graph&) { order.push_back("round"); };
  inference_passes(net.graph, how);
  EXPECT_EQ(order, (std::vector<std::string>{"capture of 0 relu, 0 norms", "round"}));
  expect_same(results(net.graph, feeds), want);
}

/// Makes an invalid graph: a node reads a value that is computed after it.
void break_order(Graph& graph) { std::swap(graph.nodes().front(), graph.nodes().back()); }

TEST(PassRunner, NamesThePassThatBreaksTheGraph) {
  TinyNet net;
  build_tiny_net(net);
  setenv("GALLEY_CHECK_PASSES", "1", 1);
  PassRunner passes("test", net.graph);
  EXPECT_EQ(passes.run("seven", [](Graph&) { return 7; }), 7);
  try {
    passes.run("break_order", break_order);
    ADD_FAILURE() << "the graph was not checked";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("after the pass break_order (test)"), std::string::npos) << error.what();
  }
}

TEST(PassRunner, ChecksTheGraphWhereItLogs) {
  unsetenv("GALLEY_CHECK_PASSES");
  set_log_sink([](LogLevel, const std::string&) {});
  TinyNet net;
  build_tiny_net(net);
  set_pass_log(true);
  EXPECT_THROW(PassRunner("test", net.graph).run("break_order", break_order), InternalError);
  set_pass_log(false);
  setenv("GALLEY_CHECK_PASSES", "1", 1);
}

TEST(PassRunner, LogsWhatEachPassDid) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, const std::string& line) { lines.push_back(line); });
  TinyNet net;
  build_tiny_net(net, false);
  inference_passes(net.graph);
  EXPECT_TRUE(lines.empty()) << "only on request";
  TinyNet again;
  build_tiny_net(again, false);
  set_pass_log(true);
  inference_passes(again.graph);
  set_pass_log(false);
  set_log_sink([](LogLevel, const std::string&) {});
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2].find("pass inference: fuse: "), 0u) << lines[2];
  EXPECT_NE(lines[2].find("5 replaced"), std::string::npos) << lines[2];
  EXPECT_NE(lines[2].find("conv2d + relu"), std::string::npos) << lines[2];
}

TEST(PassRunner, LogsWhatIsExpandedAndWhy) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, const std::string& line) { lines.push_back(line); });
  TinyNet net;
  build_tiny_net(net);
  FakeTarget target;
  target.refuse = [](const Graph&, const Node& node, Stage) { return node.is("batch_norm") ? "cudnn: only f16" : ""; };
  set_pass_log(true);
  const CompileReport report = compile_passes(net.graph, target, {});
  set_pass_log(false);
  set_log_sink([](LogLevel, const std::string&) {});
  EXPECT_EQ(report.expansion.done.size(), 4u);
  EXPECT_EQ(count(net.graph, "batch_norm"), 0);
  const auto line =
      std::find_if(lines.begin(), lines.end(), [](const std::string& each) { return each.starts_with("pass compile: expand: "); });
  ASSERT_NE(line, lines.end());
  EXPECT_NE(line->find("4 replaced\n  bn0: batch_norm becomes 16 nodes (cudnn: only f16)\n  bn1: "), std::string::npos) << *line;
}

}  // namespace
}  // namespace galley::test
