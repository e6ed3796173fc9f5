// Hub folders of encoders: BERT, RoBERTa, XLM-R, ELECTRA, DistilBERT, ALBERT. Their options in recipes have BERT's names.

#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/weights/hub.h"

namespace galley {
namespace {

/// The pooling of sentence-transformers: modules.json lists the steps after the encoder, 1_Pooling/config.json says which.
void pooling(HubConfig& model) {
  if (const auto config = model.file("1_Pooling/config.json")) {
    std::string mode = config->text("pooling_mode", "");
    for (const auto& [key, node] : config->members()) {
      if (!key.starts_with("pooling_mode_") || !node.json().is_boolean() || !node.flag()) continue;
      mode += (mode.empty() ? "" : " and ") + key.substr(std::string_view("pooling_mode_").size());
    }
    if (mode == "mean_tokens") mode = "mean";
    if (mode == "cls_token") mode = "cls";
    if (mode != "mean" && mode != "cls") config->fail(cat("the pooling is ", mode, "; this version has mean and cls"));
    model.set("pooling", mode);
  }
  const auto modules = model.file("modules.json");
  if (!modules) return;
  bool normalizes = false;
  for (const text::JsonNode& module : modules->elements()) normalizes |= module.text("type", "").ends_with(".Normalize");
  model.set("normalize", normalizes);
}

/// What all of them have.
void common_options(HubConfig& model) {
  model.refuse_unsupported();
  model.required("vocab_size");
  model.required("max_position_embeddings");
  model.require("position_embedding_type", "absolute");
  model.require("is_decoder", "false");
  model.set("head", model.head);
  model.classes();
  model.flag("tie_word_embeddings");
  if (model.head == "sequence_classification") model.classifier_task();
  pooling(model);
}

void encoder_activation(HubConfig& model, std::string_view key) {
  model.activation(key, "hidden_act", {"gelu", "gelu_new", "relu", "silu"});
}

void bert_options(HubConfig& model) {
  common_options(model);
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) model.required(key);
  model.require_multiple("hidden_size", "num_attention_heads");
  model.integer("type_vocab_size");
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"}) model.number(key);
  encoder_activation(model, "hidden_act");
}

void bert(HubConfig& model) {
  model.type = "bert";
  bert_options(model);
  model.number("classifier_dropout");
}

void roberta(HubConfig& model) {
  model.type = "roberta";
  bert_options(model);
  model.number("classifier_dropout");
  model.integer("pad_token_id");
}

void electra(HubConfig& model) {
  model.type = "electra";
  bert_options(model);
  model.number("classifier_dropout");
  model.integer("embedding_size");
}

void albert(HubConfig& model) {
  model.type = "albert";
  bert_options(model);
  model.number("classifier_dropout_prob", "classifier_dropout");
  for (const char* key : {"embedding_size", "num_hidden_groups", "inner_group_num"}) model.integer(key);
}

void distilbert(HubConfig& model) {
  model.type = "distilbert";
  common_options(model);
  model.required("dim", "hidden_size");
  model.required("n_layers", "num_hidden_layers");
  model.required("n_heads", "num_attention_heads");
  model.required("hidden_dim", "intermediate_size");
  model.require_multiple("dim", "n_heads");
  model.number("dropout", "hidden_dropout_prob");
  model.number("attention_dropout", "attention_probs_dropout_prob");
  encoder_activation(model, "activation");
  if (model.head == "sequence_classification") model.number("seq_classif_dropout", "classifier_dropout");
  if (model.head == "question_answering") model.number("qa_dropout", "classifier_dropout");
}

/// The classes of transformers, as Bert in BertForMaskedLM.
#define GALLEY_HEADS(FAMILY)                                                                                                      \
  {FAMILY "Model", "none"}, {FAMILY "ForMaskedLM", "masked_lm"}, {FAMILY "ForSequenceClassification", "sequence_classification"}, \
      {FAMILY "ForTokenClassification", "token_classification"}, {FAMILY "ForQuestionAnswering", "question_answering"}

}  // namespace

HubTable hub_encoders() {
  constexpr std::string_view kWordTable = "embeddings.word_embeddings.weight";
  const HubTensors roberta_tensors{.base = "roberta",
                                   .ignore = {"*embeddings.position_ids", "lm_head.decoder.*"},
                                   .optional = {"pooler.*"},
                                   .table = kWordTable,
                                   .tied = "lm_head.decoder.weight"};
  return {
      {.model_type = "bert",
       .architectures = {GALLEY_HEADS("Bert"), {"BertForPreTraining", "pre_training"}, {"BertForNextSentencePrediction", "next_sentence"}},
       .map = bert,
       // Old files call the parameters of layer norms gamma and beta.
       .tensors = {.base = "bert",
                   .rename = {{"*.LayerNorm.gamma", "*.LayerNorm.weight"}, {"*.LayerNorm.beta", "*.LayerNorm.bias"}},
                   .ignore = {"*embeddings.position_ids", "cls.predictions.decoder.*"},
                   .optional = {"pooler.*"},
                   .table = kWordTable,
                   .tied = "cls.predictions.decoder.weight"}},
      {.model_type = "roberta", .architectures = {GALLEY_HEADS("Roberta")}, .map = roberta, .tensors = roberta_tensors},
      {.model_type = "xlm-roberta", .architectures = {GALLEY_HEADS("XLMRoberta")}, .map = roberta, .tensors = roberta_tensors},
      {.model_type = "electra",
       .architectures = {GALLEY_HEADS("Electra"), {"ElectraForPreTraining", "replaced_tokens"}},
       .map = electra,
       .tensors = {.base = "electra",
                   .ignore = {"*embeddings.position_ids", "generator_lm_head.weight"},
                   .table = kWordTable,
                   .tied = "generator_lm_head.weight",
                   .width = "embedding_size"}},
      {.model_type = "distilbert",
       .architectures = {GALLEY_HEADS("DistilBert")},
       .map = distilbert,
       .tensors = {.base = "distilbert",
                   .ignore = {"*embeddings.position_ids", "vocab_projector.weight"},
                   .table = kWordTable,
                   .tied = "vocab_projector.weight",
                   .width = "dim"}},
      {.model_type = "albert",
       .architectures = {GALLEY_HEADS("Albert"), {"AlbertForPreTraining", "pre_training"}},
       .map = albert,
       .tensors = {.base = "albert",
                   .ignore = {"*embeddings.position_ids", "predictions.decoder.*"},
                   .optional = {"pooler.*"},
                   .table = kWordTable,
                   .tied = "predictions.decoder.weight",
                   .width = "embedding_size"}},
  };
}

#undef GALLEY_HEADS

}  // namespace galley
