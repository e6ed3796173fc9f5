// The encoder-decoder transformer (Vaswani et al. 2017) with the options and parameter names of torch.nn.Transformer (module
// `transformer`), between embeddings with sinusoidal positions and a linear layer that gives logits.

#include "libcore/nn/zoo_transformer.h"

#include <array>
#include <cmath>

#include "libcore/nn/attention.h"
#include "libcore/nn/capture.h"
#include "libcore/nn/language_model.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/rotary.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"

namespace galley {
namespace {

enum class Activation { kRelu, kGelu };
constexpr std::array<std::string_view, 2> kActivationNames{"relu", "gelu"};

struct TransformerParams : OptionsOf<TransformerParams>, LanguageModelParams {
  int64_t d_model = 512, nhead = 8, num_encoder_layers = 6, num_decoder_layers = 6, dim_feedforward = 2048;
  double dropout = 0.1, layer_norm_eps = 1e-5;
  Activation activation = Activation::kRelu;
  bool norm_first = false, bias = true, tie_weights = true;
  std::optional<int64_t> vocab_size;
  int64_t max_length = 256;
  void options(OptionVisitor& v) override {
    v.option({.name = "d_model", .doc = "features of a token", .min = 1}, d_model);
    v.option({.name = "nhead", .doc = "attention heads; they divide d_model", .min = 1}, nhead);
    v.option({.name = "num_encoder_layers", .doc = "blocks that read the source", .min = 1}, num_encoder_layers);
    v.option({.name = "num_decoder_layers", .doc = "blocks that write the target", .min = 1}, num_decoder_layers);
    v.option({.name = "dim_feedforward", .doc = "features between the two linear layers of a block", .min = 1}, dim_feedforward);
    v.option({.name = "dropout",
              .doc = "dropout of embeddings, attention weights, activations and the output of each branch",
              .min = 0,
              .max = 1},
             dropout);
    v.choice({.name = "activation", .doc = "between the linear layers of a block"}, activation, kActivationNames);
    v.option({.name = "layer_norm_eps", .doc = "added to the variance in layer norms", .min = 0}, layer_norm_eps);
    v.option({.name = "norm_first", .doc = "normalize the input of each branch, not the sum after it"}, norm_first);
    v.option({.name = "bias", .doc = "whether linear layers and layer norms have a bias"}, bias);
    v.option({.name = "vocab_size", .doc = "tokens of the vocabulary; default: those of data.tokenizer, 256 (bytes) without one", .min = 1},
             vocab_size);
    v.option({.name = "tie_weights", .doc = "one table for both embeddings and the output layer (Vaswani et al. 2017)"}, tie_weights);
    v.option(
        {.name = "max_length", .doc = "longest source and longest target, and the default length of a sample", .unit = "tokens", .min = 1},
        max_length);
  }
  std::string_view vocabulary_key() const override { return "vocab_size"; }
  std::optional<int64_t>& vocabulary() override { return vocab_size; }
};

/// A layer norm whose parameters are declared before it is applied, as all layers here: the order of parameters is PyTorch's, and programs
/// of the encoder and of the decoder declare the same ones.
struct Norm {
  std::string_view name;
  Value weight, bias;
};
struct Dense {
  std::string_view name;
  LinearParameters parameters;
};
/// torch.nn.MultiheadAttention.
struct Heads {
  std::string_view name;
  Value weight, bias;  // of queries, keys and values
  Dense out;
};
/// TransformerEncoderLayer; a TransformerDecoderLayer also has `cross` and the third norm.
struct Layer {
  std::string path;
  Heads self, cross;
  Dense linear1, linear2;
  std::array<Norm, 3> norms;
};
/// What cross attention reads.
struct Memory {
  Value states;   // [N,S,E] of the encoder; absent in a program that continues sequences
  Value lengths;  // [N]; absent: all have S tokens
};

class TransformerBuilder {
 public:
  /// `memory`: tokens of sources.
  TransformerBuilder(Builder& b, const TransformerParams& params, int64_t memory) : b_(b), p_(params), memory_(memory) {
    const auto module = b.scope("transformer");
    for (int64_t i = 0; i < p_.num_encoder_layers; ++i) encoder_.push_back(declare_layer(cat("encoder.layers.", i), false));
    encoder_norm_ = declare_norm("encoder.norm");
    for (int64_t i = 0; i < p_.num_decoder_layers; ++i) decoder_.push_back(declare_layer(cat("decoder.layers.", i), true));
    decoder_norm_ = declare_norm("decoder.norm");
  }

  /// x [N,S,E] -> [N,S,E].
  Value encode(Value x, Value lengths) {
    const auto module = b_.scope("transformer");
    for (const Layer& layer : encoder_) {
      const auto block = b_.scope(layer.path);
      x = branch(x, layer.norms[0], "dropout1", [&](Value y) { return attend(layer.self, y, false, lengths); });
      x = branch(x, layer.norms[1], "dropout2", [&](Value y) { return feed_forward(layer, y); });
    }
    return norm(encoder_norm_, x);
  }
  /// x [N,T,E] -> [N,T,E]; of a program that continues sequences [N,E].
  Value decode(Value x, const Memory& memory) {
    const auto module = b_.scope("transformer");
    for (const Layer& layer : decoder_) {
      const auto block = b_.scope(layer.path);
      x = branch(x, layer.norms[0], "dropout1", [&](Value y) { return attend(layer.self, y, true, {}); });
      x = branch(x, layer.norms[1], "dropout2", [&](Value y) { return attend_to(layer.cross, y, memory); });
      x = branch(x, layer.norms[2], "dropout3", [&](Value y) { return feed_forward(layer, y); });
    }
    if (b_.cache() > 0) x = last_tokens(b_, x);
    return norm(decoder_norm_, x);
  }
  /// Writes the keys and values that the decoder reads of the encoder's result to the cache of the request.
  void store(Value states) {
    const auto module = b_.scope("transformer");
    const int64_t n = states.shape()[0];
    for (const Layer& layer : decoder_) {
      const auto block = b_.scope(layer.path);
      const auto heads = b_.scope(layer.cross.name);
      assign(carried_memory(n, states.dtype()), keys_and_values(layer.cross, states));
    }
  }

 private:
  int64_t width() const { return p_.d_model / p_.nhead; }
  Dense declare_linear(std::string_view name, int64_t out, int64_t in, bool attention) {
    const auto module = b_.scope(name);
    std::optional<Init> bias;
    // torch.nn.Transformer initializes all matrices by xavier_uniform_; biases of attention are 0, others torch.nn.Linear's.
    if (p_.bias) bias = attention ? Init::zeros() : Init::uniform(1 / std::sqrt(static_cast<double>(in)));
    return {name, b_.linear_parameters({out, in}, Init::xavier_uniform(in, out), bias)};
  }
  Heads declare_heads(std::string_view name) {
    const auto module = b_.scope(name);
    const int64_t e = p_.d_model;
    Heads heads{.name = name,
                .weight = b_.parameter("in_proj_weight", {3 * e, e}, Init::xavier_uniform(e, 3 * e), "attention"),
                .bias = {},
                .out = {}};
    if (p_.bias) heads.bias = b_.parameter("in_proj_bias", {3 * e}, Init::zeros(), "attention");
    heads.out = declare_linear("out_proj", e, e, true);
    return heads;
  }
  Norm declare_norm(std::string_view name) {
    const auto module = b_.scope(name);
    Norm made{name, b_.parameter("weight", {p_.d_model}, Init::ones(), "layer_norm"), {}};
    if (p_.bias) made.bias = b_.parameter("bias", {p_.d_model}, Init::zeros(), "layer_norm");
    return made;
  }
  Layer declare_layer(const std::string& path, bool decoder) {
    const auto module = b_.scope(path);
    Layer layer{.path = path, .self = declare_heads("self_attn"), .cross = {}, .linear1 = {}, .linear2 = {}, .norms = {}};
    if (decoder) layer.cross = declare_heads("multihead_attn");
    layer.linear1 = declare_linear("linear1", p_.dim_feedforward, p_.d_model, false);
    layer.linear2 = declare_linear("linear2", p_.d_model, p_.dim_feedforward, false);
    layer.norms = {declare_norm("norm1"), declare_norm("norm2"), decoder ? declare_norm("norm3") : Norm{}};
    return layer;
  }

  Value norm(const Norm& layer, Value x) {
    const auto module = b_.scope(layer.name);
    LayerNormAttrs attrs;
    attrs.eps = p_.layer_norm_eps;
    return layer_norm(x, layer.weight, layer.bias, attrs).y;
  }
  Value apply(const Dense& layer, Value x) {
    const auto module = b_.scope(layer.name);
    return b_.linear(x, layer.parameters);
  }
  template <class Branch>
  Value branch(Value x, const Norm& normed, std::string_view dropout, const Branch& of) {
    const Value y = b_.dropout(dropout, of(p_.norm_first ? norm(normed, x) : x), p_.dropout);
    return p_.norm_first ? add(x, y) : norm(normed, add(x, y));
  }
  Value feed_forward(const Layer& layer, Value x) {
    const Value y = apply(layer.linear1, x);
    return apply(layer.linear2, b_.dropout("dropout", p_.activation == Activation::kRelu ? relu(y) : gelu(y), p_.dropout));
  }
  Value attend(const Heads& heads, Value x, bool causal, Value lengths) {
    const auto module = b_.scope(heads.name);
    const Value mixed =
        self_attention(b_, linear(x, heads.weight, heads.bias),
                       {.heads = p_.nhead, .causal = causal, .dropout = p_.dropout, .dropout_name = "dropout", .lengths = lengths});
    return apply(heads.out, mixed);
  }
  /// The rows of the packed projection that give queries (0 .. E), or keys and values (E .. 3 E).
  Value project(const Heads& heads, Value x, int64_t begin, int64_t end) {
    return linear(x, slice(heads.weight, 0, begin, end), heads.bias ? slice(heads.bias, 0, begin, end) : Value());
  }
  /// [N,S,2 nhead, width]: the keys of all heads, then the values.
  Value keys_and_values(const Heads& heads, Value states) {
    return reshape(project(heads, states, p_.d_model, 3 * p_.d_model), {states.shape()[0], states.shape()[1], 2 * p_.nhead, width()});
  }
  Value carried_memory(int64_t n, DType dtype) {
    return b_.carried("memory", {.dtype = dtype, .shape = {n, memory_, 2 * p_.nhead, width()}});
  }
  Value attend_to(const Heads& heads, Value x, const Memory& memory) {
    const auto module = b_.scope(heads.name);
    const int64_t n = x.shape()[0], length = x.shape()[1];
    AttentionInputs inputs{.q = reshape(project(heads, x, 0, p_.d_model), {n, length, p_.nhead, width()})};
    inputs.k = memory.states ? keys_and_values(heads, memory.states) : carried_memory(n, x.dtype());
    inputs.lengths = memory.lengths;
    AttentionAttrs attrs;
    if (b_.training() && p_.dropout > 0) {
      attrs.dropout = p_.dropout;
      attrs.stream = b_.random_stream("dropout");
      inputs.rng = b_.rng();
    }
    return apply(heads.out, reshape(attention(inputs, attrs).o, {n, length, p_.d_model}));
  }

  Builder& b_;
  const TransformerParams& p_;
  int64_t memory_;
  std::vector<Layer> encoder_, decoder_;
  Norm encoder_norm_, decoder_norm_;
};

/// Sinusoidal positions: sine and cosine of position / 10000^(2 i / d_model) at 2 i and 2 i + 1, [T,E], or [N,T,E] of a program that
/// continues sequences.
Value positions(Builder& b, const TransformerParams& p, const Shape& tokens, bool target, DType dtype) {
  const int64_t pairs = p.d_model / 2;
  RotaryTableAttrs attrs;
  attrs.frequencies = rotary_frequencies(p.d_model);
  Value table;
  Shape shape{tokens[1], p.d_model};
  if (target && b.cache() > 0) {
    table = rotary_table(fed_positions(b, tokens[0], tokens[1]), attrs);
    shape = {tokens[0], tokens[1], p.d_model};
  } else {
    attrs.positions = tokens[1];
    table = rotary_table(b.graph(), attrs);
  }
  const int64_t rows = table.shape()[0];
  const auto part = [&](int64_t which) { return reshape(slice(table, 1, which * pairs, (which + 1) * pairs), {rows, pairs, 1}); };
  return cast(reshape(concat({part(1), part(0)}, 2), shape), dtype);
}

/// src [N,S] with src.length [N], tgt [N,T] -> logits [N,T,vocab_size]. With a cache: src alone -> the encoder's result, whose keys and
/// values the request keeps; tgt -> logits [N,vocab_size].
NamedValues transformer(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& p = params_of<TransformerParams>(options);
  GALLEY_CHECK(p.d_model % p.nhead == 0 && p.d_model % 2 == 0, "[transformer] d_model=", p.d_model,
               " must be even and a multiple of nhead=", p.nhead);
  Value src, tgt, lengths;
  for (const auto& [name, value] : inputs) (name == kSource ? src : name == kSourceLength ? lengths : tgt) = value;
  for (const Value tokens : {src, tgt}) {
    if (!tokens) continue;
    GALLEY_CHECK(tokens.shape().rank() == 2 && (tokens.dtype() == DType::kI64 || tokens.dtype() == DType::kI32),
                 "[transformer] inputs must be integers [N,T] (batch, tokens), not ", tokens.type());
    GALLEY_CHECK(tokens.shape()[1] <= p.max_length, "[transformer] a sample has ", tokens.shape()[1],
                 " tokens, more than max_length=", p.max_length);
  }
  const auto table = [&](std::string_view name) {
    const auto module = b.scope(name);
    return b.parameter("weight", {p.tokens(), p.d_model}, Init::normal(1 / std::sqrt(static_cast<double>(p.d_model))), "embedding");
  };
  const Value src_table = table(p.tie_weights ? "embedding" : "src_embedding"),
              tgt_table = p.tie_weights ? src_table : table("tgt_embedding");
  GALLEY_ASSERT(src, "no source");
  TransformerBuilder layers(b, p, src.shape()[1]);
  Dense generator{.name = "generator", .parameters = {}};
  if (!p.tie_weights) {
    const auto module = b.scope("generator");
    generator.parameters = b.linear_parameters({p.tokens(), p.d_model}, Init::xavier_uniform(p.d_model, p.tokens()),
                                               Init::uniform(1 / std::sqrt(static_cast<double>(p.d_model))));
  }
  const auto embed = [&](std::string_view dropout, Value from, Value tokens) {
    const Value x = affine(embedding(from, tokens), std::sqrt(static_cast<double>(p.d_model)));
    return b.dropout(dropout, add(x, positions(b, p, tokens.shape(), tokens.id() == tgt.id(), x.dtype())), p.dropout);
  };
  Memory memory{.states = {}, .lengths = lengths};
  const bool encodes = b.cache() == 0 || !tgt;
  if (encodes) memory.states = layers.encode(embed("src_dropout", src_table, src), lengths);
  if (!tgt) {
    GALLEY_ASSERT(b.cache() > 0, "no target");
    layers.store(memory.states);
    return {{"memory", memory.states}};
  }
  const Value x = layers.decode(embed("tgt_dropout", tgt_table, tgt), memory);
  const auto module = b.scope("generator");
  return {{"logits", p.tie_weights ? linear(x, tgt_table) : b.linear(x, generator.parameters)}};
}

ModelInfo transformer_info(const Options& options) {
  const int64_t length = params_of<TransformerParams>(options).max_length;
  ModelInfo info;
  info.family = "transformer";
  info.output = ModelOutput::kTokens;
  info.input_shape = {length};
  info.input_names = {"T"};
  info.input_dtype = DType::kI64;
  info.inputs = {{.name = "tgt", .shape = {length}, .names = {"T"}, .dtype = DType::kI64},
                 {.name = kSource, .shape = {length}, .names = {"S"}, .dtype = DType::kI64},
                 {.name = kSourceLength, .shape = {}, .names = {}, .dtype = DType::kI64, .optional = true}};
  info.named_outputs = true;
  info.cache = true;
  return info;
}

}  // namespace

ModelTable transformer_models() {
  return {{{"transformer", "encoder-decoder (Vaswani et al. 2017) with torch.nn.Transformer's names; default: base",
            make_options<TransformerParams>},
           nullptr,
           transformer_info,
           transformer}};
}

}  // namespace galley
