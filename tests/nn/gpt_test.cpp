// Laws: the model gpt has minGPT's parameters, and PyTorch's logits, loss and gradients (tests/golden/nn/gpt.txt, float64, made by
// make_gpt.py beside it); a token depends on no later one.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/passes/differentiate.h"
#include "tests/nn/set_option.h"

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
