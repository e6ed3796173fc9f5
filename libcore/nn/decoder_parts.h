#pragma once
// What the decoder-only models of hub folders share (zoo_gpt2.cpp, zoo_llama.cpp). Their options have the names of config.json.

#include <array>
#include <limits>
#include <optional>
#include <string_view>

#include "libcore/nn/attention.h"
#include "libcore/nn/builder.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::decoder {

/// config.json's names of activations: hidden_act, activation_function.
enum class HiddenActivation { kSilu, kGelu, kGeluNew, kGeluPytorchTanh, kRelu };
inline constexpr std::array<std::string_view, 5> kHiddenActivationNames{"silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};
inline Value activate(Value x, HiddenActivation activation) {
  GeluAttrs tanh;
  tanh.approximate = GeluApproximation::kTanh;
  switch (activation) {
    case HiddenActivation::kSilu: return silu(x);
    case HiddenActivation::kGelu: return gelu(x);
    case HiddenActivation::kGeluNew:
    case HiddenActivation::kGeluPytorchTanh: return gelu(x, tanh);
    case HiddenActivation::kRelu: return relu(x);
  }
  GALLEY_ASSERT(false);
}

/// A linear layer whose parameters are declared before it is applied: published models list parameters in another order than they are used.
struct Linear {
  std::string_view name;
  LinearParameters parameters;
  static Linear declare(Builder& b, std::string_view name, int64_t in, int64_t out, bool bias, double stddev) {
    const auto module = b.scope(name);
    return {name, b.linear_parameters({out, in}, Init::normal(stddev), bias ? std::optional(Init::zeros()) : std::nullopt)};
  }
  Value operator()(Builder& b, Value x) const {
    const auto module = b.scope(name);
    return b.linear(x, parameters);
  }
};

/// What stands above the blocks: the next token at every position, or the class of the whole text.
enum class DecoderHead { kLm, kSequenceClassification };
inline constexpr std::array<std::string_view, 2> kDecoderHeadNames{"lm", "sequence_classification"};

/// Base of the parameters of decoders with several heads.
struct HeadParams {
  DecoderHead head = DecoderHead::kLm;
  int64_t num_labels = 2;

  bool classifies() const { return head == DecoderHead::kSequenceClassification; }

 protected:
  void visit_head(OptionVisitor& v) {
    v.choice({.name = "head", .doc = "what stands above the blocks: the next token, or the class of a text by its last token"}, head,
             kDecoderHeadNames);
    v.option({.name = "num_labels", .doc = "classes of the head sequence_classification", .min = 1}, num_labels);
  }
};

inline constexpr std::string_view kIds = "input_ids", kMask = "attention_mask", kLengths = "input_ids.length";

/// The inputs of a decoder-only model.
struct Inputs {
  Value tokens;         // [N,T]
  Value positions;      // position_ids [N,T]; absent: one document a sequence
  Value mask, lengths;  // of a classifier: [N,T] of 0 after the text, or the number of its tokens [N]
  static Inputs of(const NamedValues& given) {
    Inputs inputs;
    for (const auto& [name, value] : given) {
      (name == kPositionIds ? inputs.positions : name == kMask ? inputs.mask : name == kLengths ? inputs.lengths : inputs.tokens) = value;
    }
    if (inputs.positions) {
      GALLEY_CHECK(inputs.positions.dtype() == DType::kI64 && inputs.positions.shape() == inputs.tokens.shape(), "the input `",
                   kPositionIds, "` is ", inputs.positions.type(), "; it must be i64 of the shape of the tokens, ", inputs.tokens.type());
    }
    return inputs;
  }
};

/// Throws where samples are longer than `context`. `limit`: its name, "the context of 64".
inline void check_length(std::string_view model, int64_t tokens, int64_t context, const std::string& limit) {
  if (tokens <= context) return;
  throw Error(ErrorCode::kRecipe, cat("[", model, "] a sample has ", tokens, " tokens, more than ", limit))
      .key("data.train.source.sequence_length")
      .suggest(cat("set data.train.source.sequence_length (max_length of samples of one text) to at most ", context));
}

/// Checks that x is [N,T] of at most `context` tokens.
inline void check_tokens(std::string_view model, Value x, int64_t context) {
  GALLEY_CHECK(x.shape().rank() == 2 && (x.dtype() == DType::kI64 || x.dtype() == DType::kI32), "[", model,
               "] the input must be integers [N,T] (batch, tokens), it is ", x.type());
  check_length(model, x.shape()[1], context, cat("the context of ", context));
}

inline Value embedding_table(Builder& b, std::string_view name, int64_t rows, int64_t width, double stddev) {
  const auto module = b.scope(name);
  return b.parameter("weight", {rows, width}, Init::normal(stddev), "embedding");
}

/// The rows of a table of positions for tokens of this shape [N,T]: those of position_ids, of a program with a cache, or the first T.
inline Value positions_of(Builder& b, Value table, Value position_ids, const Shape& tokens) {
  if (position_ids) return embedding(table, position_ids);
  if (has_positions(b)) return embedding(table, fed_positions(b, tokens[0], tokens[1]));
  return slice(table, 0, 0, tokens[1]);
}

/// The head on x [...,E]: the token embedding where it is tied, else a layer of its own.
inline Value head(Builder& b, Value x, Value table, bool tied, double stddev) {
  if (!tied) return Linear::declare(b, "lm_head", x.shape()[-1], table.shape()[0], false, stddev)(b, x);
  const auto module = b.scope("lm_head");
  return linear(x, table);
}

/// The logits [N,labels] of texts by the last token of each, x [N,T,E]. Padding stands after it, and so changes nothing.
inline Value classify(Builder& b, Value x, const Inputs& inputs, int64_t labels, double stddev) {
  const int64_t n = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  Value tokens;
  if (inputs.lengths) tokens = cast(inputs.lengths, DType::kF32);
  if (!tokens && inputs.mask) tokens = sum(cast(inputs.mask, DType::kF32), {1});
  Value last;
  if (tokens) {
    // Rows that fill up a batch have no tokens.
    const Value place = cast(clamp(affine(tokens, 1, -1), 0, std::numeric_limits<double>::infinity()), DType::kI64);
    const Value chosen = equal(iota(b.graph(), DType::kI64, {n, length}, 1), reshape(place, {n, 1}));
    last = sum(mul(x, reshape(cast(chosen, x.dtype()), {n, length, 1})), {1});
  } else {
    last = slice(x, 1, length - 1, length);
  }
  return Linear::declare(b, "score", width, labels, false, stddev)(b, reshape(last, {n, width}));
}

/// The information of a classifier, which reads texts of any length up to the context.
inline ModelInfo classifier_info(std::string_view family, int64_t context, int64_t labels) {
  ModelInfo info{std::string(family), labels > 1 ? ModelOutput::kClasses : ModelOutput::kOther, {context}, {"T"}, {}};
  info.input_dtype = DType::kI64;
  info.max_length = context;
  info.named_outputs = true;
  const auto input = [&](std::string_view name, std::vector<int64_t> shape, bool optional) {
    std::vector<std::string> names(shape.size(), "T");
    info.inputs.push_back(
        {.name = std::string(name), .shape = std::move(shape), .names = std::move(names), .dtype = DType::kI64, .optional = optional});
  };
  input(kIds, {context}, false);
  input(kMask, {context}, true);
  input(kLengths, {}, true);
  return info;
}

inline ModelInfo info(std::string_view family, int64_t context) {
  ModelInfo info{std::string(family), ModelOutput::kTokens, {context}, {"T"}, {}};
  info.input_dtype = DType::kI64;
  info.cache = true;
  info.named_outputs = true;  // logits
  return info;
}

}  // namespace galley::decoder
