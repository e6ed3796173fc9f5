#pragma once
// What the encoders of text share (BERT and its family): options, inputs, blocks and heads.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "libcore/nn/builder.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/zoo.h"

namespace galley {

/// What stands above the encoder, and the outputs of the model:
enum class EncoderHead {
  kNone,                    ///< last_hidden_state [N,T,hidden_size], and pooler_output [N,hidden_size] where the family has a pooler.
  kMaskedLm,                ///< logits [N,T,vocab_size]
  kSequenceClassification,  ///< logits [N,num_labels]
  kTokenClassification,     ///< logits [N,T,num_labels]
  kQuestionAnswering,       ///< start_logits, end_logits [N,T]
  kEmbedding,               ///< embedding [N,hidden_size]
  kReplacedTokens,          ///< logits [N,T]: whether a token was replaced (ELECTRA's discriminator)
  kNextSentence,            ///< logits [N,2]: whether the second text follows the first (0) or not (1), of BERT
  kPreTraining,  ///< prediction_logits [N,T,vocab_size] of kMaskedLm, and of BERT seq_relationship_logits [N,2] of kNextSentence,
                 ///< of ALBERT sop_logits [N,2]: whether the two texts are in order (0) or swapped (1)
};
inline constexpr std::array<std::string_view, 9> kEncoderHeadNames{
    "none",      "masked_lm",       "sequence_classification", "token_classification", "question_answering",
    "embedding", "replaced_tokens", "next_sentence",           "pre_training"};

/// How a sentence's vector is made of those of its tokens.
enum class Pooling { kMean, kCls };
inline constexpr std::array<std::string_view, 2> kPoolingNames{"mean", "cls"};

/// What a sequence classifier reads: the first token through the layers that the family has for it (BERT's pooler), or as a Pooling.
enum class ClassifierPooling { kPooler, kMean, kCls };
inline constexpr std::array<std::string_view, 3> kClassifierPoolingNames{"pooler", "mean", "cls"};

enum class EncoderActivation { kGelu, kGeluTanh, kRelu, kSilu };
/// The hub's names; gelu_new and gelu_pytorch_tanh are the same function.
inline constexpr std::array<std::string_view, 4> kEncoderActivationNames{"gelu", "gelu_new", "relu", "silu"};

/// Options of all families, under BERT's names.
struct EncoderParams : LanguageModelParams {
  std::optional<int64_t> vocab_size;
  int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12, intermediate_size = 3072;
  std::optional<int64_t> embedding_size;  // absent: hidden_size
  EncoderActivation hidden_act = EncoderActivation::kGelu;
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1;
  std::optional<double> classifier_dropout;  // absent: the family's
  int64_t max_position_embeddings = 512, type_vocab_size = 2;
  double layer_norm_eps = 1e-12;
  int64_t pad_token_id = 0;
  bool tie_word_embeddings = true;
  int64_t num_hidden_groups = 1, inner_group_num = 1;
  EncoderHead head = EncoderHead::kMaskedLm;
  int64_t num_labels = 2;
  ClassifierPooling classifier_pooling = ClassifierPooling::kPooler;
  Pooling pooling = Pooling::kMean;
  bool normalize = true;
  int64_t sequence_length = 128;

  std::string_view vocabulary_key() const override { return "vocab_size"; }
  std::optional<int64_t>& vocabulary() override { return vocab_size; }
  int64_t embedding_width() const { return embedding_size.value_or(hidden_size); }

 protected:
  /// The options of every family.
  void common_options(OptionVisitor& v);
};

/// The inputs of an encoder, by the hub's names.
struct EncoderInputs {
  Value ids;           ///< input_ids: i64 or i32 [N,T].
  Value types = {};    ///< token_type_ids [N,T]; absent: zeros.
  Value mask = {};     ///< attention_mask [N,T]: 1 for a token, 0 for padding.
  Value lengths = {};  ///< input_ids.length [N]: tokens from here on are padding.
  static EncoderInputs of(const NamedValues& inputs);
  int64_t batch() const { return ids.shape()[0]; }
  int64_t length() const { return ids.shape()[1]; }
};
/// Of a model with these options: ModelInfo with the inputs above, of which only input_ids is required.
ModelInfo encoder_info(const EncoderParams& params, std::string_view family, int64_t max_length);

/// The names of a block's modules.
struct BlockNames {
  std::string_view query, key, value, output, attention_norm, up, down, norm;
  bool dropout_after_attention = true, dropout_after_mlp = true;
};

/// Captures the layers of an encoder. A layer that is captured again under the same path uses the same parameters (ALBERT).
class EncoderLayers {
 public:
  EncoderLayers(Builder& b, const EncoderParams& params, const EncoderInputs& inputs);

  Value linear(std::string_view name, Value x, int64_t features);
  Value norm(std::string_view name, Value x);
  Value activate(Value x) const;
  Value dropout(std::string_view name, Value x) { return b_.dropout(name, x, params_.hidden_dropout_prob); }
  /// The table of a module "NAME.weight" [rows, width].
  Value table(std::string_view name, int64_t rows, int64_t width);
  /// x [N,T,hidden] -> the same shape: attention and the two layers after it, each added to its input and normalized.
  Value block(Value x, const BlockNames& names);
  /// The vectors of tokens, types and positions, added, normalized and dropped: [N,T,embedding_width]. `positions`: i64 [N,T]; absent:
  /// 0, 1, ...
  Value embed(Value positions);
  /// Logits of all tokens [N,T,vocab_size] for x [N,T,embedding_width]: with the table of tokens where tied, else "weight" of the module
  /// `untied`. The bias has the path `bias`.
  Value token_logits(Value x, std::string_view untied, std::string_view bias);
  /// x [N,T,hidden] -> the first token [N,hidden].
  Value first_token(Value x) const;
  /// x [N,T,hidden] -> one vector for each sample [N,hidden]: the mean over the tokens that are not padding, or the first token.
  Value pool(Value x, Pooling how) const;
  /// x [N,T,hidden] -> the sentence [N,hidden], as the options say.
  Value sentence(Value x) const;
  /// Dropout before a classifier; `otherwise` where the options do not give it.
  Value classifier_dropout(Value x, double otherwise) { return b_.dropout("dropout", x, params_.classifier_dropout.value_or(otherwise)); }

 private:
  Value attention(Value x, const BlockNames& names);
  /// 1 for tokens, 0 for padding: f32 [N,T,1]; absent without padding.
  Value token_mask(DType dtype) const;

  Builder& b_;
  const EncoderParams& params_;
  const EncoderInputs& inputs_;
  Value bias_;  // of attention, of attention_mask
  Value words_;
  std::map<std::string, LinearParameters, std::less<>> linears_;  // by path
  struct Norm {
    Value weight, bias;
  };
  std::map<std::string, Norm, std::less<>> norms_;
};

}  // namespace galley
