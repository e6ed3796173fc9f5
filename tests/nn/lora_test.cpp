// Laws: a model with adapters has PEFT's logits, loss and gradients (tests/golden/nn/lora.txt, float64, made by make_lora.py in the same
// folder); adapters change nothing at first; layers that share weights share adapters.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/passes/differentiate.h"
#include "tests/nn/golden_arrays.h"
#include "tests/nn/set_option.h"
#include "tests/support/graphs.h"

namespace galley {
namespace {

Component with_options(Component model, const std::map<std::string, double>& options) {
  for (const auto& [key, value] : options) {
    Setter setter(key, {value});
    model.params->options(setter);
    EXPECT_TRUE(setter.found) << key;
  }
  return model;
}

/// Adapters of all layers whose path ends with one of these names.
LoraOptions adapters(int64_t rank, double alpha, std::vector<std::string> names) {
  return {.rank = rank, .alpha = alpha, .selects = [names = std::move(names)](std::string_view path) {
            return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return path.ends_with(name); });
          }};
}

TEST(Lora, LogitsLossAndGradientsAreThoseOfPeft) {
  const std::vector<GoldenArrays> cases = read_golden_arrays("lora");
  ASSERT_EQ(cases.size(), 2u);
  for (const GoldenArrays& c : cases) {
    SCOPED_TRACE(c.name);
    std::istringstream words(c.options);
    double layers = 0, heads = 0, width = 0, vocabulary = 0, block = 0, bias = 0, tied = 0, rank = 0, alpha = 0;
    words >> layers >> heads >> width >> vocabulary >> block >> bias >> tied >> rank >> alpha;
    const Component model = with_vocabulary(with_options(default_model("gpt"), {{"n_layer", layers},
                                                                                {"n_head", heads},
                                                                                {"n_embd", width},
                                                                                {"block_size", block},
                                                                                {"bias", bias},
                                                                                {"tie_weights", tied},
                                                                                {"dropout", 0}}),
                                            static_cast<int64_t>(vocabulary));
    Graph graph;
    Builder b(graph, {.dtype = DType::kF64, .lora = adapters(static_cast<int64_t>(rank), alpha, {"c_attn", "c_fc"})});
    const Value logits =
        build_model(b, model, b.input("tokens", {.dtype = DType::kI64, .shape = c.arrays.at("tokens").shape})).front().second;
    const Component loss = over_last_dimension(make_loss("cross_entropy"));
    const Value mean = build_loss(b, loss, logits, b.input("targets", loss_target(loss, logits.type())));
    std::map<std::string, RefArray> feeds{{"tokens", c.arrays.at("tokens")}, {"targets", c.arrays.at("targets")}};
    std::vector<ValueId> trained;
    for (const ParameterSpec& spec : b.parameters()) {
      ASSERT_TRUE(c.arrays.contains(spec.name)) << spec.name;
      ASSERT_EQ(spec.type.shape, c.arrays.at(spec.name).shape) << spec.name;
      feeds[spec.name] = c.arrays.at(spec.name);
      if (spec.module_type == kAdapterType) trained.push_back(graph.find_input(spec.name));
    }
    ASSERT_EQ(trained.size(), static_cast<size_t>(4 * layers));  // A and B of two layers in each block
    // tokens, targets, logits, loss, parameters, gradients of the adapters.
    ASSERT_EQ(c.arrays.size(), 4 + b.parameters().size() + trained.size());
    const std::map<ValueId, ValueId> gradients = differentiate(graph, mean.id(), trained);
    const std::map<ValueId, RefArray> values = interpret(graph, feeds);
    expect_same("logits", values.at(logits.id()), c.arrays.at("logits"));
    expect_same("loss", values.at(mean.id()), c.arrays.at("loss"));
    for (const ValueId parameter : trained) {
      const std::string name = "d_" + graph.value(parameter).name;
      expect_same(name, values.at(gradients.at(parameter)), c.arrays.at(name));
    }
  }
}

/// The parameters of a model with adapters, and its results with the initial values in evaluation.
struct Captured {
  Captured(const Component& model, const Shape& shape, DType input, LoraOptions lora) {
    Builder b(graph, {.mode = Mode::kEvaluation, .lora = std::move(lora)});
    const NamedValues inputs{{model_info(model).all_inputs().front().name, b.input("x", {.dtype = input, .shape = shape})}};
    result = build_model(b, model, inputs).front().second.id();
    layers = b.linear_layers();
    specs = b.take_parameters();
  }
  RefArray run() const {
    RefArray x{graph.type(graph.find_input("x")).shape, {}};
    for (int64_t i = 0; i < x.shape.elements(); ++i) x.v.push_back(static_cast<double>(i * 7 % 5));
    std::map<std::string, RefArray> feeds{{"x", x}};
    for (const ParameterSpec& spec : specs) feeds[spec.name] = to_ref(initialize(spec, 3));
    return interpret(graph, feeds).at(result);
  }
  std::vector<std::string> adapted() const {
    std::vector<std::string> names;
    for (const ParameterSpec& spec : specs)
      if (spec.module_type == kAdapterType) names.push_back(spec.name);
    return names;
  }
  Graph graph;
  ValueId result = kNoValue;
  std::vector<ParameterSpec> specs;
  std::vector<std::string> layers;
};

TEST(Lora, ChangesNothingAtFirstInEveryFamily) {
  const std::map<std::string, double> encoder{{"vocab_size", 11},         {"hidden_size", 8},        {"num_hidden_layers", 2},
                                              {"num_attention_heads", 2}, {"intermediate_size", 12}, {"max_position_embeddings", 16}};
  const Component bert = with_options(default_model("bert"), encoder), albert = with_options(default_model("albert"), encoder);
  const Component vit = with_options(
      default_model("vit_b_16"),
      {{"image_size", 16}, {"patch_size", 8}, {"num_layers", 2}, {"num_heads", 2}, {"hidden_dim", 8}, {"mlp_dim", 12}, {"num_classes", 3}});
  const Component swin = with_options(default_model("swin_t"), {{"embed_dim", 12}, {"num_classes", 3}});
  struct Row {
    const char* what;
    const Component& model;
    Shape shape;
    DType input;
    std::vector<std::string> names;
    size_t tensors;
  };
  const std::vector<Row> rows{{"bert", bert, {2, 5}, DType::kI64, {"query", "value"}, 2 * 2 * 2},
                              {"albert", albert, {2, 5}, DType::kI64, {"query", "value"}, 2 * 2},  // both layers share one
                              {"vit", vit, {1, 3, 16, 16}, DType::kF32, {"mlp.0", "out_proj"}, 2 * 2 * 2},
                              {"swin", swin, {1, 3, 32, 32}, DType::kF32, {"attn.qkv", "reduction"}, 2 * (12 + 3)}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const Captured plain(row.model, row.shape, row.input, {}), with(row.model, row.shape, row.input, adapters(4, 2, row.names));
    EXPECT_TRUE(plain.adapted().empty());
    EXPECT_EQ(with.adapted().size(), row.tensors);
    EXPECT_EQ(plain.layers, with.layers);
    const RefArray expected = plain.run(), got = with.run();
    ASSERT_EQ(expected.shape, got.shape);
    for (int64_t i = 0; i < expected.shape.elements(); ++i) EXPECT_EQ(expected[i], got[i]) << i;
  }
}

TEST(Lora, InitialValuesAreThoseOfThePaper) {
  const Captured model(with_options(default_model("vit_b_16"), {{"image_size", 32}, {"num_layers", 1}}), {1, 3, 32, 32}, DType::kF32,
                       adapters(16, 16, {"mlp.0"}));
  ASSERT_EQ(model.adapted().size(), 2u);
  for (const ParameterSpec& spec : model.specs) {
    if (spec.module_type != kAdapterType) continue;
    const Tensor values = initialize(spec, 5);
    double largest = 0, squares = 0;
    for (const double x : values.to_doubles()) {
      largest = std::max(largest, std::abs(x));
      squares += x * x;
    }
    if (spec.name.ends_with("lora_B.weight")) {
      EXPECT_EQ(spec.type.shape, Shape({3072, 16}));
      EXPECT_EQ(largest, 0);
      continue;
    }
    // Kaiming uniform with a = sqrt(5): bound 1 / sqrt(fan in).
    EXPECT_EQ(spec.type.shape, Shape({16, 768}));
    const double bound = 1 / std::sqrt(768.0);
    EXPECT_LE(largest, bound);
    EXPECT_NEAR(std::sqrt(squares / (16 * 768)), bound / std::sqrt(3.0), 0.02 * bound);
  }
}

// With dropout 0.5 and the identity as A, the difference to the base is B times the input with elements dropped and doubled.
TEST(Lora, DropoutIsThatOfTheAdaptersInput) {
  constexpr int64_t kWidth = 64;
  Graph graph;
  LoraOptions lora = adapters(kWidth, kWidth, {"fc"});
  lora.dropout = 0.5;
  Builder b(graph, {.lora = lora});
  const Value y = b.linear("fc", b.input("x", {.shape = {1, kWidth}}), {.out_features = kWidth, .bias = false});
  RefArray identity{{kWidth, kWidth}, std::vector<double>(kWidth * kWidth, 0)}, zero = identity,
                                                                                ones{{1, kWidth}, std::vector<double>(kWidth, 1)};
  for (int64_t i = 0; i < kWidth; ++i) identity[i * kWidth + i] = 1;
  const RefArray got =
      interpret(
          graph,
          {{"x", ones}, {"rng", {{3}, {7, 1, 0}}}, {"fc.weight", zero}, {"fc.lora_A.weight", identity}, {"fc.lora_B.weight", identity}})
          .at(y.id());
  int64_t kept = 0;
  for (int64_t i = 0; i < kWidth; ++i) {
    EXPECT_TRUE(got[i] == 0 || got[i] == 2) << got[i];
    kept += got[i] == 2;
  }
  EXPECT_GT(kept, kWidth / 4);
  EXPECT_LT(kept, 3 * kWidth / 4);
}

}  // namespace
}  // namespace galley
