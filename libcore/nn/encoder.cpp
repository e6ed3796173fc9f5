#include "libcore/nn/encoder.h"

#include <limits>

#include "libcore/nn/capture.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

constexpr double kInitialDeviation = 0.02;  // BERT's initializer_range
constexpr double kForbidden = -1e30;        // added to the score of a key that attention_mask forbids: its exponential is 0

}  // namespace

void EncoderParams::common_options(OptionVisitor& v) {
  v.option({.name = "vocab_size", .doc = "tokens of the vocabulary; default: those of data.tokenizer, 256 (bytes) without one", .min = 1},
           vocab_size);
  v.option({.name = "hidden_size", .doc = "features of a token", .min = 1}, hidden_size);
  v.option({.name = "num_hidden_layers", .doc = "blocks", .min = 1}, num_hidden_layers);
  v.option({.name = "num_attention_heads", .doc = "attention heads; they divide hidden_size", .min = 1}, num_attention_heads);
  v.option({.name = "intermediate_size", .doc = "features between the two layers after attention", .min = 1}, intermediate_size);
  v.choice({.name = "hidden_act", .doc = "activation between these layers, and in heads"}, hidden_act, kEncoderActivationNames);
  v.option({.name = "hidden_dropout_prob", .doc = "dropout of embeddings and of the output of each branch", .min = 0, .max = 1},
           hidden_dropout_prob);
  v.option({.name = "attention_probs_dropout_prob", .doc = "dropout of attention weights", .min = 0, .max = 1},
           attention_probs_dropout_prob);
  v.option({.name = "classifier_dropout", .doc = "dropout before a classifier; default: the family's", .min = 0, .max = 1},
           classifier_dropout);
  v.option({.name = "max_position_embeddings",
            .doc = "rows of the table of positions: the longest sequence (RoBERTa: less pad_token_id + 1)",
            .min = 1},
           max_position_embeddings);
  v.option({.name = "layer_norm_eps", .doc = "added to the variance in layer norms", .min = 0}, layer_norm_eps);
  v.option({.name = "tie_word_embeddings", .doc = "whether the heads masked_lm and pre_training use the token embedding"},
           tie_word_embeddings);
  v.choice({.name = "head", .doc = "what stands above the encoder"}, head, kEncoderHeadNames);
  v.option({.name = "num_labels", .doc = "classes of the heads sequence_classification and token_classification", .min = 1}, num_labels);
  v.choice({.name = "classifier_pooling",
            .doc = "what the head sequence_classification reads. pooler: the first token, through the layers that the family has for it; "
                   "mean: the mean over the tokens; cls: the first token"},
           classifier_pooling, kClassifierPoolingNames);
  v.choice({.name = "pooling", .doc = "head embedding: the mean over the tokens, or the first token"}, pooling, kPoolingNames);
  v.option({.name = "normalize", .doc = "head embedding: vectors of length 1"}, normalize);
  v.option({.name = "sequence_length", .doc = "tokens of a sample where no data say it: benchmarks, shapes", .min = 1}, sequence_length);
}

EncoderInputs EncoderInputs::of(const NamedValues& inputs) {
  EncoderInputs found;
  for (const auto& [name, value] : inputs) {
    if (name == "input_ids") found.ids = value;
    if (name == "token_type_ids") found.types = value;
    if (name == "attention_mask") found.mask = value;
    if (name == "input_ids.length") found.lengths = value;
  }
  GALLEY_ASSERT(found.ids);
  const auto check = [&](std::string_view name, Value value) {
    if (!value) return;
    GALLEY_CHECK(value.shape().rank() == 2 && (value.dtype() == DType::kI64 || value.dtype() == DType::kI32), "the input `", name,
                 "` must be integers [N,T] (batch, tokens), it is ", value.type());
    GALLEY_CHECK(value.shape() == found.ids.shape(), "the input `", name, "` is ", value.type(), ", but input_ids is ", found.ids.type());
  };
  check("input_ids", found.ids);
  check("token_type_ids", found.types);
  check("attention_mask", found.mask);
  return found;
}

ModelInfo encoder_info(const EncoderParams& params, std::string_view family, int64_t max_length) {
  ModelInfo info;
  info.family = family;
  if (params.head == EncoderHead::kMaskedLm || params.head == EncoderHead::kPreTraining) info.output = ModelOutput::kMaskedTokens;
  if (params.head == EncoderHead::kPreTraining) info.loss_weights = {{family == "albert" ? "sop_logits" : "seq_relationship_logits", 1}};
  if (params.head == EncoderHead::kTokenClassification) info.output = ModelOutput::kTokenClasses;
  if (params.head == EncoderHead::kQuestionAnswering) info.output = ModelOutput::kSpans;
  if (params.head == EncoderHead::kSequenceClassification && params.num_labels > 1) info.output = ModelOutput::kClasses;
  if (params.head == EncoderHead::kNextSentence) info.output = ModelOutput::kClasses;
  info.max_length = max_length;
  const int64_t length = std::min(params.sequence_length, max_length);
  info.input_shape = {length};
  info.input_names = {"T"};
  info.input_dtype = DType::kI64;
  const auto input = [&](std::string_view name, std::vector<int64_t> shape, bool optional) {
    std::vector<std::string> names(shape.size(), "T");
    info.inputs.push_back(
        {.name = std::string(name), .shape = std::move(shape), .names = std::move(names), .dtype = DType::kI64, .optional = optional});
  };
  input("input_ids", {length}, false);
  input("attention_mask", {length}, true);
  if (params.type_vocab_size > 0) input("token_type_ids", {length}, true);
  input("input_ids.length", {}, true);
  info.named_outputs = true;
  return info;
}

EncoderLayers::EncoderLayers(Builder& b, const EncoderParams& params, const EncoderInputs& inputs)
    : b_(b), params_(params), inputs_(inputs) {
  GALLEY_CHECK(params.hidden_size % params.num_attention_heads == 0, "hidden_size=", params.hidden_size,
               " is not a multiple of num_attention_heads=", params.num_attention_heads);
  if (!inputs.mask) return;
  const Value mask = cast(inputs.mask, DType::kF32);
  bias_ = reshape(affine(mask, -kForbidden, kForbidden), {inputs.batch(), 1, 1, inputs.length()});
}

Value EncoderLayers::linear(std::string_view name, Value x, int64_t features) {
  const auto module = b_.scope(name);
  LinearParameters& layer = linears_[b_.graph().path()];
  if (!layer.weight) layer = b_.linear_parameters({features, x.shape()[-1]}, Init::normal(kInitialDeviation), Init::zeros());
  return b_.linear(x, layer);
}

Value EncoderLayers::norm(std::string_view name, Value x) {
  const auto module = b_.scope(name);
  Norm& layer = norms_[b_.graph().path()];
  if (!layer.weight) {
    layer.weight = b_.parameter("weight", {x.shape()[-1]}, Init::ones(), "layer_norm");
    layer.bias = b_.parameter("bias", {x.shape()[-1]}, Init::zeros(), "layer_norm");
  }
  LayerNormAttrs attrs;
  attrs.eps = params_.layer_norm_eps;
  return layer_norm(x, layer.weight, layer.bias, attrs).y;
}

Value EncoderLayers::activate(Value x) const {
  GeluAttrs by_tanh;
  by_tanh.approximate = GeluApproximation::kTanh;
  switch (params_.hidden_act) {
    case EncoderActivation::kGelu: return gelu(x);
    case EncoderActivation::kGeluTanh: return gelu(x, by_tanh);
    case EncoderActivation::kRelu: return relu(x);
    case EncoderActivation::kSilu: return silu(x);
  }
  GALLEY_ASSERT(false);
}

Value EncoderLayers::table(std::string_view name, int64_t rows, int64_t width) {
  const auto module = b_.scope(name);
  return b_.parameter("weight", {rows, width}, Init::normal(kInitialDeviation), "embedding");
}

Value EncoderLayers::attention(Value x, const BlockNames& names) {
  const int64_t heads = params_.num_attention_heads, features = params_.hidden_size / heads;
  const auto by_head = [&](std::string_view name) {
    return reshape(linear(name, x, params_.hidden_size), {inputs_.batch(), inputs_.length(), heads, features});
  };
  AttentionInputs inputs{.bias = bias_, .lengths = inputs_.lengths};
  inputs.q = by_head(names.query);
  inputs.k = by_head(names.key);
  inputs.v = by_head(names.value);
  AttentionAttrs attrs;
  if (b_.training() && params_.attention_probs_dropout_prob > 0) {
    attrs.dropout = params_.attention_probs_dropout_prob;
    attrs.stream = b_.random_stream("attention_dropout");
    inputs.rng = b_.rng();
  }
  const Value mixed = reshape(galley::attention(inputs, attrs).o, {inputs_.batch(), inputs_.length(), params_.hidden_size});
  const Value result = linear(names.output, mixed, params_.hidden_size);
  return names.dropout_after_attention ? dropout("attention_output_dropout", result) : result;
}

Value EncoderLayers::block(Value x, const BlockNames& names) {
  x = norm(names.attention_norm, add(x, attention(x, names)));
  Value y = linear(names.down, activate(linear(names.up, x, params_.intermediate_size)), params_.hidden_size);
  if (names.dropout_after_mlp) y = dropout("output_dropout", y);
  return norm(names.norm, add(x, y));
}

Value EncoderLayers::embed(Value positions) {
  const int64_t length = inputs_.length(), width = params_.embedding_width();
  words_ = table("word_embeddings", params_.tokens(), width);
  const Value places = table("position_embeddings", params_.max_position_embeddings, width);
  Value x = embedding(words_, inputs_.ids);
  if (params_.type_vocab_size > 0) {
    const Value types = table("token_type_embeddings", params_.type_vocab_size, width);
    x = add(x, inputs_.types ? embedding(types, inputs_.types) : slice(types, 0, 0, 1));
  }
  x = add(x, positions ? embedding(places, positions) : slice(places, 0, 0, length));
  return dropout("dropout", norm("LayerNorm", x));
}

Value EncoderLayers::token_logits(Value x, std::string_view untied, std::string_view bias) {
  const size_t dot = bias.rfind('.');
  const Value shift = [&] {
    const auto module = b_.scope(bias.substr(0, dot));
    return b_.parameter(bias.substr(dot + 1), {params_.tokens()}, Init::zeros(), "linear");
  }();
  const auto module = b_.scope(untied);
  const Value weight = params_.tie_word_embeddings
                           ? words_
                           : b_.parameter("weight", {params_.tokens(), x.shape()[-1]}, Init::normal(kInitialDeviation), "linear");
  return galley::linear(x, weight, shift);
}

Value EncoderLayers::first_token(Value x) const { return reshape(slice(x, 1, 0, 1), {x.shape()[0], x.shape()[2]}); }

Value EncoderLayers::token_mask(DType dtype) const {
  const int64_t n = inputs_.batch(), length = inputs_.length();
  const auto as_column = [&](Value each) { return reshape(cast(each, dtype), {n, length, 1}); };
  const Value mask = inputs_.mask ? as_column(inputs_.mask) : Value();
  if (!inputs_.lengths) return mask;
  const Value place = iota(b_.graph(), DType::kI64, {n, length}, 1);
  const Value within = as_column(less(place, reshape(inputs_.lengths, {n, 1})));
  return mask ? mul(mask, within) : within;
}

Value EncoderLayers::pool(Value x, Pooling how) const {
  if (how == Pooling::kCls) return first_token(x);
  const auto scope = b_.scope("pooling");
  const Value mask = token_mask(x.dtype());
  if (!mask) return mean(x, {1});
  // At least 1e-9, as sentence-transformers: a row without tokens is zero.
  return div(sum(mul(x, mask), {1}), clamp(sum(mask, {1}), 1e-9, std::numeric_limits<double>::infinity()));
}

Value EncoderLayers::sentence(Value x) const {
  const Value vector = pool(x, params_.pooling);
  const auto scope = b_.scope("pooling");
  if (!params_.normalize) return vector;
  constexpr double kSmallestNorm = 1e-12;  // torch.nn.functional.normalize
  const Value length = sqrt(sum(square(vector), {1}, /*keepdim=*/true));
  return div(vector, clamp(length, kSmallestNorm, std::numeric_limits<double>::infinity()));
}

}  // namespace galley
