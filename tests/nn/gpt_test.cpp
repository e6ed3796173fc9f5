// Laws: the model gpt has minGPT's parameters, and PyTorch's logits, loss and gradients (tests/golden/nn/gpt.txt, float64, made by
// make_gpt.py in the same folder); its logits at a token depend on that token and the earlier ones only.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/attention.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/pipelines.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/engine.h"
#include "tests/nn/golden_arrays.h"
#include "tests/nn/set_option.h"
#include "tests/support/graphs.h"

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
  for (const GoldenArrays& golden : read_golden_arrays("gpt")) {
    const GoldenCase c(golden);
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

/// A gpt whose heads have the width of the kernel of decoding, with weights that make every position count.
struct SmallGpt {
  static constexpr int64_t kBlock = 70, kVocabulary = 11;
  SmallGpt() {
    for (const auto& [key, value] : std::map<std::string, double>{
             {"n_layer", 2}, {"n_head", 2}, {"n_embd", 32}, {"block_size", static_cast<double>(kBlock)}, {"dropout", 0}}) {
      Setter setter(key, {value});
      model.params->options(setter);
      EXPECT_TRUE(setter.found) << key;
    }
    model = with_vocabulary(std::move(model), kVocabulary);
  }
  /// The program of `tokens` tokens of each of `rows` sequences; capacity 0: of whole sequences.
  std::shared_ptr<const Program> program(Engine& engine, int64_t rows, int64_t tokens, int64_t capacity) {
    return engine.program(
        {.mode = cat("test ", capacity), .fields = {{"tokens", test::i64({rows, tokens})}}}, "test",
        [&] {
          Graph graph;
          Builder b(graph, {.mode = Mode::kEvaluation, .cache = capacity});
          graph.add_output("logits", build_model(b, model, b.input("tokens", test::i64({rows, tokens}))).front().second);
          specs = b.take_parameters();
          return graph;
        },
        engine.has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
  }
  void set_weights(Engine& engine) const {
    for (const ParameterSpec& spec : specs) {
      Tensor values = initialize(spec, 5);
      const bool norm = spec.module_type == "layer_norm";
      for (int64_t i = 0; i < values.elements() && !norm; ++i) values.data_as<float>()[i] *= 12;
      engine.store().set(spec.name, values);
    }
  }
  Component model = default_model("gpt");
  std::vector<ParameterSpec> specs;
};

// Sequences of unequal length, padded on the right, in pieces of every kind: the logits after each piece are those of the whole sequence.
TEST(Gpt, ACacheGivesTheLogitsOfTheWholeSequence) {
  constexpr int64_t kRows = 3, kBlock = SmallGpt::kBlock, kVocabulary = SmallGpt::kVocabulary;
  Tensor tokens(DType::kI64, {kRows, kBlock});
  RandomStream random(3, "tokens");
  for (int64_t i = 0; i < tokens.elements(); ++i) tokens.data_as<int64_t>()[i] = static_cast<int64_t>(random.below(kVocabulary));
  for (const char* device : {"cpu", "ref"}) {
    SCOPED_TRACE(device);
    SmallGpt gpt;
    Engine engine(open_backend(device, {.threads = 2}));
    engine.declare(*gpt.program(engine, kRows, kBlock, 0));
    gpt.set_weights(engine);
    const auto whole = engine.bind(gpt.program(engine, kRows, kBlock, 0));
    whole->feed("tokens", tokens);
    whole->run();
    const Tensor expected = whole->output("logits");
    double largest = 0;
    for (int64_t i = 0; i < expected.elements(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(expected.data_as<float>()[i])));
    EXPECT_GT(largest, 0.5);
    // Tokens of each row in each run; what a row has less than the longest is padding.
    using Pieces = std::vector<std::array<int64_t, kRows>>;
    std::vector<Pieces> all{
        Pieces(kBlock, {1, 1, 1}), {{70, 70, 70}}, {{16, 5, 1}, {1, 1, 1}, {33, 40, 4}, {20, 24, 64}}, {{2, 0, 3}, {0, 64, 0}, {3, 1, 1}}};
    for (const Pieces& pieces : all) {
      const auto request = engine.carried();
      std::array<int64_t, kRows> done{};
      for (const std::array<int64_t, kRows>& piece : pieces) {
        const int64_t length = *std::max_element(piece.begin(), piece.end());
        Tensor input(DType::kI64, {kRows, length}), positions(DType::kI64, {kRows, length}), start(DType::kI64, {kRows}),
            last(DType::kI64, {kRows});
        for (int64_t n = 0; n < kRows; ++n) {
          const int64_t from = done[static_cast<size_t>(n)], count = piece[static_cast<size_t>(n)];
          for (int64_t t = 0; t < length; ++t) {
            input.data_as<int64_t>()[n * length + t] = t < count ? tokens.data_as<int64_t>()[n * kBlock + from + t] : 7;
            positions.data_as<int64_t>()[n * length + t] = std::min(from + t, kBlock - 1);
          }
          start.data_as<int64_t>()[n] = count == 0 ? -1 : from;
          last.data_as<int64_t>()[n] = std::max<int64_t>(0, count - 1);
          done[static_cast<size_t>(n)] += count;
        }
        const auto run = engine.bind(gpt.program(engine, kRows, length, kBlock), {.carried = request});
        run->feed("tokens", input);
        run->feed(cache_input::kStart, start);
        run->feed(cache_input::kPositions, positions);
        if (run->takes(cache_input::kLast)) run->feed(cache_input::kLast, last);
        run->run();
        const Tensor got = run->output("logits");
        ASSERT_EQ(got.shape(), Shape({kRows, kVocabulary}));
        for (int64_t n = 0; n < kRows; ++n) {
          if (piece[static_cast<size_t>(n)] == 0) continue;
          const int64_t at = done[static_cast<size_t>(n)] - 1;
          for (int64_t v = 0; v < kVocabulary; ++v)
            ASSERT_NEAR(got.data_as<float>()[n * kVocabulary + v], expected.data_as<float>()[(n * kBlock + at) * kVocabulary + v],
                        2e-5 * largest)
                << "row " << n << " position " << at;
        }
      }
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
