// Llama 2 and 3 (Touvron et al. 2023), Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025), Phi-3 (Abdin et al. 2024):
// decoders with RMS norms before each branch, rotary positions, grouped queries and SwiGLU. Options and parameters have the names of hub
// folders.

#include "libcore/nn/attention.h"
#include "libcore/nn/decoder_parts.h"
#include "libcore/nn/rotary.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/rms_norm.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

using decoder::HiddenActivation;
using decoder::Linear;

enum class LlamaFamily { kLlama, kMistral, kQwen2, kQwen3, kPhi3 };
constexpr std::array<std::string_view, 5> kFamilyNames{"llama", "mistral", "qwen2", "qwen3", "phi3"};

struct LlamaParams : OptionsOf<LlamaParams>, LanguageModelParams, decoder::HeadParams {
  LlamaFamily family = LlamaFamily::kLlama;  // of the kind, no option
  std::optional<int64_t> vocab_size;
  int64_t hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32, num_attention_heads = 32;
  std::optional<int64_t> num_key_value_heads, head_dim;
  int64_t max_position_embeddings = 2048;
  std::optional<int64_t> block_size;
  double rms_norm_eps = 1e-6;
  HiddenActivation hidden_act = HiddenActivation::kSilu;
  RopeParameters rope_parameters;
  bool attention_bias = false, mlp_bias = false, tie_word_embeddings = false;
  double attention_dropout = 0, resid_pdrop = 0;
  std::optional<int64_t> sliding_window;
  bool use_sliding_window = false;
  int64_t max_window_layers = 28;
  std::vector<std::string> layer_types;
  double initializer_range = 0.02;

  bool is(LlamaFamily other) const { return family == other; }
  bool qwen() const { return is(LlamaFamily::kQwen2) || is(LlamaFamily::kQwen3); }
  /// Whether one layer has the projections of queries, keys and values, and one those of gate and up.
  bool fused() const { return is(LlamaFamily::kPhi3); }
  void options(OptionVisitor& v) override;
  std::string_view vocabulary_key() const override { return "vocab_size"; }
  std::optional<int64_t>& vocabulary() override { return vocab_size; }

  int64_t key_value_heads() const { return num_key_value_heads.value_or(num_attention_heads); }
  int64_t width() const { return head_dim.value_or(hidden_size / num_attention_heads); }
  int64_t context() const { return block_size.value_or(rope_parameters.context(max_position_embeddings)); }
  /// The window of a layer; 0: none.
  int64_t window(int64_t layer) const;
  void check() const;
};

void LlamaParams::options(OptionVisitor& v) {
  v.option(
      {.name = "vocab_size", .doc = "rows of the token embedding; default: tokens of data.tokenizer, 256 (bytes) without one", .min = 1},
      vocab_size);
  v.option({.name = "hidden_size", .doc = "features of a token", .min = 1}, hidden_size);
  v.option({.name = "intermediate_size", .doc = "features inside the MLP", .min = 1}, intermediate_size);
  v.option({.name = "num_hidden_layers", .doc = "transformer blocks", .min = 1}, num_hidden_layers);
  v.option({.name = "num_attention_heads", .doc = "query heads", .min = 1}, num_attention_heads);
  v.option({.name = "num_key_value_heads", .doc = "heads of keys and values, which divide the query heads; default: as many", .min = 1},
           num_key_value_heads);
  v.option({.name = "head_dim", .doc = "features of a head; default: hidden_size / num_attention_heads", .min = 4}, head_dim);
  v.option({.name = "max_position_embeddings", .doc = "tokens of the longest sequence without scaled frequencies", .min = 1},
           max_position_embeddings);
  v.option(
      {.name = "block_size",
       .doc = "the longest sequence, and the length of a sample of data; default: max_position_embeddings, as rope_parameters scale it",
       .min = 1},
      block_size);
  v.option({.name = "rms_norm_eps", .doc = "added to the mean of squares", .min = 0}, rms_norm_eps);
  v.choice({.name = "hidden_act", .doc = "of the gate of the MLP"}, hidden_act, decoder::kHiddenActivationNames);
  v.section({.name = "rope_parameters", .doc = "rotary positions"}, rope_parameters);
  v.option({.name = "tie_word_embeddings", .doc = "whether the head uses the token embedding"}, tie_word_embeddings);
  v.option({.name = "attention_dropout", .doc = "of the attention weights", .min = 0, .max = 1}, attention_dropout);
  v.option({.name = "initializer_range", .doc = "deviation of initial weights", .min = 0}, initializer_range);
  visit_head(v);
  if (is(LlamaFamily::kLlama) || is(LlamaFamily::kQwen3))
    v.option({.name = "attention_bias", .doc = "whether the linear layers of attention have a bias"}, attention_bias);
  if (is(LlamaFamily::kLlama)) v.option({.name = "mlp_bias", .doc = "whether the linear layers of the MLP have a bias"}, mlp_bias);
  if (is(LlamaFamily::kPhi3))
    v.option({.name = "resid_pdrop", .doc = "dropout of the output of each branch", .min = 0, .max = 1}, resid_pdrop);
  if (is(LlamaFamily::kLlama)) return;
  v.option({.name = "sliding_window", .doc = "number of tokens that a token attends to, itself included; default: all before it", .min = 1},
           sliding_window);
  if (!qwen()) return;
  v.option({.name = "use_sliding_window", .doc = "whether sliding_window applies"}, use_sliding_window);
  v.option({.name = "max_window_layers", .doc = "the first layer with a window, where layer_types is empty", .min = 0}, max_window_layers);
  v.option({.name = "layer_types", .doc = "of each layer: full_attention or sliding_attention"}, layer_types);
}

int64_t LlamaParams::window(int64_t layer) const {
  if (is(LlamaFamily::kMistral) || is(LlamaFamily::kPhi3)) return sliding_window.value_or(0);
  if (!qwen()) return 0;
  const bool slides = layer_types.empty() ? use_sliding_window && layer >= max_window_layers
                                          : layer_types[static_cast<size_t>(layer)] == "sliding_attention";
  return slides && use_sliding_window ? sliding_window.value_or(0) : 0;
}

void LlamaParams::check() const {
  const std::string_view name = kFamilyNames[static_cast<size_t>(family)];
  GALLEY_CHECK(head_dim || hidden_size % num_attention_heads == 0, "[", name, "] hidden_size=", hidden_size,
               " is not a multiple of num_attention_heads=", num_attention_heads, "; set head_dim");
  GALLEY_CHECK(num_attention_heads % key_value_heads() == 0, "[", name, "] num_key_value_heads=", key_value_heads(),
               " does not divide num_attention_heads=", num_attention_heads);
  GALLEY_CHECK(layer_types.empty() || std::ssize(layer_types) == num_hidden_layers, "[", name, "] layer_types has ", layer_types.size(),
               " entries for num_hidden_layers=", num_hidden_layers);
  for (const std::string& type : layer_types)
    GALLEY_CHECK(type == "full_attention" || type == "sliding_attention", "[", name, "] layer_types has '", type,
                 "'; known: full_attention, sliding_attention");
}

struct Norm {
  std::string_view name;
  Value weight;
};

class LlamaBuilder {
 public:
  LlamaBuilder(Builder& b, const LlamaParams& params, const decoder::Inputs& inputs)
      : b_(b),
        p_(params),
        documents_(document_bias(inputs.positions)),
        rotation_(b, params.rope_parameters, params.width(), params.max_position_embeddings, inputs.tokens.shape(), inputs.positions) {}

  Value block(int64_t layer, Value x) {
    const auto module = b_.scope(cat("layers.", layer));
    // Declared in the order of published files, then applied.
    const Attention attention = declare_attention();
    const Mlp mlp = declare_mlp();
    const Norm before_attention = declare_norm("input_layernorm", p_.hidden_size);
    const Norm before_mlp = declare_norm("post_attention_layernorm", p_.hidden_size);
    x = add(x, b_.dropout("resid_attn_dropout", apply(attention, p_.window(layer), norm(before_attention, x)), p_.resid_pdrop));
    return add(x, b_.dropout("resid_mlp_dropout", apply(mlp, norm(before_mlp, x)), p_.resid_pdrop));
  }
  Norm declare_norm(std::string_view name, int64_t width) {
    const auto module = b_.scope(name);
    return {name, b_.parameter("weight", {width}, Init::ones(), "rms_norm")};
  }
  Value norm(const Norm& layer, Value x) {
    const auto module = b_.scope(layer.name);
    RmsNormAttrs attrs;
    attrs.eps = p_.rms_norm_eps;
    return rms_norm(x, layer.weight, attrs).y;
  }

 private:
  /// Layers of the same input, which are read one after another, or one layer that holds them all.
  struct Inner {
    std::vector<Linear> layers;
    std::vector<int64_t> widths;
  };
  struct Attention {
    Inner qkv;
    Linear o;
    std::optional<Norm> q_norm, k_norm;
  };
  struct Mlp {
    Inner gate_up;
    Linear down;
  };

  Linear declare(std::string_view name, int64_t in, int64_t out, bool bias) {
    return Linear::declare(b_, name, in, out, bias, p_.initializer_range);
  }
  Attention declare_attention() {
    const auto module = b_.scope("self_attn");
    const int64_t queries = p_.num_attention_heads * p_.width(), keys = p_.key_value_heads() * p_.width();
    const auto out = [&](bool bias) { return declare("o_proj", queries, p_.hidden_size, bias); };
    if (p_.fused()) {
      const Linear o = out(false);
      return {{{declare("qkv_proj", p_.hidden_size, queries + 2 * keys, false)}, {queries, keys, keys}}, o, {}, {}};
    }
    const bool biases = p_.attention_bias || p_.is(LlamaFamily::kQwen2);
    Inner qkv{{declare("q_proj", p_.hidden_size, queries, biases), declare("k_proj", p_.hidden_size, keys, biases),
               declare("v_proj", p_.hidden_size, keys, biases)},
              {queries, keys, keys}};
    Attention made{std::move(qkv), out(p_.attention_bias), {}, {}};
    if (p_.is(LlamaFamily::kQwen3)) {
      made.q_norm = declare_norm("q_norm", p_.width());
      made.k_norm = declare_norm("k_norm", p_.width());
    }
    return made;
  }
  Mlp declare_mlp() {
    const auto module = b_.scope("mlp");
    const int64_t inner = p_.intermediate_size;
    Inner gate_up{{}, {inner, inner}};
    if (p_.fused()) {
      gate_up.layers.push_back(declare("gate_up_proj", p_.hidden_size, 2 * inner, false));
    } else {
      for (const std::string_view name : {"gate_proj", "up_proj"})
        gate_up.layers.push_back(declare(name, p_.hidden_size, inner, p_.mlp_bias));
    }
    return {std::move(gate_up), declare("down_proj", inner, p_.hidden_size, p_.mlp_bias)};
  }

  /// The results of each part, as `form` makes them.
  template <class Form>
  std::vector<Value> apply(const Inner& inner, Value x, const Form& form) {
    std::vector<Value> made;
    if (inner.layers.size() == inner.widths.size()) {
      for (const Linear& layer : inner.layers) made.push_back(form(layer(b_, x)));
      return made;
    }
    const Value all = inner.layers.front()(b_, x);
    int64_t at = 0;
    for (const int64_t width : inner.widths) {
      made.push_back(form(slice(all, 2, at, at + width)));
      at += width;
    }
    return made;
  }
  Value heads(Value x) const { return reshape(x, {x.shape()[0], x.shape()[1], x.shape()[2] / p_.width(), p_.width()}); }
  Value apply(const Attention& layer, int64_t window, Value x) {
    const auto module = b_.scope("self_attn");
    const std::vector<Value> qkv = apply(layer.qkv, x, [&](Value part) { return heads(part); });
    Value q = qkv[0], k = qkv[1];
    if (layer.q_norm) q = norm(*layer.q_norm, q), k = norm(*layer.k_norm, k);
    return layer.o(b_, causal_attention(b_, rotation_(q), rotation_(k), qkv[2],
                                        {.bias = documents_, .window = window, .dropout = p_.attention_dropout}));
  }
  Value apply(const Mlp& layer, Value x) {
    const auto module = b_.scope("mlp");
    const std::vector<Value> gate_up = apply(layer.gate_up, x, [](Value part) { return part; });
    if (p_.hidden_act == HiddenActivation::kSilu) return layer.down(b_, swiglu(gate_up[0], gate_up[1]));
    return layer.down(b_, mul(decoder::activate(gate_up[0], p_.hidden_act), gate_up[1]));
  }

  Builder& b_;
  const LlamaParams& p_;
  Value documents_;  // bias of attention
  Rotation rotation_;
};

/// tokens [N,T] -> logits [N,T,vocab_size]; with a cache (nn/attention.h) [N,vocab_size].
NamedValues llama(Builder& b, const Options& options, const NamedValues& given) {
  const auto& params = params_of<LlamaParams>(options);
  const decoder::Inputs inputs = decoder::Inputs::of(given);
  params.check();
  decoder::check_tokens(kFamilyNames[static_cast<size_t>(params.family)], inputs.tokens, params.context());
  Value table, x;
  {
    const auto model = b.scope("model");
    table = decoder::embedding_table(b, "embed_tokens", params.tokens(), params.hidden_size, params.initializer_range);
    LlamaBuilder layers(b, params, inputs);
    x = embedding(table, inputs.tokens);
    for (int64_t i = 0; i < params.num_hidden_layers; ++i) x = layers.block(i, x);
    if (b.cache() > 0) x = last_tokens(b, x);
    x = layers.norm(layers.declare_norm("norm", params.hidden_size), x);
  }
  if (params.classifies()) return {{"logits", decoder::classify(b, x, inputs, params.num_labels, params.initializer_range)}};
  return {{"logits", decoder::head(b, x, table, params.tie_word_embeddings, params.initializer_range)}};
}

ModelInfo llama_info(const Options& options) {
  const auto& params = params_of<LlamaParams>(options);
  const std::string_view family = kFamilyNames[static_cast<size_t>(params.family)];
  if (params.classifies()) return decoder::classifier_info(family, params.context(), params.num_labels);
  ModelInfo info = decoder::info(family, params.context());
  info.cache_switch = params.rope_parameters.switches_after(params.max_position_embeddings);
  info.cache_stretch = params.rope_parameters.rope_type == RopeType::kDynamic;
  return info;
}

std::unique_ptr<Options> make_llama() { return std::make_unique<LlamaParams>(); }
std::unique_ptr<Options> make_mistral() {
  auto params = std::make_unique<LlamaParams>();
  params->family = LlamaFamily::kMistral;
  params->intermediate_size = 14336;
  params->num_key_value_heads = 8;
  params->max_position_embeddings = 4096 * 32;
  params->sliding_window = 4096;
  return params;
}
template <LlamaFamily kFamily>
std::unique_ptr<Options> make_qwen() {
  auto params = std::make_unique<LlamaParams>();
  params->family = kFamily;
  params->intermediate_size = 22016;
  params->num_key_value_heads = 32;
  params->max_position_embeddings = 32768;
  params->sliding_window = 4096;
  if (kFamily == LlamaFamily::kQwen3) params->head_dim = 128;
  return params;
}

std::unique_ptr<Options> make_phi3() {
  auto params = std::make_unique<LlamaParams>();
  params->family = LlamaFamily::kPhi3;
  params->hidden_size = 3072;
  params->intermediate_size = 8192;
  params->max_position_embeddings = 4096;
  params->rms_norm_eps = 1e-5;
  return params;
}

}  // namespace

ModelTable llama_models() {
  return {
      {{"llama", "Llama 2 and 3 (Touvron et al. 2023) with the names of hub folders; default: Llama 2 7B", make_llama},
       nullptr,
       llama_info,
       llama},
      {{"mistral", "Mistral (Jiang et al. 2023) with the names of hub folders; default: 7B", make_mistral}, nullptr, llama_info, llama},
      {{"qwen2", "Qwen2 (Yang et al. 2024) with the names of hub folders", make_qwen<LlamaFamily::kQwen2>}, nullptr, llama_info, llama},
      {{"qwen3", "Qwen3 (Yang et al. 2025) with the names of hub folders", make_qwen<LlamaFamily::kQwen3>}, nullptr, llama_info, llama},
      {{"phi3", "Phi-3 and Phi-4-mini (Abdin et al. 2024) with the names of hub folders; default: Phi-3-mini", make_phi3},
       nullptr,
       llama_info,
       llama},
  };
}

}  // namespace galley
