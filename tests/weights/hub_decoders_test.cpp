// Laws: config.json of a decoder becomes the recipe's model, with rotary positions as transformers 5 and earlier versions write them;
// generation_config.json gives the defaults of generation. What a model would compute otherwise than the file says is an error.
#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/weights/hub.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

constexpr const char* kLlama = R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 30, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": true)";
constexpr const char* kQwen2 = R"("architectures": ["Qwen2ForCausalLM"], "vocab_size": 30, "hidden_size": 8, "intermediate_size": 12,
  "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64)";
constexpr const char* kNeo = R"("architectures": ["GPTNeoForCausalLM"], "vocab_size": 30, "hidden_size": 8, "num_layers": 4, "num_heads": 2,
  "max_position_embeddings": 64, "activation_function": "gelu_new")";

class HubDecoders : public ::testing::Test {
 protected:
  void SetUp() override { make_folders(folder_ / "m"); }
  void generation(const std::string& text) { write_file(folder_ / "m/generation_config.json", text); }
  /// The recipe of a config.json of these keys and more.
  std::string recipe(const std::string& keys, const std::string& more = "") {
    write_file(folder_ / "m/config.json", "{" + keys + (more.empty() ? "" : ", " + more) + "}");
    return HubFolder(folder_ / "m").recipe();
  }
  std::string error(const std::string& keys, const std::string& more) {
    try {
      return "no error: " + recipe(keys, more);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.text();
    }
  }
  TemporaryFolder folder_;
};

void expect_decoder_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
}
void expect_lacks(const std::string& text, const std::string& part) {
  EXPECT_EQ(text.find(part), std::string::npos) << part << "\nis in\n" << text;
}

TEST_F(HubDecoders, RotaryPositionsOfBothForms) {
  expect_lacks(recipe(kLlama), "rope_parameters");
  expect_decoder_has(recipe(kLlama, R"("rope_theta": 500000.0)"), "rope_parameters: {rope_theta: 500000.0}\n");
  expect_decoder_has(recipe(kLlama, R"("rope_theta": 500000.0, "rope_scaling": null)"), "rope_parameters: {rope_theta: 500000.0}\n");
  expect_decoder_has(recipe(kLlama, R"("rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 4.0})"),
                     "rope_parameters: {rope_type: linear, factor: 4.0, rope_theta: 10000}\n");
  expect_decoder_has(
      recipe(kLlama, R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32})"),
      "{rope_type: llama3, factor: 8.0, original_max_position_embeddings: 32, low_freq_factor: 1.0, high_freq_factor: 4.0, "
      "rope_theta: 500000.0}");
  expect_decoder_has(
      recipe(kLlama,
             R"("rope_scaling": {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 3]}, "original_max_position_embeddings": 16)"),
      "{rope_type: longrope, short_factor: [1,1.5], long_factor: [2,3], original_max_position_embeddings: 16}");
  expect_decoder_has(recipe(kLlama, R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": false})"),
                     "{rope_type: yarn, factor: 4.0, truncate: false}");
  // By type of layer, the same for all.
  const std::string one = R"({"rope_type": "default", "rope_theta": 5000.0})", other = R"({"rope_type": "default", "rope_theta": 6000.0})";
  expect_decoder_has(recipe(kLlama, R"("rope_parameters": {"full_attention": )" + one + R"(, "sliding_attention": )" + one + "}"),
                     "{rope_type: default, rope_theta: 5000.0}");
  expect_decoder_has(error(kLlama, R"("rope_parameters": {"full_attention": )" + one + R"(, "sliding_attention": )" + other + "}"),
                     "other rotary parameters to some layers");
  expect_decoder_has(error(kLlama, R"("rope_scaling": {"type": "spiral"})"), "rope_scaling: rope_type is spiral");
  expect_decoder_has(error(kLlama, R"("rope_scaling": {"type": "linear", "factor": "4"})"), "rope_scaling.factor");
  // A part of each head, as transformers 5 and earlier versions say it.
  expect_decoder_has(recipe(kLlama, R"("partial_rotary_factor": 0.5)"), "rope_parameters: {partial_rotary_factor: 0.5}\n");
  expect_decoder_has(recipe(kLlama, R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 100})"),
                     "rope_parameters: {rope_type: default, rope_theta: 100, partial_rotary_factor: 0.25}\n");
  expect_lacks(recipe(kLlama, R"("partial_rotary_factor": 1.0)"), "rope_parameters");
  expect_decoder_has(error(kLlama, R"("partial_rotary_factor": 1.5)"),
                     "partial_rotary_factor: is 1.5; it must be more than 0 and at most 1");
}

// A folder of both forms: each key says the same.
TEST_F(HubDecoders, BothFormsOfRotaryPositionsAgree) {
  const std::string now = R"("rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5000.0}, "rope_scaling": )";
  expect_decoder_has(recipe(kLlama, now + R"({"type": "linear", "factor": 4.0})"), "{rope_type: linear, factor: 4, rope_theta: 5000.0}");
  expect_decoder_has(recipe(kLlama, now + "null"), "{rope_type: linear, factor: 4, rope_theta: 5000.0}");
  expect_decoder_has(error(kLlama, now + R"({"type": "linear", "factor": 8})"), "rope_scaling: differs from rope_parameters in factor");
  expect_decoder_has(error(kLlama, now + R"({"rope_type": "dynamic", "factor": 4})"), "differs from rope_parameters in rope_type");
  expect_decoder_has(error(kLlama, now + R"({"type": "linear", "factor": 4, "beta_fast": 2})"),
                     "differs from rope_parameters in beta_fast");
}

TEST_F(HubDecoders, Phi3) {
  const std::string keys = R"("architectures": ["Phi3ForCausalLM"], "vocab_size": 30, "hidden_size": 16, "intermediate_size": 12,
    "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 8192)";
  expect_decoder_has(recipe(keys, R"("sliding_window": 2047, "resid_pdrop": 0.1)"), "  type: phi3\n");
  expect_decoder_has(recipe(keys, R"("sliding_window": 2047, "resid_pdrop": 0.1)"), "  sliding_window: 2047\n  resid_pdrop: 0.1\n");
  // Its first files call longrope su or yarn. The default of the context of pretraining is 4096.
  for (const std::string type : {"su", "yarn", "longrope"}) {
    expect_decoder_has(recipe(keys, R"("rope_scaling": {"type": ")" + type + R"(", "short_factor": [1, 1], "long_factor": [2, 3]})"),
                       "{rope_type: longrope, short_factor: [1,1], long_factor: [2,3], original_max_position_embeddings: 4096}");
  }
}

TEST_F(HubDecoders, WindowsAreAbsentNullOrNumbers) {
  expect_lacks(recipe(kQwen2), "sliding_window");
  const std::string with_null = recipe(kQwen2, R"("sliding_window": null, "use_sliding_window": false, "max_window_layers": 28)");
  expect_decoder_has(with_null, "  sliding_window: null\n  use_sliding_window: false\n  max_window_layers: 28\n");
  expect_decoder_has(recipe(kQwen2, R"("sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"])"),
                     "  sliding_window: 16\n  layer_types: [\"full_attention\", \"sliding_attention\"]\n");
  expect_decoder_has(recipe(kNeo, R"("attention_types": [[["global", "local"], 2]])"),
                     R"(attention_layers: ["global", "local", "global", "local"])");
  expect_decoder_has(error(kNeo, R"("attention_types": [[["global"], 3]])"), "names 3 layers, but num_layers is 4");
  expect_decoder_has(error(kNeo, R"("attention_types": [[["global"], 100000000]])"), "it must be 1 to 10000");
}

TEST_F(HubDecoders, GenerationDefaults) {
  expect_lacks(recipe(kLlama), "predict");
  expect_decoder_has(recipe(kLlama, R"("eos_token_id": 2)"), "predict:\n  generate: {end_tokens: [2]}\n");
  generation(
      R"({"eos_token_id": [5, 7], "do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20,
          "repetition_penalty": 1.05, "bos_token_id": 1})");
  expect_decoder_has(recipe(kLlama, R"("eos_token_id": 2)"),
                     "generate: {temperature: 0.6, top_k: 20, top_p: 0.9, repetition_penalty: 1.05, end_tokens: [5, 7]}");
  generation(R"({"do_sample": true})");
  expect_decoder_has(recipe(kLlama), "generate: {temperature: 1, top_k: 50}");
  generation(R"({"do_sample": true, "top_k": null})");
  expect_decoder_has(recipe(kLlama), "generate: {temperature: 1}");
  generation(R"({"do_sample": false, "temperature": 0.6, "num_beams": 4, "max_new_tokens": 9})");
  expect_decoder_has(recipe(kLlama, R"("eos_token_id": 2)"), "generate: {beams: 4, max_new_tokens: 9, end_tokens: [2]}");
  generation(R"({"eos_token_id": "two"})");
  expect_decoder_has(error(kLlama, R"("x": 1)"), "eos_token_id: must be an integer");
  generation("{");
  expect_decoder_has(error(kLlama, R"("x": 1)"), "generation_config.json");
}

TEST_F(HubDecoders, WhatIsNotSupportedIsRefused) {
  expect_decoder_has(error(kLlama, R"("quantization_config": {"quant_method": "gptq"})"), "use the folder of the float model");
  expect_decoder_has(error(kQwen2, R"("hidden_act": "quick_gelu")"), "hidden_act: is quick_gelu");
  expect_decoder_has(recipe(kQwen2, R"("hidden_act": "swish")"), "hidden_act: \"silu\"");
}

}  // namespace
}  // namespace galley
