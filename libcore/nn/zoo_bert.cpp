// Encoders of text with the parameter names of Hugging Face's transformers: BERT (Devlin et al. 2018), RoBERTa and XLM-R (Liu et al. 2019,
// Conneau et al. 2020), ELECTRA (Clark et al. 2020), DistilBERT (Sanh et al. 2019), ALBERT (Lan et al. 2020).

#include "libcore/nn/attention.h"
#include "libcore/nn/capture.h"
#include "libcore/nn/encoder.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

/// The parameters of the head that names masked tokens.
struct MaskedLmNames {
  std::string_view dense, norm, decoder, bias;
  bool always_gelu = false;  // whatever hidden_act is, as in transformers
};

/// A family: what distinguishes its models from BERT.
struct Family {
  std::string_view name;  // also of the module of the encoder in a model with a head
  BlockNames block;
  MaskedLmNames masked_lm;
  bool pooler = true;
};

constexpr BlockNames kBertBlock{.query = "attention.self.query",
                                .key = "attention.self.key",
                                .value = "attention.self.value",
                                .output = "attention.output.dense",
                                .attention_norm = "attention.output.LayerNorm",
                                .up = "intermediate.dense",
                                .down = "output.dense",
                                .norm = "output.LayerNorm"};
constexpr BlockNames kDistilBlock{.query = "attention.q_lin",
                                  .key = "attention.k_lin",
                                  .value = "attention.v_lin",
                                  .output = "attention.out_lin",
                                  .attention_norm = "sa_layer_norm",
                                  .up = "ffn.lin1",
                                  .down = "ffn.lin2",
                                  .norm = "output_layer_norm",
                                  .dropout_after_attention = false};
constexpr BlockNames kAlbertBlock{.query = "attention.query",
                                  .key = "attention.key",
                                  .value = "attention.value",
                                  .output = "attention.dense",
                                  .attention_norm = "attention.LayerNorm",
                                  .up = "ffn",
                                  .down = "ffn_output",
                                  .norm = "full_layer_layer_norm",
                                  .dropout_after_mlp = false};

constexpr Family kBert{.name = "bert",
                       .block = kBertBlock,
                       .masked_lm = {.dense = "cls.predictions.transform.dense",
                                     .norm = "cls.predictions.transform.LayerNorm",
                                     .decoder = "cls.predictions.decoder",
                                     .bias = "cls.predictions.bias"}};
constexpr Family kRoberta{
    .name = "roberta",
    .block = kBertBlock,
    .masked_lm = {
        .dense = "lm_head.dense", .norm = "lm_head.layer_norm", .decoder = "lm_head.decoder", .bias = "lm_head.bias", .always_gelu = true}};
constexpr Family kElectra{.name = "electra",
                          .block = kBertBlock,
                          .masked_lm = {.dense = "generator_predictions.dense",
                                        .norm = "generator_predictions.LayerNorm",
                                        .decoder = "generator_lm_head",
                                        .bias = "generator_lm_head.bias",
                                        .always_gelu = true},
                          .pooler = false};
constexpr Family kDistilBert{
    .name = "distilbert",
    .block = kDistilBlock,
    .masked_lm = {.dense = "vocab_transform", .norm = "vocab_layer_norm", .decoder = "vocab_projector", .bias = "vocab_projector.bias"},
    .pooler = false};
constexpr Family kAlbert{
    .name = "albert",
    .block = kAlbertBlock,
    .masked_lm = {
        .dense = "predictions.dense", .norm = "predictions.LayerNorm", .decoder = "predictions.decoder", .bias = "predictions.bias"}};

template <const Family& kFamily>
struct Params : OptionsOf<Params<kFamily>>, EncoderParams {
  void options(OptionVisitor& v) override {
    common_options(v);
    if constexpr (&kFamily != &kDistilBert)
      v.option({.name = "type_vocab_size", .doc = "types of tokens (token_type_ids); 0: none", .min = 0}, type_vocab_size);
    if constexpr (&kFamily == &kRoberta)
      v.option({.name = "pad_token_id", .doc = "padding: such tokens are skipped in positions, which start after it", .min = 0},
               pad_token_id);
    if constexpr (&kFamily == &kAlbert || &kFamily == &kElectra)
      v.option({.name = "embedding_size", .doc = "features of a token before the blocks; default: hidden_size", .min = 1}, embedding_size);
    if constexpr (&kFamily == &kAlbert) {
      v.option({.name = "num_hidden_groups", .doc = "blocks that have parameters; they are used by turns", .min = 1}, num_hidden_groups);
      v.option({.name = "inner_group_num", .doc = "layers of such a block", .min = 1}, inner_group_num);
    }
  }
};

/// Positions of RoBERTa start after that of padding.
int64_t max_length(const Family& family, const EncoderParams& params) {
  return params.max_position_embeddings - (&family == &kRoberta ? params.pad_token_id + 1 : 0);
}

/// Captures a model of a family.
class EncoderModel {
 public:
  EncoderModel(Builder& b, const Family& family, const EncoderParams& params, const NamedValues& inputs)
      : b_(b), family_(family), params_(params), inputs_(EncoderInputs::of(inputs)), layers_(b, params, inputs_) {
    const int64_t longest = max_length(family, params);
    GALLEY_CHECK(inputs_.length() <= longest, "[", family.name, "] a sample has ", inputs_.length(), " tokens, more than the ", longest,
                 " of max_position_embeddings");
  }

  NamedValues build() {
    const bool bare = params_.head == EncoderHead::kNone || params_.head == EncoderHead::kEmbedding;
    const bool by_pooler =
        params_.head == EncoderHead::kSequenceClassification && params_.classifier_pooling == ClassifierPooling::kPooler && !is(kRoberta);
    const bool next_sentence = params_.head == EncoderHead::kNextSentence, pre_training = params_.head == EncoderHead::kPreTraining;
    GALLEY_CHECK(!(next_sentence || pre_training) || is(kBert) || (pre_training && is(kAlbert)), "[", family_.name, "] has no head ",
                 kEncoderHeadNames[static_cast<size_t>(params_.head)]);
    const bool pools = family_.pooler && (params_.head == EncoderHead::kNone || by_pooler || next_sentence || pre_training);
    Value hidden, pooled;
    {
      const auto module = b_.scope(bare ? std::string_view() : family_.name);
      hidden = blocks(embeddings());
      if (pools) pooled = tanh(layers_.linear(is(kAlbert) ? "pooler" : "pooler.dense", layers_.first_token(hidden), params_.hidden_size));
    }
    switch (params_.head) {
      case EncoderHead::kNone:
        if (!pools) return {{"last_hidden_state", hidden}};
        return {{"last_hidden_state", hidden}, {"pooler_output", pooled}};
      case EncoderHead::kEmbedding: return {{"embedding", layers_.sentence(hidden)}};
      case EncoderHead::kMaskedLm: return {{"logits", masked_lm(hidden)}};
      case EncoderHead::kSequenceClassification: return {{"logits", sequence_classification(hidden, pooled)}};
      case EncoderHead::kTokenClassification: {
        const double usual = is(kAlbert) ? 0.1 : params_.hidden_dropout_prob;  // ALBERT: classifier_dropout_prob
        return {{"logits", layers_.linear("classifier", layers_.classifier_dropout(hidden, usual), params_.num_labels)}};
      }
      case EncoderHead::kQuestionAnswering: return question_answering(hidden);
      case EncoderHead::kNextSentence: return {{"logits", next_sentence_logits(pooled)}};
      case EncoderHead::kPreTraining:
        if (is(kAlbert)) return {{"prediction_logits", masked_lm(hidden)}, {"sop_logits", sentence_order_logits(pooled)}};
        return {{"prediction_logits", masked_lm(hidden)}, {"seq_relationship_logits", next_sentence_logits(pooled)}};
      case EncoderHead::kReplacedTokens: return {{"logits", replaced_tokens(hidden)}};
    }
    GALLEY_ASSERT(false);
  }

 private:
  bool is(const Family& family) const { return &family_ == &family; }

  /// Positions of RoBERTa: tokens that are not padding count from pad_token_id + 1; padding has pad_token_id.
  Value roberta_positions() const {
    const Shape shape{inputs_.batch(), inputs_.length()};
    const Value ids = cast(inputs_.ids, DType::kI64);
    const auto constant = [&](double value) { return full(b_.graph(), {.dtype = DType::kI64, .shape = shape}, value); };
    const Value padding = equal(ids, constant(static_cast<double>(params_.pad_token_id)));
    if (is_open(b_)) {
      // The sum of all up to it: the product with a triangle of ones.
      const int64_t length = inputs_.length();
      const auto number = [&](double value) { return full(b_.graph(), {.dtype = DType::kF32, .shape = {}}, value); };
      const Value index = iota(b_.graph(), DType::kI64, {length}, 0);
      const Value later = greater(reshape(index, {length, 1}), reshape(index, {1, length}));
      const Value count = matmul(where(padding, number(0), number(1)), where(later, number(0), number(1)));
      const auto first = full(b_.graph(), {.dtype = DType::kI64, .shape = {}}, static_cast<double>(params_.pad_token_id));
      return where(padding, first, add(cast(count, DType::kI64), first));
    }
    // The sum of all before it, in steps of 1, 2, 4 ...
    Value count = where(padding, constant(0), constant(1));
    for (int64_t step = 1; step < inputs_.length(); step *= 2)
      count = add(count, pad(slice(count, 1, 0, inputs_.length() - step), {0, 0, step, 0}));
    return where(padding, constant(static_cast<double>(params_.pad_token_id)),
                 add(count, constant(static_cast<double>(params_.pad_token_id))));
  }

  Value embeddings() {
    const auto module = b_.scope("embeddings");
    return layers_.embed(is(kRoberta) ? roberta_positions() : Value());
  }

  Value blocks(Value x) {
    const int64_t count = params_.num_hidden_layers;
    if (is(kElectra) && params_.embedding_width() != params_.hidden_size) x = layers_.linear("embeddings_project", x, params_.hidden_size);
    const auto module = b_.scope(is(kDistilBert) ? "transformer" : "encoder");
    if (!is(kAlbert)) {
      for (int64_t i = 0; i < count; ++i) x = block(cat("layer.", i), x);
      return x;
    }
    x = layers_.linear("embedding_hidden_mapping_in", x, params_.hidden_size);
    for (int64_t i = 0; i < count; ++i) {
      // As transformers divide, in floating point.
      const double layers = static_cast<double>(count) / static_cast<double>(params_.num_hidden_groups);
      const int64_t group = static_cast<int64_t>(static_cast<double>(i) / layers);
      for (int64_t k = 0; k < params_.inner_group_num; ++k) x = block(cat("albert_layer_groups.", group, ".albert_layers.", k), x);
    }
    return x;
  }
  Value block(const std::string& name, Value x) {
    const auto module = b_.scope(name);
    return layers_.block(x, family_.block);
  }

  Value masked_lm(Value x) {
    const MaskedLmNames& names = family_.masked_lm;
    x = layers_.linear(names.dense, x, is(kAlbert) || is(kElectra) ? params_.embedding_width() : params_.hidden_size);
    x = layers_.norm(names.norm, names.always_gelu ? gelu(x) : layers_.activate(x));
    return layers_.token_logits(x, names.decoder, names.bias);
  }

  Value next_sentence_logits(Value pooled) { return layers_.linear("cls.seq_relationship", pooled, 2); }
  Value sentence_order_logits(Value pooled) {
    return layers_.linear("sop_classifier.classifier", layers_.classifier_dropout(pooled, 0.1), 2);
  }

  Value sequence_classification(Value x, Value pooled) {
    const double usual = params_.hidden_dropout_prob;
    const int64_t labels = params_.num_labels;
    if (params_.classifier_pooling != ClassifierPooling::kPooler) {
      const Pooling how = params_.classifier_pooling == ClassifierPooling::kMean ? Pooling::kMean : Pooling::kCls;
      const double own = is(kAlbert) ? 0.1 : is(kDistilBert) ? 0.2 : usual;
      return layers_.linear("classifier", layers_.classifier_dropout(layers_.pool(x, how), own), labels);
    }
    if (is(kBert) || is(kAlbert))
      return layers_.linear("classifier", layers_.classifier_dropout(pooled, is(kAlbert) ? 0.1 : usual), labels);
    x = layers_.first_token(x);
    if (is(kDistilBert)) {
      x = relu(layers_.linear("pre_classifier", x, params_.hidden_size));
      return layers_.linear("classifier", layers_.classifier_dropout(x, 0.2), labels);
    }
    const auto head = b_.scope("classifier");
    x = layers_.linear("dense", layers_.classifier_dropout(x, usual), params_.hidden_size);
    x = is(kRoberta) ? tanh(x) : gelu(x);
    return layers_.linear("out_proj", layers_.classifier_dropout(x, usual), labels);
  }

  NamedValues question_answering(Value x) {
    if (is(kDistilBert)) x = layers_.classifier_dropout(x, 0.1);
    const Value both = layers_.linear("qa_outputs", x, 2);
    const auto part = [&](int64_t which) { return reshape(slice(both, 2, which, which + 1), {inputs_.batch(), inputs_.length()}); };
    return {{"start_logits", part(0)}, {"end_logits", part(1)}};
  }

  Value replaced_tokens(Value x) {
    GALLEY_CHECK(is(kElectra), "[", family_.name, "] has no head replaced_tokens");
    const auto head = b_.scope("discriminator_predictions");
    x = layers_.activate(layers_.linear("dense", x, params_.hidden_size));
    return reshape(layers_.linear("dense_prediction", x, 1), {inputs_.batch(), inputs_.length()});
  }

  Builder& b_;
  const Family& family_;
  const EncoderParams& params_;
  EncoderInputs inputs_;
  EncoderLayers layers_;
};

template <const Family& kFamily>
const EncoderParams& of(const Options& options) {
  return params_of<Params<kFamily>>(options);
}
template <const Family& kFamily>
NamedValues build(Builder& b, const Options& options, const NamedValues& inputs) {
  return EncoderModel(b, kFamily, of<kFamily>(options), inputs).build();
}
template <const Family& kFamily>
ModelInfo info(const Options& options) {
  return encoder_info(of<kFamily>(options), kFamily.name, max_length(kFamily, of<kFamily>(options)));
}
template <const Family& kFamily>
ModelEntry entry(std::string_view doc, std::unique_ptr<Options> (*make)()) {
  return {{kFamily.name, doc, make}, nullptr, info<kFamily>, build<kFamily>};
}

std::unique_ptr<Options> roberta() {
  auto params = std::make_unique<Params<kRoberta>>();
  params->max_position_embeddings = 514;
  params->type_vocab_size = 1;
  params->layer_norm_eps = 1e-5;
  params->pad_token_id = 1;
  return params;
}
std::unique_ptr<Options> distilbert() {
  auto params = std::make_unique<Params<kDistilBert>>();
  params->num_hidden_layers = 6;
  params->type_vocab_size = 0;
  return params;
}
std::unique_ptr<Options> albert() {
  auto params = std::make_unique<Params<kAlbert>>();
  params->embedding_size = 128;
  params->hidden_act = EncoderActivation::kGeluTanh;
  params->hidden_dropout_prob = params->attention_probs_dropout_prob = 0;
  return params;
}
std::unique_ptr<Options> electra() {
  auto params = std::make_unique<Params<kElectra>>();
  params->hidden_size = 256;
  params->num_attention_heads = 4;
  params->intermediate_size = 1024;
  params->embedding_size = 128;
  params->head = EncoderHead::kReplacedTokens;
  return params;
}

}  // namespace

ModelTable bert_models() {
  return {entry<kBert>("BERT (Devlin et al. 2018); default: base", make_options<Params<kBert>>),
          entry<kRoberta>("RoBERTa (Liu et al. 2019) and XLM-R; default: base", roberta),
          entry<kDistilBert>("DistilBERT (Sanh et al. 2019)", distilbert),
          entry<kAlbert>("ALBERT (Lan et al. 2020), whose blocks share their parameters; default: base", albert),
          entry<kElectra>("ELECTRA (Clark et al. 2020); default: small", electra)};
}

}  // namespace galley
