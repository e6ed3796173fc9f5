// Language models: they predict the next token at every position of a text.

#include "libcore/nn/language_model.h"
#include "libcore/nn/recurrent.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

struct RnnLmParams : OptionsOf<RnnLmParams>, LanguageModelParams {
  Cell cell = Cell::kLstm;
  std::optional<int64_t> vocab;
  int64_t embedding_dim = 200, hidden_size = 200, num_layers = 2;
  double dropout = 0.2;
  bool tie_weights = false;
  int64_t sequence_length = 64;
  void options(OptionVisitor& v) override {
    v.choice({.name = "cell", .doc = "lstm, gru or rnn", .main = true}, cell, kCellNames);
    v.option({.name = "vocab", .doc = "size of the vocabulary; default: that of data.tokenizer, or 256 (bytes) without one", .min = 1},
             vocab);
    v.option({.name = "embedding_dim", .doc = "size of a token's embedding", .min = 1}, embedding_dim);
    v.option({.name = "hidden_size", .doc = "units per layer", .min = 1}, hidden_size);
    v.option({.name = "num_layers", .doc = "recurrent layers", .min = 1}, num_layers);
    v.option({.name = "dropout", .doc = "dropout of the embeddings, between layers and before the output layer", .min = 0, .max = 1},
             dropout);
    v.option({.name = "tie_weights",
              .doc = "share the weight of the embedding with the output layer (Press, Wolf 2017); hidden_size must equal embedding_dim"},
             tie_weights);
    v.option({.name = "sequence_length", .doc = "tokens per sample if the data do not determine it: benchmarks, shapes", .min = 1},
             sequence_length);
  }
  std::string_view vocabulary_key() const override { return "vocab"; }
  std::optional<int64_t>& vocabulary() override { return vocab; }
};

/// The model of PyTorch's example word_language_model: encoder (an embedding), rnn, decoder (a linear layer). The state is zero at the
/// start of each sample.
NamedValues rnn_lm(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<RnnLmParams>(options);
  const int64_t vocab = params.tokens();
  GALLEY_CHECK(x.shape().rank() == 2 && (x.dtype() == DType::kI64 || x.dtype() == DType::kI32),
               "[rnn_lm] needs an integer input [N,T] (batch, tokens), not ", x.type());
  GALLEY_CHECK(!params.tie_weights || params.hidden_size == params.embedding_dim,
               "[rnn_lm] tie_weights needs hidden_size = embedding_dim, but they are ", params.hidden_size, " and ", params.embedding_dim);
  const Init start = Init::uniform(0.1);
  Value table;
  {
    const auto module = b.scope("encoder");
    table = b.parameter("weight", {vocab, params.embedding_dim}, start, "embedding");
    x = embedding(table, x);
  }
  x = b.dropout("drop", x, params.dropout);
  RecurrentOptions layers{
      .cell = params.cell, .hidden_size = params.hidden_size, .num_layers = params.num_layers, .dropout = params.dropout};
  x = recurrent(b, "rnn", x, layers).y;
  x = b.dropout("drop", x, params.dropout);
  if (!params.tie_weights) {
    const auto init = b.use_init({.linear_weight = start, .linear_bias = Init::zeros()});
    return {{"logits", b.linear("decoder", x, {.out_features = vocab})}};
  }
  const auto module = b.scope("decoder");
  return {{"logits", linear(x, table, b.parameter("bias", {vocab}, Init::zeros(), "linear"))}};
}

ModelInfo rnn_lm_info(const Options& options) {
  ModelInfo info{"rnn_lm", ModelOutput::kTokens, {params_of<RnnLmParams>(options).sequence_length}, {"T"}, {}};
  info.input_dtype = DType::kI64;
  return info;
}

}  // namespace

ModelTable language_models() {
  return {{{"rnn_lm", "recurrent language model: table, LSTM, GRU or RNN, linear layer", make_options<RnnLmParams>}, rnn_lm, rnn_lm_info}};
}

const LanguageModelParams* language_model_params(const Component& model) {
  return dynamic_cast<const LanguageModelParams*>(model.params.get());
}

Component with_vocabulary(Component model, int64_t tokens) {
  if (auto* params = dynamic_cast<LanguageModelParams*>(model.params.get())) {
    if (!params->vocabulary()) params->vocabulary() = tokens;
  }
  return model;
}

}  // namespace galley
