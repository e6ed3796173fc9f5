// Laws: a layer's parameters are named by its path; training and evaluation differ where PyTorch's do; random nodes have streams of
// their own; wrong use is an error that names the layer.
#include "libcore/nn/builder.h"

#include <gtest/gtest.h>

#include <set>

#include "libcore/ops/random.h"

namespace galley {
namespace {

std::vector<std::string> names_of(const Builder& b) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : b.parameters()) names.push_back(spec.name);
  return names;
}

int count_ops(const Graph& graph, std::string_view op) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += node.is(op);
  return count;
}

template <class Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    return error.message();
  }
  return "no error";
}

TEST(Builder, NamesFollowScopes) {
  Graph graph;
  Builder b(graph);
  Value x = b.input("input", {.shape = {2, 3, 8, 8}});
  {
    const auto layer = b.scope("layer1");
    const auto block = b.scope("0");
    x = b.conv2d("conv2", x, {.out_channels = 6, .kernel_size = {3, 1}, .stride = 2, .padding = {1, 0}, .groups = 3});
  }
  EXPECT_EQ(x.shape(), Shape({2, 6, 4, 4}));
  EXPECT_EQ(names_of(b), (std::vector<std::string>{"layer1.0.conv2.weight", "layer1.0.conv2.bias"}));
  EXPECT_EQ(b.parameters()[0].type.shape, Shape({6, 1, 3, 1}));
  EXPECT_EQ(b.parameters()[0].module, "layer1.0.conv2");
  EXPECT_EQ(b.parameters()[0].module_type, "conv2d");
  EXPECT_EQ(graph.nodes().back().path, "layer1.0.conv2");
  EXPECT_EQ(graph.path(), "");
}

TEST(Builder, BatchNormUpdatesItsStatisticsInTrainingAlone) {
  for (const bool training : {true, false}) {
    Graph graph;
    Builder b(graph, {.mode = training ? Mode::kTraining : Mode::kEvaluation});
    const Value x = b.input("input", {.shape = {2, 4, 5, 5}});
    EXPECT_EQ(b.batch_norm("bn", x).shape(), x.shape());
    EXPECT_EQ(names_of(b),
              (std::vector<std::string>{"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}));
    EXPECT_EQ(count_ops(graph, "batch_norm"), training ? 1 : 0);
    EXPECT_EQ(count_ops(graph, "batch_norm_update"), training ? 1 : 0);
    EXPECT_EQ(count_ops(graph, "batch_norm_inference"), training ? 0 : 1);
    for (const Node& node : graph.nodes()) EXPECT_EQ(node.phase, node.is("batch_norm_update") ? Phase::kUpdate : Phase::kForward);
    EXPECT_EQ(graph.phase(), Phase::kForward);
    EXPECT_EQ(graph.value(graph.find_input("bn.running_var")).role, ValueRole::kBuffer);
    EXPECT_EQ(graph.type(graph.find_input("bn.num_batches_tracked")).dtype, DType::kI64);
  }
}

TEST(Builder, FrozenBatchNormRunsInInferenceForm) {
  Graph graph;
  Builder b(graph, {.frozen_batch_norm = [](std::string_view path) { return path == "backbone.bn"; }});
  Value x = b.input("input", {.shape = {2, 4, 5, 5}});
  {
    const auto backbone = b.scope("backbone");
    x = b.batch_norm("bn", x);
  }
  x = b.batch_norm("bn", x);
  EXPECT_EQ(count_ops(graph, "batch_norm_inference"), 1);
  EXPECT_EQ(count_ops(graph, "batch_norm_update"), 1);
}

TEST(Builder, DropoutDrawsFromAStreamOfItsPlace) {
  const auto streams = [](bool another) {
    Graph graph;
    Builder b(graph);
    Value x = b.input("input", {.shape = {2, 4}});
    if (another) x = b.dropout("first", x, 0.5);
    x = b.dropout("drop", x, 0.5);
    x = b.dropout("drop", x, 0.5);
    const auto scope = b.scope("layer");
    x = b.stochastic_depth("drop", x, 0.5);
    std::vector<int64_t> found;
    for (const Node& node : graph.nodes())
      found.push_back(node.is("dropout") ? node.attrs<DropoutAttrs>().stream : node.attrs<StochasticDepthAttrs>().stream);
    EXPECT_NE(graph.find_input("rng"), kNoValue);
    return found;
  };
  const std::vector<int64_t> alone = streams(false), more = streams(true);
  EXPECT_EQ(std::set<int64_t>(more.begin(), more.end()).size(), 4u);
  EXPECT_EQ(alone, std::vector<int64_t>(more.begin() + 1, more.end())) << "another layer changed the streams";
}

TEST(Builder, DropoutIsNothingInEvaluation) {
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  const Value x = b.input("input", {.shape = {2, 4}});
  EXPECT_EQ(b.dropout("drop", x, 0.5), x);
  EXPECT_EQ(b.stochastic_depth("drop", x, 0.5), x);
  EXPECT_EQ(graph.find_input("rng"), kNoValue) << "the random key is declared on demand";
}

TEST(Builder, MistakesNameTheLayer) {
  Graph graph;
  Builder b(graph);
  const Value x = b.input("input", {.shape = {1, 6, 1, 1}});
  const auto block = b.scope("layer1.0");
  std::string text = message_of([&] { b.conv2d("conv1", x, {.out_channels = 8, .groups = 4}); });
  for (const char* part : {"groups=4", "[1,6,1,1]", "layer1.0.conv1"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  text = message_of([&] { b.batch_norm("bn1", x); });
  for (const char* part : {"one value per channel", "layer1.0.bn1"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  text = message_of([&] { b.conv2d("conv2", x, {.out_channels = 8, .kernel_size = 3}); });
  EXPECT_NE(text.find("layer1.0.conv2"), std::string::npos) << text;
  b.linear("fc", x, {.out_features = 2});
  text = message_of([&] { b.linear("fc", x, {.out_features = 2}); });
  EXPECT_NE(text.find("layer1.0.fc.weight"), std::string::npos) << text;
}

}  // namespace
}  // namespace galley
