// Laws: the model gpt has minGPT's parameters, and PyTorch's logits, loss and gradients (tests/golden/nn/gpt.txt, float64, made by
// make_gpt.py beside it), also in f32 by every algorithm of attention; a token depends on no later one.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/pipelines.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/set_option.h"
#include "tests/support/graphs.h"

namespace galley {
namespace {

struct GoldenCase {
  std::string name;
  int64_t layers = 0, heads = 0, width = 0, vocabulary = 0, block = 0;
  bool bias = false, tied = false;
  std::map<std::string, RefArray> arrays;
};

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/nn/gpt.txt");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    if (name == "#") continue;
    if (name == "case") {
      GoldenCase& c = cases.emplace_back();
      words >> c.name >> c.layers >> c.heads >> c.width >> c.vocabulary >> c.block >> c.bias >> c.tied;
      continue;
    }
    RefArray& array = cases.back().arrays[name];
    while (words >> word && word != "|") array.shape.push_back(std::stoll(word));
    while (words >> word) array.v.push_back(std::stod(word));
  }
  return cases;
}

Component model_of(const GoldenCase& c) {
  Component model = default_model("gpt");
  for (const auto& [key, value] : std::map<std::string, double>{{"n_layer", static_cast<double>(c.layers)},
                                                                {"n_head", static_cast<double>(c.heads)},
                                                                {"n_embd", static_cast<double>(c.width)},
                                                                {"block_size", static_cast<double>(c.block)},
                                                                {"bias", c.bias},
                                                                {"tie_weights", c.tied},
                                                                {"dropout", 0}}) {
    Setter setter(key, {value});
    model.params->options(setter);
    EXPECT_TRUE(setter.found) << key;
  }
  return with_vocabulary(std::move(model), c.vocabulary);
}

/// Both sides compute in double; sums differ in their order.
void expect_same(const std::string& what, const RefArray& got, const RefArray& expected) {
  ASSERT_EQ(got.shape, expected.shape) << what;
  for (int64_t i = 0; i < expected.shape.elements(); ++i) {
    if (!(std::abs(got[i] - expected[i]) <= 1e-11 * std::max(1.0, std::abs(expected[i]))))
      ADD_FAILURE() << what << " element " << i << " is " << got[i] << ", PyTorch's " << expected[i];
  }
}

TEST(Gpt, LogitsLossAndGradientsAreThoseOfPyTorch) {
  const std::vector<GoldenCase> cases = golden_cases();
  ASSERT_EQ(cases.size(), 2u);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.name);
    const Component model = model_of(c);
    EXPECT_EQ(vocabulary_of(model), c.vocabulary);
    Graph graph;
    Builder b(graph, {.dtype = DType::kF64});
    const Shape shape = c.arrays.at("tokens").shape;
    const Value logits = build_model(b, model, b.input("tokens", {.dtype = DType::kI64, .shape = shape})).front().second;
    const Component loss = over_last_dimension(make_loss("cross_entropy"));
    const Value mean = build_loss(b, loss, logits, b.input("targets", loss_target(loss, logits.type())));
    std::map<std::string, RefArray> feeds{{"tokens", c.arrays.at("tokens")}, {"targets", c.arrays.at("targets")}};
    std::vector<ValueId> parameters;
    for (const ParameterSpec& spec : b.parameters()) {
      ASSERT_TRUE(c.arrays.contains(spec.name)) << spec.name;
      ASSERT_EQ(spec.type.shape, c.arrays.at(spec.name).shape) << spec.name;
      feeds[spec.name] = c.arrays.at(spec.name);
      parameters.push_back(graph.find_input(spec.name));
    }
    // tokens, targets, logits, loss; each parameter with its gradient.
    ASSERT_EQ(c.arrays.size(), 4 + 2 * parameters.size());
    const std::map<ValueId, ValueId> gradients = differentiate(graph, mean.id(), parameters);
    const std::map<ValueId, RefArray> values = interpret(graph, feeds);
    expect_same("logits", values.at(logits.id()), c.arrays.at("logits"));
    expect_same("loss", values.at(mean.id()), c.arrays.at("loss"));
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = b.parameters()[i].name;
      expect_same("d_" + name, values.at(gradients.at(parameters[i])), c.arrays.at("d_" + name));
    }
  }
}

/// The logits, the loss and all gradients in f32, compiled for a device, against PyTorch's in double.
void expect_trained(const GoldenCase& c, const std::string& device, AttentionAlgorithm algorithm) {
  const Component model = model_of(c);
  Graph graph;
  Builder b(graph);
  const Shape shape = c.arrays.at("tokens").shape;
  const Value logits = build_model(b, model, b.input("tokens", {.dtype = DType::kI64, .shape = shape})).front().second;
  const Component loss = over_last_dimension(make_loss("cross_entropy"));
  graph.add_output("loss", build_loss(b, loss, logits, b.input("targets", loss_target(loss, logits.type()))));
  graph.add_output("logits", logits);
  TrainingPasses passes;
  for (const ParameterSpec& spec : b.parameters()) passes.trained.push_back(spec.name);
  passes.updates = [](Graph& g, const GradientMap& gradients) {
    for (const auto& [parameter, gradient] : gradients) g.add_output("d_" + g.value(parameter).name, gradient);
  };
  const std::shared_ptr<const Backend> backend = open_backend(device, {.attention = algorithm});
  training_passes(graph, *backend, passes);
  const auto program = compile(std::move(graph), {.backend = backend});
  ParameterStore store;
  store.declare(*program);
  for (const ParameterSpec& spec : b.parameters()) store.set(spec.name, test::to_tensor(spec.type, c.arrays.at(spec.name)));
  Execution run(program, store);
  for (const char* name : {"tokens", "targets"})
    run.feed(name, test::to_tensor({.dtype = DType::kI64, .shape = c.arrays.at(name).shape}, c.arrays.at(name)));
  run.run();
  // f32 sums of at most 100 products, in other orders, through two blocks and back.
  const auto expect_near = [&](const std::string& name) {
    const RefArray got = to_ref(run.output(name)), &expected = c.arrays.at(name);
    ASSERT_EQ(got.shape, expected.shape) << name;
    double largest = 0;
    for (const double x : expected.v) largest = std::max(largest, std::abs(x));
    for (int64_t i = 0; i < expected.shape.elements(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-5 * largest) << name << " element " << i;
  };
  expect_near("logits");
  expect_near("loss");
  for (const ParameterSpec& spec : b.parameters()) expect_near("d_" + spec.name);
}

TEST(Gpt, EveryAlgorithmOfAttentionTrainsAsPyTorch) {
  for (const GoldenCase& c : golden_cases()) {
    for (const BackendRow& row : backend_rows()) {
      if (row.name != "cpu" && row.name != "ref") continue;
      for (const AttentionAlgorithm algorithm :
           {AttentionAlgorithm::kAuto, AttentionAlgorithm::kMemoryEfficient, AttentionAlgorithm::kMath}) {
        SCOPED_TRACE(cat(c.name, " on ", row.name, " by ", kAttentionAlgorithmNames[static_cast<size_t>(algorithm)]));
        expect_trained(c, std::string(row.name), algorithm);
      }
    }
  }
}

TEST(Gpt, NoScoresAndNoMaskAreInTheGraph) {
  Graph graph;
  Builder b(graph);
  build_model(b, with_vocabulary(default_model("gpt"), 65), b.input("input", {.dtype = DType::kI64, .shape = {2, 50}}));
  int attentions = 0;
  for (const Node& node : graph.nodes()) {
    attentions += node.is("attention");
    EXPECT_FALSE(node.is("softmax") || node.is("iota") || node.is("matmul") || node.is("permute")) << node.op->name << " at " << node.path;
  }
  EXPECT_EQ(attentions, 12);
}

TEST(Gpt, InitialWeightsAreThoseOfGpt2) {
  Component model = with_vocabulary(default_model("gpt"), 65);
  Graph graph;
  Builder b(graph);
  build_model(b, model, b.input("input", {.dtype = DType::kI64, .shape = {1, 8}}));
  for (const ParameterSpec& spec : b.parameters()) {
    if (spec.type.shape.rank() < 2) continue;
    const Tensor values = initialize(spec, 5);
    double squares = 0;
    for (int64_t i = 0; i < spec.type.elements(); ++i) squares += std::pow(values.data_as<float>()[i], 2);
    const double expected = spec.name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(24.0) : 0.02;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(spec.type.elements())), expected, 0.03 * expected) << spec.name;
  }
}

TEST(Gpt, MistakesAreNamed) {
  Component model = with_vocabulary(default_model("gpt"), 10);
  const auto message = [&](const TensorType& input) -> std::string {
    Graph graph;
    Builder b(graph);
    try {
      build_model(b, model, b.input("input", input));
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message({.shape = {2, 4}}).find("must be integers [N,T]"), std::string::npos);
  EXPECT_NE(message({.dtype = DType::kI64, .shape = {1, 1025}}).find("1025 tokens, more than block_size=1024"), std::string::npos);
}

}  // namespace
}  // namespace galley
