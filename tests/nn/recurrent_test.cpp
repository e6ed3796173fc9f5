// Laws: recurrent layers have torch.nn's parameters, results, states and gradients (tests/golden/nn/recurrent.txt, float64, made by
// make_recurrent.py in the same folder); layers of a recipe are these layers; a language model's logits, loss and its dimension of classes
// agree.

#include "libcore/nn/recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/layers.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/differentiate.h"
#include "tests/nn/golden_arrays.h"
#include "tests/nn/set_option.h"

namespace galley {
namespace {

struct GoldenCase : GoldenArrays {
  explicit GoldenCase(GoldenArrays golden) : GoldenArrays(std::move(golden)) {
    std::istringstream words(options);
    words >> cell >> hidden >> layers >> bias >> both >> nonlinearity >> states;
  }
  std::string cell, nonlinearity;
  int64_t hidden = 0, layers = 0;
  bool bias = false, both = false, states = false;
};

TEST(Recurrent, ResultsStatesAndGradientsAreThoseOfPyTorch) {
  const std::vector<GoldenArrays> cases = read_golden_arrays("recurrent");
  ASSERT_EQ(cases.size(), 10u);
  for (const GoldenArrays& golden : cases) {
    const GoldenCase c(golden);
    SCOPED_TRACE(c.name);
    const std::map<std::string, RefArray>& arrays = c.arrays;
    const int64_t batch = arrays.at("x").shape[0], states = c.layers * (c.both ? 2 : 1), state_size = batch * c.hidden;
    Graph graph;
    Builder b(graph, {.dtype = DType::kF64});
    std::map<std::string, RefArray> feeds{{"x", arrays.at("x")}};
    RecurrentOptions options{.cell = c.cell == "lstm"  ? Cell::kLstm
                                     : c.cell == "gru" ? Cell::kGru
                                                       : Cell::kRnn,
                             .hidden_size = c.hidden,
                             .num_layers = c.layers,
                             .bias = c.bias,
                             .bidirectional = c.both,
                             .nonlinearity = c.nonlinearity == "relu" ? Nonlinearity::kRelu : Nonlinearity::kTanh};
    const Value x = b.input("x", {.dtype = DType::kF64, .shape = arrays.at("x").shape});
    const auto row = [&](const std::string& array, int64_t state) -> RefArray {
      const double* values = arrays.at(array).v.data() + state * state_size;
      return {{batch, c.hidden}, {values, values + state_size}};
    };
    for (int64_t s = 0; c.states && s < states; ++s) {
      for (const char* name : {"h0", "c0"}) {
        if (!arrays.contains(name)) continue;
        const std::string input = name + std::to_string(s);
        (name[0] == 'h' ? options.h0 : options.c0).push_back(b.input(input, {.dtype = DType::kF64, .shape = {batch, c.hidden}}));
        feeds[input] = row(name, s);
      }
    }
    const Recurrent result = recurrent(b, "layer", x, options);

    std::vector<std::string> torch_names;
    for (const auto& [name, array] : arrays) {
      if (name.starts_with("weight_") || name.starts_with("bias_")) torch_names.push_back(name);
    }
    ASSERT_EQ(b.parameters().size(), torch_names.size());
    std::vector<std::pair<ValueId, std::string>> wanted{{x.id(), "x"}};
    for (const ParameterSpec& spec : b.parameters()) {
      const std::string name = spec.name.substr(std::string("layer.").size());
      ASSERT_EQ(arrays.count(name), 1u) << name;
      EXPECT_EQ(spec.module_type, c.cell);
      feeds[spec.name] = arrays.at(name);
      wanted.emplace_back(graph.find_input(spec.name), name);
    }
    // The objective: every result times its cotangent, summed.
    Value objective;
    const auto weigh = [&](Value value, const std::string& name, const RefArray& cotangent) {
      const Value weight = b.input(name, value.type());
      feeds[name] = cotangent;
      const Value term = sum(mul(value, weight), std::vector<int64_t>{});
      objective = objective ? add(objective, term) : term;
    };
    weigh(result.y, "wy", arrays.at("cotangent_y"));
    for (int64_t s = 0; s < states; ++s) {
      weigh(result.h[static_cast<size_t>(s)], cat("wh", s), row("cotangent_hn", s));
      if (c.cell == "lstm") weigh(result.c[static_cast<size_t>(s)], cat("wc", s), row("cotangent_cn", s));
    }
    std::vector<ValueId> ids;
    for (const auto& [id, name] : wanted) ids.push_back(id);
    for (const Value& v : options.h0) ids.push_back(v.id());
    for (const Value& v : options.c0) ids.push_back(v.id());
    const std::map<ValueId, ValueId> gradients = differentiate(graph, objective.id(), ids);
    const std::map<ValueId, RefArray> values = interpret(graph, feeds);

    expect_same("y", values.at(result.y.id()), arrays.at("y"));
    for (const auto& [id, name] : wanted) expect_same("d_" + name, values.at(gradients.at(id)), arrays.at("d_" + name));
    for (int64_t s = 0; s < states; ++s) {
      const auto i = static_cast<size_t>(s);
      expect_same("hn", values.at(result.h[i].id()), row("hn", s));
      if (c.cell == "lstm") expect_same("cn", values.at(result.c[i].id()), row("cn", s));
      if (c.states) expect_same("d_h0", values.at(gradients.at(options.h0[i].id())), row("d_h0", s));
      if (c.states && c.cell == "lstm") expect_same("d_c0", values.at(gradients.at(options.c0[i].id())), row("d_c0", s));
    }
  }
}

TEST(Recurrent, LayersOfARecipeAreTheseLayers) {
  for (const char* cell : {"lstm", "gru", "rnn"}) {
    LayersModel params;
    params.input.emplace().shape = {5};
    params.input->dtype = InputDType::kI64;
    const auto put = [&](const char* type, const std::vector<std::pair<std::string, std::vector<double>>>& settings) {
      auto spec = std::make_unique<LayerSpec>();
      spec->layer.type = type;
      for (const ComponentKind& kind : layer_kinds()) {
        if (kind.type == type) spec->layer.params = kind.make();
      }
      ASSERT_TRUE(spec->layer) << type;
      for (const auto& [key, numbers] : settings) {
        Setter setter(key, numbers);
        spec->layer.params->options(setter);
        ASSERT_TRUE(setter.found) << type << " " << key;
      }
      params.layers.items.push_back(std::move(spec));
    };
    put("embedding", {{"num_embeddings", {11}}, {"embedding_dim", {6}}});
    put(cell, {{"hidden_size", {7}}, {"num_layers", {2}}, {"bidirectional", {1}}, {"dropout", {0.5}}});
    put("linear", {{"out_features", {3}}});
    Component model;
    model.type = "layers";
    model.params = params.clone();
    EXPECT_EQ(model_info(model).input_dtype, DType::kI64);
    Graph graph;
    Builder b(graph);
    const Value y = build_model(b, model, b.input("input", {.dtype = DType::kI64, .shape = {2, 5}})).front().second;
    EXPECT_EQ(y.shape(), Shape({2, 5, 3}));
    const int64_t gates = std::string(cell) == "lstm" ? 4 : std::string(cell) == "gru" ? 3 : 1;
    // Two directions of two layers: widths 6 and 14.
    EXPECT_EQ(parameter_count(b.parameters()), 11 * 6 + 2 * gates * 7 * (6 + 7 + 2) + 2 * gates * 7 * (14 + 7 + 2) + 14 * 3 + 3);
    EXPECT_EQ(b.parameters()[1].name, cat(cell, ".weight_ih_l0"));
    EXPECT_EQ(b.parameters()[5].name, cat(cell, ".weight_ih_l0_reverse"));
    EXPECT_TRUE(std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& n) { return n.is("dropout"); }));
  }
}

/// A small language model on the reference; returns logits, the mean loss and each token's.
TEST(Recurrent, LanguageModelCountsEveryToken) {
  for (const bool tied : {false, true}) {
    Component model = with_vocabulary(default_model("rnn_lm"), 9);
    for (const auto& [key, value] : std::vector<std::pair<std::string, double>>{
             {"embedding_dim", 5}, {"hidden_size", 5}, {"num_layers", 1}, {"dropout", 0}, {"tie_weights", tied}}) {
      Setter setter(key, {value});
      model.params->options(setter);
      ASSERT_TRUE(setter.found) << key;
    }
    const ModelInfo info = model_info(model);
    EXPECT_EQ(info.output, ModelOutput::kTokens);
    const Component loss = over_last_dimension(make_loss("cross_entropy"));
    Graph graph;
    Builder b(graph, {.mode = Mode::kEvaluation});
    const Value logits = build_model(b, model, b.input("input", {.dtype = DType::kI64, .shape = {2, 4}})).front().second;
    ASSERT_EQ(logits.shape(), Shape({2, 4, 9}));
    EXPECT_EQ(class_axis(loss, logits.type()), 2);
    const TensorType target = loss_target(loss, logits.type());
    EXPECT_EQ(target.shape, Shape({2, 4}));
    const Value y = b.input("target", target);
    const Value mean = build_loss(b, loss, logits, y), tokens = build_element_losses(b, loss, logits, y);
    EXPECT_EQ(tokens.shape(), Shape({2, 4}));
    std::map<std::string, RefArray> feeds{{"input", {{2, 4}, {0, 8, 3, 2, 1, 1, 7, 5}}}, {"target", {{2, 4}, {8, 3, 2, 4, 1, 7, 5, -100}}}};
    for (const ParameterSpec& spec : b.parameters()) feeds[spec.name] = to_ref(initialize(spec, 3));
    EXPECT_EQ(feeds.contains("decoder.weight"), !tied);
    const std::map<ValueId, RefArray> values = interpret(graph, feeds);
    // By hand from the logits: log sum exp minus the target's.
    double total = 0;
    for (int64_t i = 0; i < 8; ++i) {
      const double* row = values.at(logits.id()).v.data() + i * 9;
      const auto label = static_cast<int64_t>(feeds.at("target")[i]);
      double sum = 0;
      for (int64_t c = 0; c < 9; ++c) sum += std::exp(row[c]);
      const double want = label < 0 ? 0 : std::log(sum) - row[label];
      EXPECT_NEAR(values.at(tokens.id())[i], want, 1e-12);  // a few roundings in double
      total += want;
    }
    EXPECT_NEAR(values.at(mean.id())[0], total / 7, 1e-12) << "the mean is over the tokens that count";
  }
}

TEST(Recurrent, MistakesAreNamed) {
  Graph graph;
  Builder b(graph);
  const Value x = b.input("x", {.shape = {2, 3}});
  try {
    recurrent(b, "layer", x, {.hidden_size = 4});
    FAIL() << "a matrix is not a sequence";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("[lstm] needs an input with 3 dimensions [N,T,C]"), std::string::npos) << error.message();
  }
  const Value sequence = b.input("sequence", {.shape = {2, 3, 4}}), state = b.input("state", {.shape = {2, 5}});
  EXPECT_THROW(recurrent(b, "wrong_size", sequence, {.hidden_size = 4, .h0 = {state}, .c0 = {state}}), Error);
  EXPECT_THROW(recurrent(b, "half_a_state", sequence, {.hidden_size = 5, .h0 = {state}}), Error);
  EXPECT_THROW(recurrent(b, "too_few", sequence, {.hidden_size = 5, .num_layers = 2, .h0 = {state}, .c0 = {state}}), Error);
  EXPECT_NO_THROW(recurrent(b, "right", sequence, {.hidden_size = 5, .h0 = {state}, .c0 = {state}}));
  Component model = with_vocabulary(default_model("rnn_lm"), 10);
  Graph other;
  Builder c(other);
  EXPECT_THROW(build_model(c, model, c.input("input", {.shape = {2, 4}})), Error) << "floats are not tokens";
}

}  // namespace
}  // namespace galley
