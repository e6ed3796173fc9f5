// Hub folders of decoders: GPT-2, GPT-Neo, Llama, Mistral, Qwen2, Qwen3, Phi-3. Their options in recipes have config.json's names.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/weights/hub.h"

namespace galley {
namespace {

void decoder_activation(HubConfig& model, std::string_view key) {
  model.activation(key, key, {"silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"});
}

/// An option that is null where config.json says so: absent and null differ where the family has a default.
void nullable(HubConfig& model, std::string_view key) {
  if (model.config.has(key)) return model.integer(key);
  if (model.config.json().contains(key)) model.yaml(key, "null");
}

/// A list of texts.
void set_texts(HubConfig& model, const text::JsonNode& list, std::string_view option) {
  std::string yaml;
  for (const text::JsonNode& item : list.elements()) yaml += (yaml.empty() ? "" : ", ") + nlohmann::json(item.text()).dump();
  model.yaml(option, "[" + yaml + "]");
}

/// A number, with all its digits.
std::string number_text(const text::JsonNode& node) {
  static_cast<void>(node.number());  // throws for anything else
  return node.json().dump();
}

// ---- rotary positions

/// The rotary parameters below a key; nullopt: it is absent. Parameters by type of layer must be the same for all.
std::optional<text::JsonNode> rope_at(const text::JsonNode& config, std::string_view key) {
  if (!config.has(key)) return std::nullopt;
  text::JsonNode rope = config.at(key);
  if (!rope.json().is_object()) rope.fail("must be an object of keys and values");
  std::optional<text::JsonNode> first;
  for (const auto& [name, node] : rope.members()) {
    if (!node.json().is_object()) continue;
    if (first && first->json() != node.json())
      rope.fail("gives other rotary parameters to some layers, which this version does not support");
    first = node;
  }
  return first ? *first : rope;
}

std::string rope_type(const text::JsonNode& rope) { return rope.text("rope_type", rope.text("type", "default")); }

/// rope_parameters (transformers 5) or rope_scaling; nullopt: neither. Where config.json has both, keys of both must be the same, and only
/// rope_parameters may have the base and the part of the rotated features, which were keys of config.json itself.
std::optional<text::JsonNode> rope_of(const text::JsonNode& config) {
  const std::optional<text::JsonNode> now = rope_at(config, "rope_parameters"), before = rope_at(config, "rope_scaling");
  if (!now || !before) return now ? now : before;
  const auto same = [&](const std::string& key) {
    if (key == "type" || key == "rope_type") return rope_type(*now) == rope_type(*before);
    if (now->has(key) && before->has(key)) return now->at(key).json() == before->at(key).json();
    return key == "rope_theta" || key == "partial_rotary_factor" || now->has(key) == before->has(key);
  };
  for (const auto& members : {now->members(), before->members()}) {
    for (const auto& [key, node] : members) {
      if (!same(key)) before->fail(cat("differs from rope_parameters in ", key, "; config.json needs only one of the two"));
    }
  }
  return now;
}

/// `original`: the context of pretraining where a config.json with longrope does not name one; 0: the family has no such default.
void rotary(HubConfig& model, int64_t original = 0) {
  static constexpr std::array<std::string_view, 6> kTypes{"default", "linear", "dynamic", "yarn", "llama3", "longrope"};
  static constexpr std::array<std::string_view, 10> kNumbers{"factor",           "original_max_position_embeddings",
                                                             "attention_factor", "beta_fast",
                                                             "beta_slow",        "mscale",
                                                             "mscale_all_dim",   "low_freq_factor",
                                                             "high_freq_factor", "rope_theta"};
  const text::JsonNode& config = model.config;
  const std::optional<text::JsonNode> rope = rope_of(config);
  std::string yaml;
  const auto add = [&](std::string_view name, const std::string& value) { yaml += cat(yaml.empty() ? "" : ", ", name, ": ", value); };
  std::string type = "default";
  if (rope) {
    type = rope_type(*rope);
    if (type == "su" || (original > 0 && type == "yarn")) type = "longrope";  // its first names
    if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end())
      rope->fail(cat("rope_type is ", type, "; this version has default, linear, dynamic, yarn, llama3 and longrope"));
    add("rope_type", type);
    for (const std::string_view key : kNumbers) {
      if (!rope->has(key)) continue;
      if (key == "original_max_position_embeddings" && config.has(key)) continue;  // config.json's own takes precedence
      add(key, number_text(rope->at(key)));
    }
    if (rope->has("truncate")) add("truncate", rope->flag("truncate", true) ? "true" : "false");
    for (const std::string_view key : {"short_factor", "long_factor"}) {
      if (!rope->has(key)) continue;
      for (const text::JsonNode& item : rope->at(key).elements()) static_cast<void>(item.number());
      add(key, rope->at(key).json().dump());
    }
  }
  constexpr std::string_view kPart = "partial_rotary_factor";
  const text::JsonNode& has_part = rope && rope->has(kPart) ? *rope : config;
  if (has_part.has(kPart)) {
    const text::JsonNode part = has_part.at(kPart);
    if (!(part.number() > 0 && part.number() <= 1)) part.fail(cat("is ", number_text(part), "; it must be more than 0 and at most 1"));
    if (part.number() != 1) add(kPart, number_text(part));
  }
  const bool has_theta = rope && rope->has("rope_theta");
  if (!has_theta && config.has("rope_theta")) add("rope_theta", number_text(config.at("rope_theta")));
  const bool scaled = type == "yarn" || type == "llama3" || type == "longrope";
  if (scaled && config.has("original_max_position_embeddings"))
    add("original_max_position_embeddings", cat(config.at("original_max_position_embeddings").integer()));
  else if (type == "longrope" && original > 0 && !rope->has("original_max_position_embeddings"))
    add("original_max_position_embeddings", cat(original));
  if (!yaml.empty()) model.yaml("rope_parameters", "{" + yaml + "}");
}

// ---- families

/// The head of a classifier.
void head(HubConfig& model) {
  if (model.head == kLanguageModel) return;
  model.set("head", model.head);
  model.classes();
  model.classifier_task();
}

void llama_options(HubConfig& model, int64_t original_context = 0) {
  model.refuse_unsupported();
  for (const std::string_view key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"})
    model.required(key);
  model.integer("num_key_value_heads");
  model.integer("head_dim");
  if (!model.config.has("head_dim")) model.require_multiple("hidden_size", "num_attention_heads");
  if (model.config.has("num_key_value_heads")) model.require_multiple("num_attention_heads", "num_key_value_heads");
  model.number("rms_norm_eps");
  decoder_activation(model, "hidden_act");
  rotary(model, original_context);
  model.flag("tie_word_embeddings");
  model.number("attention_dropout");
  model.number("initializer_range");
  head(model);
}

void llama(HubConfig& model) {
  model.type = "llama";
  llama_options(model);
  model.flag("attention_bias");
  model.flag("mlp_bias");
}

void mistral(HubConfig& model) {
  model.type = "mistral";
  llama_options(model);
  nullable(model, "sliding_window");
}

void windows_of_layers(HubConfig& model) {
  nullable(model, "sliding_window");
  model.flag("use_sliding_window");
  model.integer("max_window_layers");
  if (model.config.has("layer_types")) set_texts(model, model.config.at("layer_types"), "layer_types");
}

void qwen2(HubConfig& model) {
  model.type = "qwen2";
  llama_options(model);
  windows_of_layers(model);
}

void qwen3(HubConfig& model) {
  model.type = "qwen3";
  llama_options(model);
  model.flag("attention_bias");
  windows_of_layers(model);
}

void phi3(HubConfig& model) {
  model.type = "phi3";
  llama_options(model, 4096);
  nullable(model, "sliding_window");
  model.number("resid_pdrop");
}

void gpt_options(HubConfig& model) {
  model.refuse_unsupported();
  model.required("vocab_size");
  decoder_activation(model, "activation_function");
  model.number("layer_norm_epsilon");
  model.number("initializer_range");
  model.flag("tie_word_embeddings");
  head(model);
}

void gpt2(HubConfig& model) {
  model.type = "gpt2";
  gpt_options(model);
  for (const std::string_view key : {"n_layer", "n_head", "n_embd"}) model.required(key);
  model.require_multiple("n_embd", "n_head");
  if (model.config.has("n_positions")) {
    model.required("n_positions");
  } else {
    model.required("n_ctx", "n_positions");
  }
  model.integer("n_inner");
  for (const std::string_view key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) model.number(key);
  model.flag("scale_attn_weights");
  model.flag("scale_attn_by_inverse_layer_idx");
}

/// attention_types: [[["global", "local"], 12]] is global, local, global, ... of 24 layers.
void attention_layers(HubConfig& model, int64_t layers) {
  if (model.config.has("attention_layers")) return set_texts(model, model.config.at("attention_layers"), "attention_layers");
  if (!model.config.has("attention_types")) return;
  constexpr int64_t kMost = 10000;  // layers of any model
  const text::JsonNode types = model.config.at("attention_types");
  std::string yaml;
  int64_t count = 0;
  for (const text::JsonNode& item : types.elements()) {
    const std::vector<text::JsonNode> parts = item.elements();
    if (parts.size() != 2) item.fail("must be a list of types and how often they repeat");
    const int64_t repeats = parts[1].integer();
    if (repeats < 1 || repeats > kMost) parts[1].fail(cat("is ", repeats, "; it must be 1 to ", kMost));
    for (int64_t i = 0; i < repeats && count <= kMost; ++i) {
      for (const text::JsonNode& type : parts[0].elements()) {
        yaml += (yaml.empty() ? "" : ", ") + nlohmann::json(type.text()).dump();
        ++count;
      }
    }
  }
  if (count != layers) types.fail(cat("names ", count, " layers, but num_layers is ", layers));
  model.yaml("attention_layers", "[" + yaml + "]");
}

void gpt_neo(HubConfig& model) {
  model.type = "gpt_neo";
  gpt_options(model);
  const int64_t layers = model.required("num_layers");
  for (const std::string_view key : {"num_heads", "hidden_size", "max_position_embeddings"}) model.required(key);
  model.require_multiple("hidden_size", "num_heads");
  attention_layers(model, layers);
  model.integer("intermediate_size");
  model.integer("window_size");
  for (const std::string_view key : {"resid_dropout", "embed_dropout", "attention_dropout"}) model.number(key);
}

/// Ids of eos_token_id, which is a number or a list of numbers.
std::string end_tokens(const text::JsonNode& config) {
  std::string ids;
  if (!config.has("eos_token_id")) return ids;
  const text::JsonNode eos = config.at("eos_token_id");
  const std::vector<text::JsonNode> list = eos.json().is_array() ? eos.elements() : std::vector<text::JsonNode>{eos};
  for (const text::JsonNode& id : list) {
    if (id.integer() < 0) id.fail("must be an id, at least 0");
    ids += cat(ids.empty() ? "" : ", ", id.integer());
  }
  return ids;
}

}  // namespace

HubTable hub_decoders() {
  const auto classes_of = [](std::string_view with_head, std::string_view bare, std::string_view classifier) {
    return decltype(HubFamily::architectures){{with_head, kLanguageModel}, {bare, kLanguageModel}, {classifier, "sequence_classification"}};
  };
  const HubTensors rotary_model{
      .base = "model", .ignore = {"*.rotary_emb.inv_freq", "lm_head.weight"}, .table = "embed_tokens.weight", .tied = "lm_head.weight"};
  return {
      {.model_type = "gpt2",
       .architectures = classes_of("GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"),
       .map = gpt2,
       .tensors = {.base = "transformer",
                   .ignore = {"*.attn.bias", "*.attn.masked_bias", "lm_head.weight"},
                   .transposed = {"*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight"},
                   .table = "wte.weight",
                   .tied = "lm_head.weight",
                   .width = "n_embd"}},
      {.model_type = "gpt_neo",
       .architectures = classes_of("GPTNeoForCausalLM", "GPTNeoModel", "GPTNeoForSequenceClassification"),
       .map = gpt_neo,
       .tensors = {.base = "transformer",
                   .ignore = {"*.attn.attention.bias", "*.attn.attention.masked_bias", "lm_head.weight"},
                   .table = "wte.weight",
                   .tied = "lm_head.weight"}},
      {.model_type = "llama",
       .architectures = classes_of("LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification"),
       .map = llama,
       .tensors = rotary_model},
      {.model_type = "mistral",
       .architectures = classes_of("MistralForCausalLM", "MistralModel", "MistralForSequenceClassification"),
       .map = mistral,
       .tensors = rotary_model},
      {.model_type = "qwen2",
       .architectures = classes_of("Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForSequenceClassification"),
       .map = qwen2,
       .tensors = rotary_model},
      {.model_type = "qwen3",
       .architectures = classes_of("Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification"),
       .map = qwen3,
       .tensors = rotary_model},
      {.model_type = "phi3",
       .architectures = classes_of("Phi3ForCausalLM", "Phi3Model", "Phi3ForSequenceClassification"),
       .map = phi3,
       .tensors = rotary_model},
  };
}

std::string hub_generation(const HubConfig& model) {
  const std::optional<text::JsonNode> defaults = model.file("generation_config.json");
  std::string yaml;
  const auto add = [&](std::string_view key, std::string_view option, bool whole) {
    if (!defaults->has(key)) return;
    const text::JsonNode node = defaults->at(key);
    yaml += cat(yaml.empty() ? "" : ", ", option, ": ", whole ? cat(node.integer()) : number_text(node));
  };
  if (defaults) {
    if (defaults->flag("do_sample", false)) {
      if (!defaults->has("temperature")) yaml = "temperature: 1";
      add("temperature", "temperature", false);
      if (!defaults->json().contains("top_k")) yaml += cat(yaml.empty() ? "" : ", ", "top_k: 50");  // transformers' default
      add("top_k", "top_k", true);
      add("top_p", "top_p", false);
      add("min_p", "min_p", false);
    } else if (defaults->integer("num_beams", 1) > 1) {
      add("num_beams", "beams", true);
    }
    add("repetition_penalty", "repetition_penalty", false);
    add("max_new_tokens", "max_new_tokens", true);
  }
  const std::string ends = defaults && defaults->has("eos_token_id") ? end_tokens(*defaults) : end_tokens(model.config);
  if (!ends.empty()) yaml += cat(yaml.empty() ? "" : ", ", "end_tokens: [", ends, "]");
  return yaml.empty() ? "" : cat("predict:\n  generate: {", yaml, "}\n");
}

}  // namespace galley
