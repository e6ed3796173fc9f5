// GPT-2 (Radford et al. 2019) and GPT-Neo (Black et al. 2021) with the options and parameters of hub folders. Files of GPT-2 have matrices
// as [in,out] (transformers' Conv1D); they are transposed when a folder is loaded (weights/hub_decoders.cpp), so that they are linear
// layers here, as in every other model.

#include <cmath>

#include "libcore/nn/attention.h"
#include "libcore/nn/decoder_parts.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

using decoder::HiddenActivation;
using decoder::Linear;

/// Of both models.
struct GptOptions : LanguageModelParams, decoder::HeadParams {
  std::optional<int64_t> vocab_size, block_size;
  HiddenActivation activation_function = HiddenActivation::kGeluNew;
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  bool tie_word_embeddings = true;

  std::string_view vocabulary_key() const override { return "vocab_size"; }
  std::optional<int64_t>& vocabulary() override { return vocab_size; }

 protected:
  void visit(OptionVisitor& v) {
    v.option(
        {.name = "vocab_size", .doc = "rows of the token embedding; default: tokens of data.tokenizer, 256 (bytes) without one", .min = 1},
        vocab_size);
    v.option({.name = "block_size", .doc = "the longest sequence, and the length of a sample of data; default: all positions", .min = 1},
             block_size);
    v.choice({.name = "activation_function", .doc = "of the MLP"}, activation_function, decoder::kHiddenActivationNames);
    v.option({.name = "layer_norm_epsilon", .doc = "added to the variance", .min = 0}, layer_norm_epsilon);
    v.option({.name = "initializer_range", .doc = "deviation of initial weights", .min = 0}, initializer_range);
    v.option({.name = "tie_word_embeddings", .doc = "whether the head uses the token embedding"}, tie_word_embeddings);
    visit_head(v);
  }
};

struct Gpt2Params : OptionsOf<Gpt2Params>, GptOptions {
  int64_t n_layer = 12, n_head = 12, n_embd = 768, n_positions = 1024;
  std::optional<int64_t> n_inner;
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
  bool scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false;
  void options(OptionVisitor& v) override {
    v.option({.name = "n_layer", .doc = "transformer blocks", .min = 1}, n_layer);
    v.option({.name = "n_head", .doc = "attention heads; they divide n_embd", .min = 1}, n_head);
    v.option({.name = "n_embd", .doc = "features of a token", .min = 1}, n_embd);
    v.option({.name = "n_inner", .doc = "features inside the MLP; default: 4 n_embd", .min = 1}, n_inner);
    v.option({.name = "n_positions", .doc = "rows of the position embedding", .min = 1}, n_positions);
    v.option({.name = "resid_pdrop", .doc = "dropout of the output of each branch", .min = 0, .max = 1}, resid_pdrop);
    v.option({.name = "embd_pdrop", .doc = "dropout of embeddings", .min = 0, .max = 1}, embd_pdrop);
    v.option({.name = "attn_pdrop", .doc = "dropout of attention weights", .min = 0, .max = 1}, attn_pdrop);
    v.option({.name = "scale_attn_weights", .doc = "whether scores are divided by the root of a head's features"}, scale_attn_weights);
    v.option({.name = "scale_attn_by_inverse_layer_idx", .doc = "whether scores of layer i are also divided by i + 1"},
             scale_attn_by_inverse_layer_idx);
    visit(v);
  }
  int64_t context() const { return block_size.value_or(n_positions); }
  double scale(int64_t layer) const {
    const double root = scale_attn_weights ? 1 / std::sqrt(static_cast<double>(n_embd / n_head)) : 1;
    return scale_attn_by_inverse_layer_idx ? root / static_cast<double>(layer + 1) : root;
  }
};

struct GptNeoParams : OptionsOf<GptNeoParams>, GptOptions {
  int64_t num_layers = 24, num_heads = 16, hidden_size = 2048, max_position_embeddings = 2048, window_size = 256;
  std::optional<int64_t> intermediate_size;
  std::vector<std::string> attention_layers;
  double resid_dropout = 0, embed_dropout = 0, attention_dropout = 0;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_layers", .doc = "transformer blocks", .min = 1}, num_layers);
    v.option({.name = "num_heads", .doc = "attention heads; they divide hidden_size", .min = 1}, num_heads);
    v.option({.name = "hidden_size", .doc = "features of a token", .min = 1}, hidden_size);
    v.option({.name = "intermediate_size", .doc = "features inside the MLP; default: 4 hidden_size", .min = 1}, intermediate_size);
    v.option({.name = "max_position_embeddings", .doc = "rows of the position embedding", .min = 1}, max_position_embeddings);
    v.option({.name = "attention_layers", .doc = "of each layer: global, or local with a window; default: global, local, global, ..."},
             attention_layers);
    v.option({.name = "window_size", .doc = "tokens to which a token of a local layer attends, itself included", .min = 1}, window_size);
    v.option({.name = "resid_dropout", .doc = "dropout of the output of each branch", .min = 0, .max = 1}, resid_dropout);
    v.option({.name = "embed_dropout", .doc = "dropout of embeddings", .min = 0, .max = 1}, embed_dropout);
    v.option({.name = "attention_dropout", .doc = "dropout of attention weights", .min = 0, .max = 1}, attention_dropout);
    visit(v);
  }
  int64_t context() const { return block_size.value_or(max_position_embeddings); }
  int64_t window(int64_t layer) const {
    const bool local = attention_layers.empty() ? layer % 2 == 1 : attention_layers[static_cast<size_t>(layer)] == "local";
    return local ? window_size : 0;
  }
};

/// x [...,in] -> [...,out].
Value dense(Builder& b, std::string_view name, Value x, int64_t out, double stddev) {
  return Linear::declare(b, name, x.shape()[-1], out, true, stddev)(b, x);
}

/// Token and position embeddings.
Value embed(Builder& b, const decoder::Inputs& inputs, Value tokens, Value positions) {
  return add(embedding(tokens, inputs.tokens), decoder::positions_of(b, positions, inputs.positions, inputs.tokens.shape()));
}

/// tokens [N,T] -> logits [N,T,vocab_size]; with a cache (nn/attention.h) [N,vocab_size].
NamedValues gpt2(Builder& b, const Options& options, const NamedValues& given) {
  const auto& p = params_of<Gpt2Params>(options);
  const decoder::Inputs inputs = decoder::Inputs::of(given);
  GALLEY_CHECK(p.n_embd % p.n_head == 0, "[gpt2] n_embd=", p.n_embd, " is not a multiple of n_head=", p.n_head);
  GALLEY_CHECK(p.context() <= p.n_positions, "[gpt2] block_size=", p.context(), " is more than n_positions=", p.n_positions);
  decoder::check_tokens("gpt2", inputs.tokens, p.context());
  // Those that add to the residual stream are smaller by the root of their number.
  const double stddev = p.initializer_range, residual = stddev / std::sqrt(2.0 * static_cast<double>(p.n_layer));
  const LayerNormOptions norm{.eps = p.layer_norm_epsilon};
  const Value documents = document_bias(inputs.positions);
  Value table, x;
  {
    const auto transformer = b.scope("transformer");
    table = decoder::embedding_table(b, "wte", p.tokens(), p.n_embd, stddev);
    const Value positions = decoder::embedding_table(b, "wpe", p.n_positions, p.n_embd, stddev);
    x = b.dropout("drop", embed(b, inputs, table, positions), p.embd_pdrop);
    for (int64_t i = 0; i < p.n_layer; ++i) {
      const auto block = b.scope(cat("h.", i));
      Value y = b.layer_norm("ln_1", x, norm);
      {
        const auto module = b.scope("attn");
        y = self_attention(b, dense(b, "c_attn", y, 3 * p.n_embd, stddev),
                           {.heads = p.n_head, .causal = true, .dropout = p.attn_pdrop, .scale = p.scale(i), .bias = documents});
        x = add(x, b.dropout("resid_dropout", dense(b, "c_proj", y, p.n_embd, residual), p.resid_pdrop));
      }
      y = b.layer_norm("ln_2", x, norm);
      const auto module = b.scope("mlp");
      y = decoder::activate(dense(b, "c_fc", y, p.n_inner.value_or(4 * p.n_embd), stddev), p.activation_function);
      x = add(x, b.dropout("dropout", dense(b, "c_proj", y, p.n_embd, residual), p.resid_pdrop));
    }
    if (b.cache() > 0) x = last_tokens(b, x);
    x = b.layer_norm("ln_f", x, norm);
  }
  if (p.classifies()) return {{"logits", decoder::classify(b, x, inputs, p.num_labels, stddev)}};
  return {{"logits", decoder::head(b, x, table, p.tie_word_embeddings, stddev)}};
}

NamedValues gpt_neo(Builder& b, const Options& options, const NamedValues& given) {
  const auto& p = params_of<GptNeoParams>(options);
  const decoder::Inputs inputs = decoder::Inputs::of(given);
  GALLEY_CHECK(p.hidden_size % p.num_heads == 0, "[gpt_neo] hidden_size=", p.hidden_size, " is not a multiple of num_heads=", p.num_heads);
  GALLEY_CHECK(p.context() <= p.max_position_embeddings, "[gpt_neo] block_size=", p.context(),
               " is more than max_position_embeddings=", p.max_position_embeddings);
  GALLEY_CHECK(p.attention_layers.empty() || std::ssize(p.attention_layers) == p.num_layers, "[gpt_neo] attention_layers has ",
               p.attention_layers.size(), " entries for num_layers=", p.num_layers);
  for (const std::string& type : p.attention_layers)
    GALLEY_CHECK(type == "global" || type == "local", "[gpt_neo] attention_layers has '", type, "'; known: global, local");
  decoder::check_tokens("gpt_neo", inputs.tokens, p.context());
  const int64_t width = p.hidden_size, head = width / p.num_heads;
  const double stddev = p.initializer_range;
  const LayerNormOptions norm{.eps = p.layer_norm_epsilon};
  const Value documents = document_bias(inputs.positions);
  Value table, x;
  {
    const auto transformer = b.scope("transformer");
    table = decoder::embedding_table(b, "wte", p.tokens(), width, stddev);
    const Value positions = decoder::embedding_table(b, "wpe", p.max_position_embeddings, width, stddev);
    x = b.dropout("drop", embed(b, inputs, table, positions), p.embed_dropout);
    for (int64_t i = 0; i < p.num_layers; ++i) {
      const auto block = b.scope(cat("h.", i));
      Value y = b.layer_norm("ln_1", x, norm);
      {
        const auto module = b.scope("attn.attention");
        const auto layer = [&](std::string_view name, bool bias) { return Linear::declare(b, name, width, width, bias, stddev); };
        const Linear key = layer("k_proj", false), value = layer("v_proj", false), query = layer("q_proj", false),
                     out = layer("out_proj", true);
        const auto heads = [&](Value z) { return reshape(z, {z.shape()[0], z.shape()[1], p.num_heads, head}); };
        y = causal_attention(b, heads(query(b, y)), heads(key(b, y)), heads(value(b, y)),
                             {.bias = documents, .window = p.window(i), .scale = 1, .dropout = p.attention_dropout});
        x = add(x, b.dropout("resid_dropout", out(b, y), p.resid_dropout));
      }
      y = b.layer_norm("ln_2", x, norm);
      const auto module = b.scope("mlp");
      const int64_t inner = p.intermediate_size.value_or(4 * width);
      y = decoder::activate(dense(b, "c_fc", y, inner, stddev), p.activation_function);
      x = add(x, b.dropout("dropout", dense(b, "c_proj", y, width, stddev), p.resid_dropout));
    }
    if (b.cache() > 0) x = last_tokens(b, x);
    x = b.layer_norm("ln_f", x, norm);
  }
  if (p.classifies()) return {{"logits", decoder::classify(b, x, inputs, p.num_labels, stddev)}};
  return {{"logits", decoder::head(b, x, table, p.tie_word_embeddings, stddev)}};
}

template <class Params>
ModelInfo info_of(std::string_view family, const Options& options) {
  const auto& p = params_of<Params>(options);
  return p.classifies() ? decoder::classifier_info(family, p.context(), p.num_labels) : decoder::info(family, p.context());
}
ModelInfo gpt2_info(const Options& options) { return info_of<Gpt2Params>("gpt2", options); }
ModelInfo gpt_neo_info(const Options& options) { return info_of<GptNeoParams>("gpt_neo", options); }

}  // namespace

ModelTable gpt2_models() {
  return {{{"gpt2", "GPT-2 (Radford et al. 2019) with the names of hub folders; default: 124M", make_options<Gpt2Params>},
           nullptr,
           gpt2_info,
           gpt2},
          {{"gpt_neo", "GPT-Neo (Black et al. 2021) with the names of hub folders; default: 1.3B", make_options<GptNeoParams>},
           nullptr,
           gpt_neo_info,
           gpt_neo}};
}

}  // namespace galley
