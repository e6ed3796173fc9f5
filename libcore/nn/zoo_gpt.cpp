// GPT: the decoder-only transformer of GPT-2 (Radford et al. 2019) with minGPT's parameters and names.

#include <cmath>

#include "libcore/nn/attention.h"
#include "libcore/nn/capture.h"
#include "libcore/nn/decoder_parts.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

struct GptParams : OptionsOf<GptParams>, LanguageModelParams {
  int64_t n_layer = 12, n_head = 12, n_embd = 768;
  std::optional<int64_t> vocab_size;
  int64_t block_size = 1024;
  double dropout = 0.1;
  bool bias = true;
  bool tie_weights = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "n_layer", .doc = "transformer blocks", .min = 1}, n_layer);
    v.option({.name = "n_head", .doc = "attention heads; they divide n_embd", .min = 1}, n_head);
    v.option({.name = "n_embd", .doc = "features of a token", .min = 1}, n_embd);
    v.option({.name = "vocab_size", .doc = "size of the vocabulary; default: that of data.tokenizer, or 256 (bytes) without one", .min = 1},
             vocab_size);
    v.option({.name = "block_size", .doc = "largest length of a sequence, and the default length of a sample", .min = 1}, block_size);
    v.option({.name = "dropout", .doc = "dropout of embeddings, attention weights and the output of each branch", .min = 0, .max = 1},
             dropout);
    v.option({.name = "bias", .doc = "whether linear layers and layer norms have a bias"}, bias);
    v.option({.name = "tie_weights", .doc = "share the weight of the token embedding with the output layer (Press, Wolf 2017)"},
             tie_weights);
  }
  std::string_view vocabulary_key() const override { return "vocab_size"; }
  std::optional<int64_t>& vocabulary() override { return vocab_size; }
};

/// Weights are normal with a deviation of 0.02 (GPT-2); those that add to the residual stream are divided by the root of the
/// number of such layers.
InitRules initial(double scale = 1) { return {.linear_weight = Init::normal(0.02 * scale), .linear_bias = Init::zeros()}; }

class GptBuilder {
 public:
  GptBuilder(Builder& b, const GptParams& params, Value positions)
      : b_(b),
        params_(params),
        documents_(document_bias(positions)),
        residual_(initial(1 / std::sqrt(2.0 * static_cast<double>(params.n_layer)))) {}

  Value block(std::string_view name, Value x) {
    const auto module = b_.scope(name);
    x = add(x, attention(norm("ln_1", x)));
    return add(x, mlp(norm("ln_2", x)));
  }
  Value norm(std::string_view name, Value x) { return b_.layer_norm(name, x, {.bias = params_.bias}); }

 private:
  Value attention(Value x) {
    const auto module = b_.scope("attn");
    const auto init = b_.use_init(initial());
    const Value qkv = b_.linear("c_attn", x, {.out_features = 3 * params_.n_embd, .bias = params_.bias});
    return project("c_proj", "resid_dropout",
                   self_attention(b_, qkv, {.heads = params_.n_head, .causal = true, .dropout = params_.dropout, .bias = documents_}));
  }
  Value mlp(Value x) {
    const auto module = b_.scope("mlp");
    const auto init = b_.use_init(initial());
    GeluAttrs tanh;
    tanh.approximate = GeluApproximation::kTanh;
    x = gelu(b_.linear("c_fc", x, {.out_features = 4 * params_.n_embd, .bias = params_.bias}), tanh);
    return project("c_proj", "dropout", x);
  }
  Value project(std::string_view name, std::string_view dropout, Value x) {
    const auto init = b_.use_init(residual_);
    return b_.dropout(dropout, b_.linear(name, x, {.out_features = params_.n_embd, .bias = params_.bias}), params_.dropout);
  }

  Builder& b_;
  const GptParams& params_;
  Value documents_;  // bias of attention
  InitRules residual_;
};

/// tokens [N,T], T at most block_size -> logits [N,T,vocab_size]; with a cache (nn/attention.h) [N,vocab_size].
NamedValues gpt(Builder& b, const Options& options, const NamedValues& given) {
  const auto& params = params_of<GptParams>(options);
  const decoder::Inputs inputs = decoder::Inputs::of(given);
  Value x = inputs.tokens;
  const int64_t vocab = params.tokens(), width = params.n_embd;
  GALLEY_CHECK(x.shape().rank() == 2 && (x.dtype() == DType::kI64 || x.dtype() == DType::kI32),
               "[gpt] the input must be integers [N,T] (batch, tokens), it is ", x.type());
  decoder::check_length("gpt", x.shape()[1], params.block_size, cat("block_size=", params.block_size));
  GALLEY_CHECK(width % params.n_head == 0, "[gpt] n_embd=", width, " is not a multiple of n_head=", params.n_head);
  GptBuilder layers(b, params, inputs.positions);
  Value table;
  {
    const auto transformer = b.scope("transformer");
    {
      const auto module = b.scope("wte");
      table = b.parameter("weight", {vocab, width}, Init::normal(0.02), "embedding");
    }
    const auto positions = [&] {
      const auto module = b.scope("wpe");
      return b.parameter("weight", {params.block_size, width}, Init::normal(0.02), "embedding");
    }();
    const Value place = decoder::positions_of(b, positions, inputs.positions, x.shape());
    x = b.dropout("drop", add(embedding(table, x), place), params.dropout);
    for (int64_t i = 0; i < params.n_layer; ++i) x = layers.block(cat("h.", i), x);
    if (b.cache() > 0) x = last_tokens(b, x);
    x = layers.norm("ln_f", x);
  }
  if (!params.tie_weights) {
    const auto init = b.use_init(initial());
    return {{"logits", b.linear("lm_head", x, {.out_features = vocab, .bias = false})}};
  }
  const auto head = b.scope("lm_head");
  return {{"logits", linear(x, table)}};
}

ModelInfo gpt_info(const Options& options) {
  ModelInfo info{"gpt", ModelOutput::kTokens, {params_of<GptParams>(options).block_size}, {"T"}, {}};
  info.input_dtype = DType::kI64;
  info.cache = true;
  return info;
}

template <int64_t kLayers, int64_t kHeads, int64_t kWidth>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<GptParams>();
  params->n_layer = kLayers;
  params->n_head = kHeads;
  params->n_embd = kWidth;
  return params;
}

}  // namespace

ModelTable gpt_models() {
  return {{{"gpt", "GPT-2's transformer (Radford et al. 2019) with minGPT's names; default: GPT-2 124M", make<12, 12, 768>},
           nullptr,
           gpt_info,
           gpt}};
}

}  // namespace galley
