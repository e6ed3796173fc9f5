#pragma once
// The decoder models of tests/golden/nn/decoders.txt, and their results (make_decoders.py beside it).

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "libcore/nn/language_model.h"
#include "libcore/nn/zoo.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/set_option.h"
#include "tests/support/golden_weights.h"

namespace galley {

inline constexpr int64_t kDecoderVocabulary = 13;

struct DecoderOption {
  std::string name;
  std::vector<double> numbers;
  std::vector<std::string> words = {};
};

/// A model of tiny size: `case NAME` of the file.
struct DecoderCase {
  std::string name, type;
  int64_t tokens;  // of each of two rows
  std::vector<DecoderOption> options;

  Component component(const std::vector<DecoderOption>& more = {}) const {
    Component model = default_model(type);
    for (const std::vector<DecoderOption>* list : {&options, &more}) {
      for (const DecoderOption& option : *list) {
        Setter setter(option.name, option.numbers, option.words);
        model.params->options(setter);
        EXPECT_TRUE(setter.found) << type << " has no option " << option.name;
      }
    }
    return with_vocabulary(std::move(model), kDecoderVocabulary);
  }
};

inline void PrintTo(const DecoderCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<DecoderOption> joined(std::vector<DecoderOption> a, const std::vector<DecoderOption>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const std::vector<DecoderCase>& decoder_cases() {
  using Options = std::vector<DecoderOption>;
  static const Options llama{{"hidden_size", {12}},        {"intermediate_size", {20}},       {"num_hidden_layers", {2}},
                             {"num_attention_heads", {3}}, {"max_position_embeddings", {16}}, {"rope_parameters.rope_theta", {100}}};
  static const Options all_heads{{"num_key_value_heads", {3}}};
  static const Options grouped = joined(llama, {{"num_attention_heads", {4}}, {"num_key_value_heads", {2}}, {"head_dim", {6}}});
  static const Options qwen2 = joined(llama, {{"hidden_size", {16}}, {"num_attention_heads", {4}}, {"num_key_value_heads", {2}}});
  static const Options phi3 = joined(llama, {{"hidden_size", {24}},
                                             {"num_attention_heads", {4}},
                                             {"num_key_value_heads", {2}},
                                             {"rope_parameters.partial_rotary_factor", {0.75}}});
  static const Options gpt2{{"n_layer", {2}},     {"n_head", {2}},     {"n_embd", {8}},    {"n_positions", {12}},
                            {"resid_pdrop", {0}}, {"embd_pdrop", {0}}, {"attn_pdrop", {0}}};
  static const Options neo{
      {"num_layers", {2}}, {"num_heads", {2}}, {"hidden_size", {8}}, {"max_position_embeddings", {12}}, {"window_size", {3}}};
  const auto rope = [](double type) { return DecoderOption{"rope_parameters.rope_type", {type}}; };
  const Options factors{rope(5),
                        {"rope_parameters.short_factor", {1, 1.25, 1.5}},
                        {"rope_parameters.long_factor", {1.5, 3, 7}},
                        {"rope_parameters.original_max_position_embeddings", {6}}};
  const DecoderOption sliding{"sliding_window", {3}};
  static const std::vector<DecoderCase> all{
      {"gpt2", "gpt2", 7, gpt2},
      {"gpt2_variant", "gpt2", 7,
       joined(gpt2,
              {{"n_inner", {20}}, {"activation_function", {1}}, {"scale_attn_by_inverse_layer_idx", {1}}, {"tie_word_embeddings", {0}}})},
      {"gpt_neo", "gpt_neo", 9, neo},
      {"gpt_neo_variant", "gpt_neo", 9,
       joined(neo, {{"attention_layers", {}, {"local", "local"}},
                    {"intermediate_size", {12}},
                    {"activation_function", {4}},
                    {"tie_word_embeddings", {0}}})},
      {"llama2", "llama", 7, llama},
      {"llama3", "llama", 9,
       joined(grouped, {{"rms_norm_eps", {1e-5}},
                        {"tie_word_embeddings", {1}},
                        rope(4),
                        {"rope_parameters.rope_theta", {50}},
                        {"rope_parameters.factor", {8}},
                        {"rope_parameters.low_freq_factor", {1}},
                        {"rope_parameters.high_freq_factor", {4}},
                        {"rope_parameters.original_max_position_embeddings", {20}}})},
      {"llama_biases", "llama", 7,
       joined(grouped, {{"attention_bias", {1}}, {"mlp_bias", {1}}, {"hidden_act", {1}}, rope(1), {"rope_parameters.factor", {4}}})},
      {"llama_dynamic", "llama", 9, joined(llama, {{"max_position_embeddings", {6}}, rope(2), {"rope_parameters.factor", {2}}})},
      {"mistral", "mistral", 9, joined(grouped, {sliding})},
      {"qwen2", "qwen2", 9,
       joined(qwen2, {{"tie_word_embeddings", {1}},
                      {"use_sliding_window", {1}},
                      {"sliding_window", {4}},
                      {"layer_types", {}, {"full_attention", "sliding_attention"}},
                      rope(3),
                      {"rope_parameters.factor", {4}},
                      {"rope_parameters.original_max_position_embeddings", {8}}})},
      {"qwen3", "qwen3", 9, joined(grouped, {{"attention_bias", {1}}})},
      {"qwen3_long", "qwen3", 9, joined(grouped, factors)},
      {"qwen3_short", "qwen3", 6, joined(grouped, factors)},
      {"phi3", "phi3", 9, joined(phi3, {{"sliding_window", {4}}})},
      {"phi3_long", "phi3", 9,
       joined(phi3, {rope(5),
                     {"rope_parameters.short_factor", {1, 1.25}},
                     {"rope_parameters.long_factor", {1.5, 3}},
                     {"rope_parameters.original_max_position_embeddings", {6}}})},
  };
  return all;
}

/// Tokens (first) and targets of two rows, as make_decoders.py's tokens_of.
inline std::pair<std::vector<double>, std::vector<double>> decoder_tokens(const std::string& name, int64_t length) {
  const int64_t step = std::accumulate(name.begin(), name.end(), int64_t{0}) % 5 + 2;
  std::pair<std::vector<double>, std::vector<double>> made;
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t i = 0; i < length; ++i) {
      made.first.push_back(static_cast<double>((i * i * step + 3 * i + row * 5) % kDecoderVocabulary));
      made.second.push_back(static_cast<double>((i * step + 7 * row + 1) % kDecoderVocabulary));
    }
  }
  made.second.back() = -100;
  return made;
}

/// The results of each case of decoders.txt.
inline const std::map<std::string, GoldenFile>& decoder_results() {
  static const std::map<std::string, GoldenFile> all = read_golden_cases("nn/decoders");
  return all;
}

}  // namespace galley
