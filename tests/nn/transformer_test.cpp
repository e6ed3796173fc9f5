// Laws: the encoder-decoder model has the parameters of torch.nn.Transformer, and its logits, loss with label smoothing, gradients and
// AdamW steps (tests/golden/nn/transformer.txt, float64, made by make_transformer.py beside it); what is past the length of a source has no
// influence, and no token sees a later one of its target.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "tests/nn/golden_training.h"
#include "tests/nn/set_option.h"
#include "tests/support/graphs.h"

namespace galley {
namespace {

constexpr int64_t kVocabulary = 13, kSource = 7, kTarget = 5;

struct TransformerCase {
  std::string name;
  std::vector<std::pair<std::string, double>> options;
};
void PrintTo(const TransformerCase& c, std::ostream* out) { *out << c.name; }

Component component(const TransformerCase& c) {
  Component model = default_model("transformer");
  std::vector<std::pair<std::string, double>> all{
      {"d_model", 8},          {"nhead", 2},   {"num_encoder_layers", 2}, {"num_decoder_layers", 2},
      {"dim_feedforward", 12}, {"dropout", 0}, {"max_length", 12}};
  all.insert(all.end(), c.options.begin(), c.options.end());
  for (const auto& [name, value] : all) {
    Setter setter(name, {value});
    model.params->options(setter);
    EXPECT_TRUE(setter.found) << name;
  }
  return with_vocabulary(std::move(model), kVocabulary);
}

const GoldenFile& results(const TransformerCase& c) {
  static const std::map<std::string, GoldenFile> all = read_golden_cases("nn/transformer");
  return all.at(c.name);
}

/// The training pass in double.
struct TrainedTransformer : TrainingPass {
  explicit TrainedTransformer(const TransformerCase& c) {
    Builder b(graph, {.dtype = DType::kF64});
    const auto integers = [&](const char* name, const Shape& shape) { return b.input(name, {.dtype = DType::kI64, .shape = shape}); };
    const NamedValues inputs{
        {"tgt", integers("tgt", {2, kTarget})}, {"src", integers("src", {2, kSource})}, {"src.length", integers("src.length", {2})}};
    const Value out = build_model(b, component(c), inputs).front().second;
    Component smoothed = over_last_dimension(make_loss("cross_entropy"));
    Setter setter("label_smoothing", {0.1});
    smoothed.params->options(setter);
    logits = out.id();
    loss = build_loss(b, smoothed, out, b.input("label", loss_target(smoothed, out.type()))).id();
    take_parameters(b);
  }
  /// make_transformer.py's tokens(name).
  void feed(const std::string& name) {
    const int64_t step = std::accumulate(name.begin(), name.end(), int64_t{0}) % 5 + 2;
    RefArray src{{2, kSource}, {}}, tgt{{2, kTarget}, {}}, label{{2, kTarget}, {}};
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t i = 0; i < kSource; ++i) src.v.push_back(static_cast<double>((i * i * step + 3 * i + row * 5) % kVocabulary));
      for (int64_t i = 0; i < kTarget; ++i) {
        tgt.v.push_back(static_cast<double>((i * step + 7 * row + 1) % kVocabulary));
        label.v.push_back(static_cast<double>((i * i + step * row + 2) % kVocabulary));
      }
    }
    label.v.back() = -100;
    feeds["src"] = src;
    feeds["tgt"] = tgt;
    feeds["label"] = label;
    feeds["src.length"] = {{2}, {7, 4}};
  }
};

class Transformers : public testing::TestWithParam<TransformerCase> {};

TEST_P(Transformers, LogitsLossAndGradientsAreThoseOfPyTorch) {
  TrainedTransformer model(GetParam());
  model.feed(GetParam().name);
  expect_golden_gradients(model, results(GetParam()));
}

TEST_P(Transformers, FiveAdamWStepsAreThoseOfPyTorch) {
  TrainedTransformer model(GetParam());
  const auto feed = [&](int step) { model.feed(GetParam().name + std::to_string(step)); };
  expect_golden_steps(model, results(GetParam()), feed, "in_proj_bias");
}

INSTANTIATE_TEST_SUITE_P(Cases, Transformers,
                         testing::Values(TransformerCase{"tied", {}},
                                         TransformerCase{"norm_first", {{"norm_first", 1}, {"activation", 1}, {"tie_weights", 0}}},
                                         TransformerCase{"no_bias", {{"bias", 0}, {"layer_norm_eps", 1e-3}}}),
                         [](const auto& info) { return info.param.name; });

TEST(Transformer, PaddingAndLaterTokensHaveNoInfluence) {
  TrainedTransformer model({"tied", {}});
  model.feed("tied");
  const RefArray before = interpret(model.graph, model.feeds).at(model.logits);
  const auto changed = [&](const char* input, int64_t at) {
    RefArray& array = model.feeds.at(input);
    const double old = array[at];
    array[at] = old == 0 ? 1 : old - 1;
    const RefArray after = interpret(model.graph, model.feeds).at(model.logits);
    array[at] = old;
    std::vector<bool> rows;
    for (int64_t row = 0; row < 2 * kTarget; ++row)
      rows.push_back(!std::equal(before.v.begin() + row * kVocabulary, before.v.begin() + (row + 1) * kVocabulary,
                                 after.v.begin() + row * kVocabulary));
    return rows;
  };
  const std::vector<bool> none(2 * kTarget);
  for (int64_t i = 0; i < 2 * kSource; ++i) {
    const bool padding = i >= kSource + 4;
    EXPECT_EQ(changed("src", i) == none, padding) << "source token " << i;
  }
  for (int64_t i = 0; i < kTarget; ++i) {
    std::vector<bool> expected = none;
    for (int64_t row = i; row < kTarget; ++row) expected[static_cast<size_t>(row)] = true;
    EXPECT_EQ(changed("tgt", i), expected) << "target token " << i;
  }
}

TEST(Transformer, Mistakes) {
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  const auto build = [&](std::vector<std::pair<std::string, double>> options, int64_t length) {
    const NamedValues inputs{{"tgt", b.input(cat("t", length, options.size()), test::i64({1, 4}))},
                             {"src", b.input(cat("s", length, options.size()), test::i64({1, length}))}};
    return build_model(b, component({"", std::move(options)}), inputs);
  };
  EXPECT_THROW(build({{"nhead", 3}}, 4), Error);
  EXPECT_THROW(build({}, 13), Error) << "longer than max_length";
}

}  // namespace
}  // namespace galley
