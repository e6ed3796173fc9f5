// Laws: encoders have the parameters, outputs, losses and gradients of transformers (tests/golden/nn/encoders.txt, float64, made by
// make_encoders.py beside it), and after five steps of AdamW its parameters; padding by lengths equals padding by attention_mask; padding
// changes no result of a token.
#include "libcore/nn/encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/loss.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/pipelines.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_arrays.h"
#include "tests/nn/set_option.h"
#include "tests/support/graphs.h"

namespace galley {
namespace {

struct GoldenCase : GoldenArrays {
  explicit GoldenCase(GoldenArrays golden) : GoldenArrays(std::move(golden)) {
    std::istringstream words(options);
    words >> type >> head;
    for (std::string word; words >> word;) settings[word.substr(0, word.find('='))] = std::stod(word.substr(word.find('=') + 1));
    for (size_t i = 0; i < kEncoderHeadNames.size(); ++i) {
      if (kEncoderHeadNames[i] == head) settings["head"] = static_cast<double>(i);
    }
    for (const char* dropout : {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"}) settings[dropout] = 0;
  }
  std::string type, head;
  std::map<std::string, double> settings;
};

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const GoldenArrays& golden : read_golden_arrays("encoders")) cases.emplace_back(golden);
  EXPECT_EQ(cases.size(), 41u);
  return cases;
}

Component model_of(const GoldenCase& c) {
  Component model = default_model(c.type);
  for (const auto& [key, value] : c.settings) {
    Setter setter(key, {value});
    model.params->options(setter);
    EXPECT_TRUE(setter.found) << c.name << ": " << key;
  }
  return model;
}

/// The values of make_encoders.py.
RefArray value_of(const ParameterSpec& spec) {
  int64_t letters = 0;
  for (const char c : spec.name) letters += static_cast<unsigned char>(c);
  const bool norm = spec.module_type == "layer_norm" && spec.name.ends_with("weight");
  RefArray array{spec.type.shape, {}};
  for (int64_t i = 0; i < spec.type.elements(); ++i) {
    const double wave = std::sin(1.3 * static_cast<double>(i + 1) + 0.37 * static_cast<double>(letters % 101));
    array.v.push_back(norm ? 1 + 0.3 * wave : 0.5 * wave);
  }
  return array;
}

const RefArray kIds{{2, 6}, {2, 5, 8, 3, 7, 4, 6, 3, 5, 2, 1, 1}}, kMask{{2, 6}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}},
    kTypes{{2, 6}, {0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0}}, kLengths{{2}, {6, 4}};
const std::map<std::string, RefArray> kTargets{
    {"masked_lm", {{2, 6}, {-100, 4, -100, 3, -100, -100, 6, -100, 8, -100, -100, -100}}},
    {"sequence_classification", {{2}, {2, 0}}},
    {"token_classification", {{2, 6}, {0, 1, 2, 1, 0, -100, 2, 2, 1, 0, -100, -100}}},
};

/// What tells the tokens of the second row from its padding. kBoth: lengths do, and a mask of ones is given too.
enum class Padding { kMask, kLengths, kBoth };

/// A model and the loss of make_encoders.py.
struct Captured {
  Captured(const GoldenCase& c, Padding padding, DType dtype) {
    Builder b(graph, {.dtype = dtype});
    const auto input = [&](const std::string& name, const RefArray& values) {
      feeds[name] = values;
      return b.input(name, {.dtype = DType::kI64, .shape = values.shape});
    };
    NamedValues inputs{{"input_ids", input("input_ids", kIds)}};
    if (padding != Padding::kMask) inputs.emplace_back("input_ids.length", input("input_ids.length", kLengths));
    if (padding != Padding::kLengths) {
      const RefArray ones{kMask.shape, std::vector<double>(kMask.v.size(), 1)};
      inputs.emplace_back("attention_mask", input("attention_mask", padding == Padding::kMask ? kMask : ones));
    }
    if (c.type != "distilbert" && c.type != "roberta") inputs.emplace_back("token_type_ids", input("token_type_ids", kTypes));
    outputs = build_model(b, model_of(c), inputs);
    const auto weighted = [&](Value x, double step, bool masked) {
      RefArray weights{x.shape(), {}};
      const int64_t row = x.shape().elements() / 12;
      for (int64_t i = 0; i < x.shape().elements(); ++i)
        weights.v.push_back(step * static_cast<double>(i) * (masked ? kMask.v[static_cast<size_t>(i / row)] : 1));
      const std::string name = cat("weights", feeds.size());
      feeds[name] = weights;
      return sum(mul(x, b.input(name, x.type())));
    };
    const auto entropy = [&](Value logits, const std::string& name, const RefArray& target) {
      const Component loss_of = over_last_dimension(make_loss("cross_entropy"));
      return build_loss(b, loss_of, logits, input(name, target));
    };
    if (c.head == "none") {
      loss = weighted(outputs[0].second, 0.1, true);
      if (outputs.size() > 1) loss = add(loss, weighted(outputs[1].second, 0.1, false));
    } else if (c.head == "embedding") {
      loss = weighted(outputs[0].second, 1, false);
    } else if (c.head == "replaced_tokens") {
      loss = weighted(outputs[0].second, 1, true);
    } else if (c.head == "question_answering") {
      loss = affine(add(entropy(outputs[0].second, "start", {{2}, {1, 0}}), entropy(outputs[1].second, "end", {{2}, {4, 2}})), 0.5);
    } else {
      loss = entropy(outputs[0].second, "target", kTargets.at(c.head));
    }
    specs = b.take_parameters();
    for (const ParameterSpec& spec : specs) feeds[spec.name] = value_of(spec);
  }
  Graph graph;
  std::map<std::string, RefArray> feeds;
  NamedValues outputs;
  Value loss;
  std::vector<ParameterSpec> specs;
};

/// Both sides compute in double; the file has 14 digits. Gradients that are 0 but for rounding are far below 1.
void expect_close(const std::string& what, const RefArray& got, const RefArray& expected, double tolerance = 1e-12) {
  ASSERT_EQ(got.shape, expected.shape) << what;
  double largest = 1;
  for (const double x : expected.v) largest = std::max(largest, std::abs(x));
  for (int64_t i = 0; i < expected.shape.elements(); ++i) {
    if (!(std::abs(got[i] - expected[i]) <= tolerance * largest))
      ADD_FAILURE() << what << " element " << i << " is " << got[i] << ", of transformers " << expected[i];
  }
}

TEST(Encoder, OutputsLossAndGradientsAreThoseOfTransformers) {
  for (const GoldenCase& c : golden_cases()) {
    for (const auto& [padding, name] :
         {std::pair(Padding::kMask, " by attention_mask"), {Padding::kLengths, " by lengths"}, {Padding::kBoth, " by both"}}) {
      SCOPED_TRACE(c.name + name);
      Captured model(c, padding, DType::kF64);
      std::vector<ValueId> parameters;
      for (const ParameterSpec& spec : model.specs) parameters.push_back(model.graph.find_input(spec.name));
      const std::map<ValueId, ValueId> gradients = differentiate(model.graph, model.loss.id(), parameters);
      const std::map<ValueId, RefArray> values = interpret(model.graph, model.feeds);
      for (const auto& [name, value] : model.outputs) expect_close(name, values.at(value.id()), c.arrays.at(name));
      expect_close("loss", values.at(model.loss.id()), c.arrays.at("loss"));
      size_t compared = 0;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto golden = c.arrays.find("d_" + model.specs[i].name);
        if (golden == c.arrays.end()) continue;
        ++compared;
        expect_close(golden->first, values.at(gradients.at(parameters[i])), golden->second);
      }
      size_t wanted = 0;
      for (const auto& [name, array] : c.arrays) wanted += name.starts_with("d_");
      EXPECT_EQ(compared, wanted);
      if (c.head == "masked_lm") {
        EXPECT_EQ(compared, model.specs.size()) << "parameters that transformers does not have";
      }
    }
  }
}

TEST(Encoder, FiveStepsOfAdamWAreThoseOfTransformers) {
  for (const GoldenCase& c : golden_cases()) {
    if (c.head != "masked_lm") continue;
    SCOPED_TRACE(c.name);
    Captured model(c, Padding::kLengths, DType::kF32);
    model.graph.add_output("loss", model.loss);
    AdamW adamw;
    adamw.eps = 1e-4;
    TrainingPasses passes;
    for (const ParameterSpec& spec : model.specs) passes.trained.push_back(spec.name);
    UpdateOptions options;
    options.groups = resolve_groups(adamw);
    passes.updates = [&](Graph& graph, const GradientMap& gradients) { add_updates(graph, gradients, options); };
    const std::shared_ptr<const Backend> backend = open_backend();
    training_passes(model.graph, *backend, passes);
    const auto program = compile(std::move(model.graph), {.backend = backend});
    ParameterStore store;
    store.declare(*program);
    for (const ParameterSpec& spec : model.specs) store.set(spec.name, test::to_tensor(spec.type, value_of(spec)));
    Execution run(program, store);
    for (const auto& [name, values] : model.feeds) {
      if (run.takes(name) && !store.has(name)) run.feed(name, test::to_tensor({.dtype = DType::kI64, .shape = values.shape}, values));
    }
    run.set("lr." + options.groups.groups[0].name, 0.01);
    for (int step = 1; step <= 5; ++step) {
      run.set("step", step);
      run.run();
    }
    // An error of 1e-7 in a small gradient is one of lr / eps = 100 times that in a step, and there are five.
    for (const ParameterSpec& spec : model.specs)
      expect_close("p_" + spec.name, to_ref(store.get(spec.name)), c.arrays.at("p_" + spec.name), 1e-4);
  }
}

/// Tokens after the end change nothing, and neither does the room for them.
TEST(Encoder, PaddingChangesNoResult) {
  for (const GoldenCase& c : golden_cases()) {
    if (c.head != "embedding" && c.head != "sequence_classification" && c.head != "none") continue;
    SCOPED_TRACE(c.name);
    const auto results = [&](int64_t room, double filler) {
      Graph graph;
      Builder b(graph, {.mode = Mode::kEvaluation, .dtype = DType::kF64});
      RefArray ids{{1, room}, {6, 3, 5, 2}};
      ids.v.resize(static_cast<size_t>(room), filler);
      std::map<std::string, RefArray> feeds{{"input_ids", ids}, {"input_ids.length", {{1}, {4}}}};
      const NamedValues outputs = build_model(
          b, model_of(c),
          {{"input_ids", b.input("input_ids", test::i64({1, room}))}, {"input_ids.length", b.input("input_ids.length", test::i64({1}))}});
      for (const ParameterSpec& spec : b.parameters()) feeds[spec.name] = value_of(spec);
      RefArray result = interpret(graph, feeds).at(outputs[0].second.id());
      if (c.head == "none") {
        result.shape = {1, 4, 4};
        result.v.resize(16);
      }
      return result;
    };
    const RefArray alone = results(4, 0);
    for (const double filler : {0.0, 1.0, 7.0}) expect_close(cat("filled with ", filler), results(6, filler), alone);
  }
}

TEST(Encoder, MistakesAreNamed) {
  const auto error_of = [](const std::map<std::string, double>& settings, const Shape& ids, const Shape& types) -> std::string {
    Graph graph;
    Builder b(graph);
    Component model = default_model("roberta");
    for (const auto& [key, value] : settings) {
      Setter setter(key, {value});
      model.params->options(setter);
    }
    NamedValues inputs{{"input_ids", b.input("input_ids", {.dtype = DType::kI64, .shape = ids})}};
    inputs.emplace_back("token_type_ids", b.input("token_type_ids", {.dtype = DType::kI64, .shape = types}));
    try {
      build_model(b, model, inputs);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(error_of({}, {2, 513}, {2, 513}).find("513 tokens, more than the 512"), std::string::npos);
  EXPECT_NE(error_of({}, {2, 4}, {2, 5}).find("`token_type_ids` is i64 [2,5], but input_ids is i64 [2,4]"), std::string::npos);
  EXPECT_NE(error_of({}, {4}, {4}).find("must be integers [N,T]"), std::string::npos);
  EXPECT_NE(error_of({{"num_attention_heads", 7}}, {2, 4}, {2, 4}).find("not a multiple of num_attention_heads=7"), std::string::npos);
  EXPECT_NE(error_of({{"head", 6}}, {2, 4}, {2, 4}).find("[roberta] has no head replaced_tokens"), std::string::npos);
}

}  // namespace
}  // namespace galley
