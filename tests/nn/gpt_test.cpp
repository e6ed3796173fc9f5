// Laws: the model gpt has minGPT's parameters, and PyTorch's logits, loss and gradients (tests/golden/nn/gpt.txt, float64, made by
// make_gpt.py beside it); its logits at a token depend on that token and the earlier ones only.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/passes/differentiate.h"
#include "tests/nn/golden_arrays.h"
#include "tests/nn/set_option.h"

namespace galley {
namespace {

struct GoldenCase : GoldenArrays {
  explicit GoldenCase(GoldenArrays golden) : GoldenArrays(std::move(golden)) {
    std::istringstream words(options);
    words >> layers >> heads >> width >> vocabulary >> block >> bias >> tied;
  }
  int64_t layers = 0, heads = 0, width = 0, vocabulary = 0, block = 0;
  bool bias = false, tied = false;
};

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

TEST(Gpt, LogitsLossAndGradientsAreThoseOfPyTorch) {
  const std::vector<GoldenArrays> cases = read_golden_arrays("gpt");
  ASSERT_EQ(cases.size(), 2u);
  for (const GoldenArrays& golden : cases) {
    const GoldenCase c(golden);
    SCOPED_TRACE(c.name);
    const Component model = model_of(c);
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

TEST(Gpt, LogitsDependOnNoLaterToken) {
  for (const GoldenArrays& golden : read_golden_arrays("gpt")) {
    const GoldenCase c(golden);
    SCOPED_TRACE(c.name);
    Graph graph;
    Builder b(graph, {.mode = Mode::kEvaluation, .dtype = DType::kF64});
    const Shape shape = c.arrays.at("tokens").shape;
    const Value logits = build_model(b, model_of(c), b.input("tokens", {.dtype = DType::kI64, .shape = shape})).front().second;
    std::map<std::string, RefArray> feeds{{"tokens", c.arrays.at("tokens")}};
    for (const ParameterSpec& spec : b.parameters()) feeds[spec.name] = c.arrays.at(spec.name);
    const RefArray original = interpret(graph, feeds).at(logits.id());
    const int64_t length = shape[1];
    for (int64_t changed = 0; changed < length; ++changed) {
      feeds["tokens"] = c.arrays.at("tokens");
      double& token = feeds["tokens"][changed];  // of the first sample
      token = token == 0 ? 1 : token - 1;
      const RefArray got = interpret(graph, feeds).at(logits.id());
      for (int64_t row = 0; row < shape.elements(); ++row) {
        const bool depends = row >= changed && row < length;
        bool equal = true;
        for (int64_t i = row * c.vocabulary; i < (row + 1) * c.vocabulary; ++i) equal = equal && got[i] == original[i];
        EXPECT_NE(equal, depends) << "logits of row " << row << " after a change of token " << changed;
      }
    }
  }
}

TEST(LanguageModelParams, NameTheirVocabulary) {
  const std::map<std::string, std::string> keys{{"gpt", "vocab_size"}, {"rnn_lm", "vocab"}};
  for (const auto& [type, key] : keys) {
    SCOPED_TRACE(type);
    const Component unset = default_model(type);
    const LanguageModelParams* params = language_model_params(unset);
    ASSERT_NE(params, nullptr);
    EXPECT_EQ(params->vocabulary_key(), key);
    EXPECT_FALSE(params->vocabulary().has_value());
    EXPECT_EQ(params->tokens(), 256);
    const Component given = with_vocabulary(default_model(type), 12);
    EXPECT_EQ(language_model_params(given)->tokens(), 12);
    // The option of that name is the vocabulary, and one that is set stays.
    Setter setter(key, {11});
    given.params->options(setter);
    EXPECT_TRUE(setter.found);
    const Component same = with_vocabulary(given, 13);
    EXPECT_EQ(language_model_params(same)->vocabulary(), 11);
    EXPECT_EQ(language_model_params(same)->tokens(), 11);
  }
  EXPECT_EQ(language_model_params(default_model("resnet18")), nullptr);
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
