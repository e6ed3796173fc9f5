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
#include "libcore/optim/updates.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/order_updates.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/set_option.h"
#include "tests/support/golden_weights.h"
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

const std::map<std::string, GoldenFile>& results() {
  static const std::map<std::string, GoldenFile> all = [] {
    std::map<std::string, GoldenFile> made;
    std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/nn/transformer.txt");
    EXPECT_TRUE(file);
    std::string line, name;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string key, kind;
      words >> key >> kind;
      if (key == "case") name = kind;
      if (key == "#" || key == "case") continue;
      GoldenEntry entry;
      entry.full = kind == "full";
      words >> entry.count;
      for (double v = 0; words >> v;) entry.values.push_back(v);
      made[name].emplace(key, std::move(entry));
    }
    return made;
  }();
  return all;
}

/// The training pass in double.
struct TrainedTransformer {
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
    specs = b.take_parameters();
    for (const ParameterSpec& spec : specs) {
      parameters.push_back(graph.find_input(spec.name));
      feeds[spec.name] = {spec.type.shape, golden_state(spec.name, spec.type.shape)};
    }
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
  Graph graph;
  std::vector<ParameterSpec> specs;
  std::vector<ValueId> parameters;
  std::map<std::string, RefArray> feeds;
  ValueId logits = kNoValue, loss = kNoValue;
};

class Transformers : public testing::TestWithParam<TransformerCase> {};

TEST_P(Transformers, LogitsLossAndGradientsAreThoseOfPyTorch) {
  const TransformerCase& c = GetParam();
  const GoldenFile& want = results().at(c.name);
  TrainedTransformer model(c);
  model.feed(c.name);
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, model.loss, model.parameters);
  const std::map<ValueId, RefArray> values = interpret(model.graph, model.feeds);
  // Both sides compute in double, with sums in other orders, and 12 digits are stored.
  expect_golden("logits", want.at("logits"), values.at(model.logits).v, 1e-10);
  expect_golden("loss", want.at("loss"), values.at(model.loss).v, 1e-10);
  for (size_t i = 0; i < model.specs.size(); ++i) {
    const std::string key = "grad:" + model.specs[i].name;
    ASSERT_TRUE(want.contains(key)) << key;
    // The gradient of a key bias is 0: softmax does not see it.
    expect_golden(key, want.at(key), values.at(gradients.at(model.parameters[i])).v, 1e-9, 1e-13);
  }
  EXPECT_EQ(std::ssize(model.specs),
            std::count_if(want.begin(), want.end(), [](const auto& entry) { return entry.first.starts_with("grad:"); }));
}

TEST_P(Transformers, FiveAdamWStepsAreThoseOfPyTorch) {
  const TransformerCase& c = GetParam();
  const GoldenFile& want = results().at(c.name);
  TrainedTransformer model(c);
  AdamW adamw;
  adamw.lr = 1e-3;
  adamw.betas = {0.9, 0.99};
  adamw.weight_decay = 0.05;
  UpdateOptions options;
  options.groups = resolve_groups(adamw);
  const UpdateTable updates = add_updates(model.graph, differentiate(model.graph, model.loss, model.parameters), options);
  order_updates(model.graph);
  for (const StateSpec& state : updates.states)
    model.feeds[state.name] = {state.type.shape, std::vector<double>(static_cast<size_t>(state.type.elements()))};
  model.feeds["lr." + options.groups.groups[0].name] = {{}, {adamw.lr}};
  for (int step = 0; step < 5; ++step) {
    model.feed(c.name + std::to_string(step));
    model.feeds["step"] = {{}, {static_cast<double>(step + 1)}};
    auto values = interpret(model.graph, model.feeds);
    expect_golden("loss", want.at("loss" + std::to_string(step)), values.at(model.loss).v, 1e-7);
    for (const Node& node : model.graph.nodes()) {
      for (const InPlace& update : node.op->updates) {
        const ValueId input = node.input(static_cast<size_t>(update.input));
        if (input != kNoValue) model.feeds[model.graph.value(input).name] = values.at(node.outputs[static_cast<size_t>(update.output)]);
      }
    }
  }
  // Where a gradient is nearly 0, AdamW divides rounding by rounding: a key bias moves by up to lr in each step in either direction.
  for (const ParameterSpec& spec : model.specs)
    expect_golden(spec.name, want.at("after:" + spec.name), model.feeds.at(spec.name).v, 1e-6,
                  spec.name.ends_with("in_proj_bias") ? 5e-3 : 0);
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
