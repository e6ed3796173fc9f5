// Laws: the decoder models have the parameters of transformers' classes, and their logits, losses, gradients and AdamW steps
// (tests/golden/nn/decoders.txt, float64); rotary frequencies are transformers' for every scaling; with a key-value cache, the logits at
// every position are those of the whole sequence.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/attention.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/rotary.h"
#include "libcore/passes/differentiate.h"
#include "libcore/runtime/engine.h"
#include "tests/nn/decoder_golden.h"
#include "tests/nn/golden_training.h"
#include "tests/support/graphs.h"

namespace galley {
namespace {

/// The training pass in double.
struct TrainedDecoder : TrainingPass {
  explicit TrainedDecoder(const DecoderCase& c, LoraOptions lora = {}) : shape{2, c.tokens} {
    Builder b(graph, {.dtype = DType::kF64, .lora = std::move(lora)});
    const Value out = build_model(b, c.component(), b.input("tokens", {.dtype = DType::kI64, .shape = shape})).front().second;
    const Component cross_entropy = over_last_dimension(make_loss("cross_entropy"));
    logits = out.id();
    loss = build_loss(b, cross_entropy, out, b.input("targets", loss_target(cross_entropy, out.type()))).id();
    take_parameters(b);
  }
  void feed(const std::string& name) {
    auto [tokens, targets] = decoder_tokens(name, shape[1]);
    feeds["tokens"] = {shape, std::move(tokens)};
    feeds["targets"] = {shape, std::move(targets)};
  }
  Shape shape;
};

class Decoders : public testing::TestWithParam<DecoderCase> {};

TEST_P(Decoders, LogitsLossAndGradientsAreThoseOfTransformers) {
  TrainedDecoder model(GetParam());
  model.feed(GetParam().name);
  expect_golden_gradients(model, decoder_results().at(GetParam().name));
}

TEST_P(Decoders, FiveAdamWStepsAreThoseOfTransformers) {
  TrainedDecoder model(GetParam());
  const auto feed = [&](int step) { model.feed(GetParam().name + std::to_string(step)); };
  expect_golden_steps(model, decoder_results().at(GetParam().name), feed, "k_proj.bias");
}

// Adapters (LoRA) of PEFT on transformers' models: selectors find the layers, and logits, loss and gradients agree.
TEST(DecoderAdapters, AreThoseOfPeft) {
  const std::map<std::string, std::vector<std::string>> targets{
      {"gpt2", {"c_attn", "c_proj", "c_fc"}},
      {"gpt_neo", {"k_proj", "v_proj", "q_proj", "out_proj", "c_fc", "c_proj"}},
      {"llama2", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}},
      {"mistral", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
      {"qwen2", {"q_proj", "v_proj"}},
      {"qwen3", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}}};
  size_t cases = 0;
  for (const DecoderCase& c : decoder_cases()) {
    const auto names = targets.find(c.name);
    if (names == targets.end()) continue;
    SCOPED_TRACE(c.name);
    ++cases;
    const GoldenFile& want = decoder_results().at("lora_" + c.name);
    TrainedDecoder model(c, {.rank = 3, .alpha = 6, .selects = [&](std::string_view path) {
                               return std::any_of(names->second.begin(), names->second.end(),
                                                  [&](const std::string& name) { return path.ends_with("." + name) || path == name; });
                             }});
    model.feed(c.name);
    std::vector<ValueId> adapters;
    for (size_t i = 0; i < model.specs.size(); ++i)
      if (model.specs[i].module_type == kAdapterType) adapters.push_back(model.parameters[i]);
    const std::map<ValueId, ValueId> gradients = differentiate(model.graph, model.loss, adapters);
    const std::map<ValueId, RefArray> values = interpret(model.graph, model.feeds);
    expect_golden("logits", want.at("logits"), values.at(model.logits).v, 1e-10);
    expect_golden("loss", want.at("loss"), values.at(model.loss).v, 1e-10);
    EXPECT_EQ(want.size(), adapters.size() + 2);
    for (const ValueId adapter : adapters) {
      const std::string key = "grad:" + model.graph.value(adapter).name;
      ASSERT_TRUE(want.contains(key)) << key;
      expect_golden(key, want.at(key), values.at(gradients.at(adapter)).v, 1e-9);
    }
  }
  EXPECT_EQ(cases, targets.size());
}

INSTANTIATE_TEST_SUITE_P(Cases, Decoders, testing::ValuesIn(decoder_cases()), [](const auto& info) { return info.param.name; });

TEST(RotaryForm, FrequenciesAreThoseOfTransformers) {
  using enum RopeType;
  struct Form {
    std::string name;
    RopeParameters rope;
    int64_t tokens = 1, max_positions = 64;
  };
  const auto rope = [](RopeType type, const std::function<void(RopeParameters&)>& change) {
    RopeParameters made;
    made.rope_type = type;
    change(made);
    return made;
  };
  const auto factors = [](RopeParameters& r) {
    for (int i = 0; i < 8; ++i) r.short_factor.push_back(1 + i / 8.0), r.long_factor.push_back(2.0 + i);
    r.original_max_position_embeddings = 32;
  };
  // 12 of 16 values.
  const auto part = [&](RopeType type, std::optional<int64_t> original = {}) {
    return rope(type, [&](auto& r) {
      r.rope_theta = 1000, r.factor = 4, r.partial_rotary_factor = 0.8, r.original_max_position_embeddings = original;
    });
  };
  const std::vector<Form> forms{
      {"linear_part", part(kLinear), 100},
      {"dynamic_part", part(kDynamic), 100},
      {"yarn_part", part(kYarn, 16), 100},
      {"llama3_part", part(kLlama3, 32), 100},
      {"linear", rope(kLinear, [](auto& r) { r.factor = 3; })},
      {"dynamic_short", rope(kDynamic, [](auto& r) { r.factor = 2; }), 40},
      {"dynamic_long", rope(kDynamic, [](auto& r) { r.factor = 2; }), 100},
      {"yarn", rope(kYarn, [](auto& r) { r.factor = 4, r.original_max_position_embeddings = 64; })},
      {"yarn_mscale",
       rope(kYarn, [](auto& r) { r.factor = 40, r.original_max_position_embeddings = 4096, r.mscale = 1, r.mscale_all_dim = 0.8; })},
      {"yarn_bounds", rope(kYarn,
                           [](auto& r) {
                             r.rope_theta = 500, r.factor = 4, r.original_max_position_embeddings = 64, r.attention_factor = 1.5;
                             r.beta_fast = 8, r.beta_slow = 2, r.truncate = false;
                           })},
      {"llama3", rope(kLlama3, [](auto& r) { r.rope_theta = 500000, r.factor = 8, r.original_max_position_embeddings = 8192; }), 1, 131072},
      {"longrope_short", rope(kLongRope, factors), 32},
      {"longrope_long", rope(kLongRope, factors), 33},
      {"longrope_factor", rope(kLongRope, [&](auto& r) { factors(r), r.factor = 8; }), 33},
  };
  for (const Form& form : forms) {
    SCOPED_TRACE(form.name);
    const GoldenFile& want = decoder_results().at("rope_" + form.name);
    const RotaryForm got = rotary_form(form.rope, form.rope.rotated(16), form.max_positions, form.tokens);
    ASSERT_EQ(got.frequencies.size(), want.at("frequencies").values.size());
    EXPECT_NEAR(got.factor, want.at("factor").values[0], 1e-11);
    for (size_t i = 0; i < got.frequencies.size(); ++i) {
      const double expected = want.at("frequencies").values[i];
      EXPECT_NEAR(got.frequencies[i], expected, 1e-11 * expected) << i;
    }
  }
}

/// A model with heads of the width of the decode kernel, and weights that make every position count.
class CachedDecoder : public testing::TestWithParam<DecoderCase> {
 protected:
  static constexpr int64_t kRows = 3, kTokens = 40;

  Component component() const {
    const DecoderCase& c = GetParam();
    std::vector<DecoderOption> more;
    if (c.type == "gpt2")
      more = {{"n_embd", {32}}, {"n_positions", {kTokens}}};
    else if (c.type == "gpt_neo")
      more = {{"hidden_size", {32}}, {"max_position_embeddings", {kTokens}}, {"window_size", {7}}};
    else
      more = {{"head_dim", {16}}, {"block_size", {kTokens}}};
    if (c.type == "qwen2" || c.type == "mistral" || c.name == "phi3") more.push_back({"sliding_window", {7}});
    if (c.name.starts_with("llama") && c.name != "llama_dynamic") more.push_back({"max_position_embeddings", {kTokens}});
    for (const char* list : {"rope_parameters.short_factor", "rope_parameters.long_factor"}) {
      if (c.name == "phi3_long") more.push_back({list, {1, 1.1, 1.2, 2, 3, list[16] == 'l' ? 9.0 : 5.0}});
      if (c.name.starts_with("qwen3_")) more.push_back({list, {1, 1.1, 1.2, 1.3, 2, 3, 4, list[16] == 'l' ? 9.0 : 5.0}});
    }
    return c.component(more);
  }
  std::shared_ptr<const Program> program(Engine& engine, int64_t rows, int64_t tokens, int64_t capacity) {
    return engine.program(
        {.mode = cat("test ", capacity), .fields = {{"tokens", test::i64({rows, tokens})}}}, "test",
        [&] {
          Graph graph;
          Builder b(graph, {.mode = Mode::kEvaluation, .cache = capacity});
          graph.add_output("logits", build_model(b, component(), b.input("tokens", test::i64({rows, tokens}))).front().second);
          specs_ = b.take_parameters();
          return graph;
        },
        engine.has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
  }
  std::vector<ParameterSpec> specs_;
};

// Sequences of unequal length, padded on the right, in pieces of every kind: the logits after each piece are those of the whole sequence.
TEST_P(CachedDecoder, GivesTheLogitsOfTheWholeSequence) {
  const int64_t limit = model_info(component()).cache_switch;
  Tensor tokens(DType::kI64, {kRows, kTokens});
  for (int64_t i = 0; i < tokens.elements(); ++i) tokens.data_as<int64_t>()[i] = (i * i * 3 + i / 7) % kDecoderVocabulary;
  for (const char* device : {"cpu", "ref"}) {
    SCOPED_TRACE(device);
    Engine engine(open_backend(device, {.threads = 2}));
    engine.declare(*program(engine, kRows, kTokens, 0));
    for (const ParameterSpec& spec : specs_) {
      Tensor values(DType::kF32, spec.type.shape);
      values.from_doubles(golden_state(spec.name, spec.type.shape));
      engine.store().set(spec.name, values);
    }
    const auto whole = engine.bind(program(engine, kRows, kTokens, 0));
    whole->feed("tokens", tokens);
    whole->run();
    const Tensor expected = whole->output("logits");
    double largest = 0;
    for (int64_t i = 0; i < expected.elements(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(expected.data_as<float>()[i])));
    EXPECT_GT(largest, 0.5);
    using Pieces = std::vector<std::array<int64_t, kRows>>;
    for (const Pieces& pieces : std::vector<Pieces>{Pieces(kTokens, {1, 1, 1}),
                                                    {{40, 40, 40}},
                                                    {{16, 5, 1}, {1, 1, 1}, {3, 20, 4}, {20, 14, 34}},
                                                    {{2, 0, 3}, {0, 34, 0}, {3, 1, 1}}}) {
      const auto request = engine.carried();
      std::array<int64_t, kRows> done{};
      for (const std::array<int64_t, kRows>& piece : pieces) {
        const int64_t length = *std::max_element(piece.begin(), piece.end());
        Tensor input(DType::kI64, {kRows, length}), positions(DType::kI64, {kRows, length}), start(DType::kI64, {kRows}),
            last(DType::kI64, {kRows}), total(DType::kI64, {kRows});
        for (int64_t n = 0; n < kRows; ++n) {
          const int64_t from = done[static_cast<size_t>(n)], count = piece[static_cast<size_t>(n)];
          for (int64_t t = 0; t < length; ++t) {
            input.data_as<int64_t>()[n * length + t] = t < count ? tokens.data_as<int64_t>()[n * kTokens + from + t] : 7;
            positions.data_as<int64_t>()[n * length + t] = std::min(from + t, kTokens - 1);
          }
          start.data_as<int64_t>()[n] = count == 0 ? -1 : from;
          last.data_as<int64_t>()[n] = std::max<int64_t>(0, count - 1);
          total.data_as<int64_t>()[n] = kTokens;  // the frequencies of the whole sequence
          done[static_cast<size_t>(n)] += count;
        }
        const auto run = engine.bind(program(engine, kRows, length, kTokens), {.carried = request});
        run->feed("tokens", input);
        run->feed(cache_input::kStart, start);
        EXPECT_EQ(run->takes(cache_input::kLength), limit > 0);
        for (const auto& [name, value] : std::map<const char*, const Tensor*>{
                 {cache_input::kPositions, &positions}, {cache_input::kLast, &last}, {cache_input::kLength, &total}}) {
          if (run->takes(name)) run->feed(name, *value);
        }
        run->run();
        const Tensor got = run->output("logits");
        ASSERT_EQ(got.shape(), Shape({kRows, kDecoderVocabulary}));
        for (int64_t n = 0; n < kRows; ++n) {
          if (piece[static_cast<size_t>(n)] == 0) continue;
          const int64_t at = done[static_cast<size_t>(n)] - 1;
          for (int64_t v = 0; v < kDecoderVocabulary; ++v)
            ASSERT_NEAR(got.data_as<float>()[n * kDecoderVocabulary + v],
                        expected.data_as<float>()[(n * kTokens + at) * kDecoderVocabulary + v], 5e-5 * largest)
                << "row " << n << " position " << at;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CachedDecoder, testing::ValuesIn(decoder_cases()), [](const auto& info) { return info.param.name; });

/// Runs tokens [begin, end) of both rows, of sequences of `end` tokens, and returns the logits of the last one.
Tensor next_logits(Engine& engine, const std::shared_ptr<Carried>& request, const DecoderCase& c, int64_t begin, int64_t end,
                   const std::vector<double>& tokens, const std::function<void(const std::vector<ParameterSpec>&)>& initialize) {
  const int64_t rows = 2, length = end - begin;
  std::vector<ParameterSpec> specs;
  const auto program = engine.program(
      {.mode = "test", .fields = {{"tokens", test::i64({rows, length})}}}, "test",
      [&] {
        Graph graph;
        Builder b(graph, {.mode = Mode::kEvaluation, .cache = c.tokens});
        graph.add_output("logits", build_model(b, c.component(), b.input("tokens", test::i64({rows, length}))).front().second);
        specs = b.take_parameters();
        return graph;
      },
      engine.has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
  engine.declare(*program);
  initialize(specs);
  const auto run = engine.bind(program, {.carried = request});
  const auto feed = [&](const char* name, const Shape& shape, const std::function<int64_t(int64_t)>& value) {
    Tensor values(DType::kI64, shape);
    for (int64_t i = 0; i < values.elements(); ++i) values.data_as<int64_t>()[i] = value(i);
    if (run->takes(name)) run->feed(name, values);
  };
  feed("tokens", {rows, length},
       [&](int64_t i) { return static_cast<int64_t>(tokens[static_cast<size_t>(i / length * c.tokens + begin + i % length)]); });
  feed(cache_input::kPositions, {rows, length}, [&](int64_t i) { return begin + i % length; });
  feed(cache_input::kStart, {rows}, [&](int64_t) { return begin; });
  feed(cache_input::kLast, {rows}, [&](int64_t) { return length - 1; });
  feed(cache_input::kLength, {rows}, [&](int64_t) { return end; });
  run->run();
  return run->output("logits");
}

// Frequencies follow the number of tokens: a prompt of 4 or 9 tokens, then one token at a time, past a context of pretraining of 6.
TEST(DynamicRope, ContinuedTextsHaveTheLogitsOfTransformers) {
  for (const int64_t prompt : {4, 9}) {
    const std::string name = cat("dynamic_after_", prompt);
    const DecoderCase c{name,
                        "llama",
                        12,
                        {{"hidden_size", {12}},
                         {"intermediate_size", {20}},
                         {"num_hidden_layers", {2}},
                         {"num_attention_heads", {4}},
                         {"num_key_value_heads", {2}},
                         {"head_dim", {6}},
                         {"vocab_size", {static_cast<double>(kDecoderVocabulary)}},
                         {"max_position_embeddings", {6}},
                         {"rope_parameters.rope_type", {2}},
                         {"rope_parameters.rope_theta", {100}},
                         {"rope_parameters.factor", {2}}}};
    const GoldenEntry& want = decoder_results().at(name).at("logits");
    const std::vector<double> tokens = decoder_tokens(name, c.tokens).first;
    for (const char* device : {"cpu", "ref"}) {
      SCOPED_TRACE(cat(name, " on ", device));
      Engine engine(open_backend(device, {.threads = 2}));
      const auto request = engine.carried();
      const int64_t steps = c.tokens - prompt + 1;
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t begin = step == 0 ? 0 : prompt + step - 1, end = prompt + step;
        const Tensor got = next_logits(engine, request, c, begin, end, tokens, [&](const std::vector<ParameterSpec>& specs) {
          for (const ParameterSpec& spec : specs) {
            Tensor values(DType::kF32, spec.type.shape);
            values.from_doubles(golden_state(spec.name, spec.type.shape));
            engine.store().set(spec.name, values);
          }
        });
        for (int64_t i = 0; i < 2 * kDecoderVocabulary; ++i) {
          const int64_t row = i / kDecoderVocabulary, v = i % kDecoderVocabulary;
          ASSERT_NEAR(got.data_as<float>()[i], want.values[static_cast<size_t>((row * steps + step) * kDecoderVocabulary + v)], 2e-5)
              << "row " << row << ", " << end << " tokens";
        }
      }
    }
  }
}

std::string message_of(const Component& model, int64_t tokens = 4) {
  Graph graph;
  Builder b(graph);
  try {
    build_model(b, model, b.input("input", {.dtype = DType::kI64, .shape = {1, tokens}}));
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(DecoderMistakes, AreNamed) {
  const auto found = [](const std::string& type, const std::vector<DecoderOption>& options, int64_t tokens = 4) {
    return message_of(DecoderCase{"", type, tokens, options}.component(), tokens);
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  };
  expect(found("llama", {{"num_attention_heads", {7}}}), "hidden_size=4096 is not a multiple of num_attention_heads=7");
  expect(found("llama", {{"num_key_value_heads", {5}}}), "num_key_value_heads=5 does not divide num_attention_heads=32");
  expect(found("llama", {}, 3000), "3000 tokens, more than the context of 2048");
  expect(found("llama", {{"rope_parameters.rope_type", {4}}}), "rope_type llama3 needs a factor");
  expect(found("llama", {{"rope_parameters.rope_type", {5}}}), "short_factor has 0 numbers; 128 rotated values of a head need 64");
  expect(found("llama", {{"rope_parameters.partial_rotary_factor", {0.3}}, {"head_dim", {10}}}),
         "an even number of at least 2 values of a head, not 3 of 10 (partial_rotary_factor 0.3)");
  expect(found("llama", {{"rope_parameters.rope_type", {2}}, {"rope_parameters.partial_rotary_factor", {0.5}}, {"head_dim", {4}}}),
         "an even number of at least 4 values of a head, not 2 of 4 (partial_rotary_factor 0.5)");
  expect(found("qwen3", {{"layer_types", {}, {"full_attention"}}}), "layer_types has 1 entries for num_hidden_layers=32");
  expect(found("qwen2", {{"num_hidden_layers", {1}}, {"layer_types", {}, {"chunked"}}}), "layer_types has 'chunked'");
  expect(found("gpt2", {{"block_size", {2000}}}), "block_size=2000 is more than n_positions=1024");
  expect(found("gpt_neo", {{"num_layers", {1}}, {"attention_layers", {}, {"all"}}}), "attention_layers has 'all'");
}

}  // namespace
}  // namespace galley
