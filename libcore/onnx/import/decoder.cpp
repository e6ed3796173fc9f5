#include "libcore/onnx/import/decoder.h"

#include <algorithm>
#include <map>

#include "libcore/nn/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/cache.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr std::string_view kTokens = "input_ids", kMask = "attention_mask", kPositions = "position_ids", kPast = "past_key_values.",
                           kPresent = "present.", kLogits = "logits";

bool is_integer(const OnnxValue& value) {
  const OnnxType* type = find_onnx_type(value.data_type);
  return type != nullptr && (type->dtype == DType::kI64 || type->dtype == DType::kI32);
}

/// Rows of the table that the positions select.
int64_t table_of_positions(const OnnxModel& model) {
  for (const OnnxNode& node : model.nodes) {
    if (node.op_type != "Gather" || node.inputs.size() != 2 || node.inputs[1] != kPositions) continue;
    for (const OnnxTensor& tensor : model.initializers) {
      if (tensor.name == node.inputs[0] && tensor.shape.rank() == 2) return tensor.shape[0];
    }
  }
  return 0;
}

PastInput past_input(const Source& source, const OnnxValue& input) {
  PastInput past{.input = input.name, .output = cat(kPresent, input.name.substr(kPast.size()))};
  const OnnxType* type = find_onnx_type(input.data_type);
  const std::vector<OnnxDimension>& shape = input.shape;
  const bool known = type != nullptr && type->dtype == DType::kF32 && shape.size() == 4 && shape[1].size && shape[3].size &&
                     *shape[1].size > 0 && *shape[3].size > 0 && *shape[1].size <= kMaxConstant && *shape[3].size <= kMaxConstant;
  GALLEY_CHECK_INPUT(known, source.path(), ": the input '", input.name.substr(0, 200),
                     "' must be float32 [samples, heads, earlier tokens, features], with the numbers of heads and of features");
  past.heads = *shape[1].size;
  past.width = *shape[3].size;
  return past;
}

/// The inputs of one program with a cache, made from those that a Decoder feeds. Row `position` of a sequence's cache has the keys of the
/// token at that position.
class Continued {
 public:
  Continued(Builder& b, Value tokens) : b_(b), n_(tokens.shape()[0]), length_(tokens.shape()[1]), capacity_(b.cache()) {
    start_ = b.fed(cache_input::kStart, {.dtype = DType::kI64, .shape = {n_}});
  }

  /// [N,capacity+T]: 1 for the last `start` of the earlier places, and for the new tokens up to `last`.
  Value mask() {
    const Value place = iota(b_.graph(), DType::kI64, {1, capacity_}, 1);
    const Value earlier = cast(greater(add(reshape(start_, {n_, 1}), place), number(capacity_ - 1)), DType::kI64);
    if (length_ == 1) return concat({earlier, full(b_.graph(), {.dtype = DType::kI64, .shape = {n_, 1}}, 1)}, 1);
    const Value last = reshape(b_.fed(cache_input::kLast, {.dtype = DType::kI64, .shape = {n_}}), {n_, 1});
    const Value padding = greater(iota(b_.graph(), DType::kI64, {1, length_}, 1), last);
    return concat({earlier, where(padding, number(0), number(1))}, 1);
  }

  /// The file's input [N,H,capacity,D]: the first `start` rows of a cache [N,capacity,H,D] at the last places; others are masked.
  Value past(Value cache) {
    const int64_t heads = cache.shape()[2], width = cache.shape()[3];
    Value& index = places_[heads];
    if (!index) {
      const auto counted = [&](const Shape& shape, int64_t axis) { return iota(b_.graph(), DType::kI64, shape, axis); };
      const Value from = add(reshape(start_, {n_, 1, 1}), sub(counted({1, 1, capacity_}, 2), number(capacity_)));
      const Value row = where(less(from, number(0)), number(0), from);
      const Value sequence = mul(counted({n_, 1, 1}, 0), number(capacity_));
      index = add(mul(add(row, sequence), number(heads)), counted({1, heads, 1}, 1));
    }
    return embedding(reshape(cache, Shape{n_ * capacity_ * heads, width}), index);
  }

  /// Stores the keys or values of the new tokens, the last of `present` [N,H,capacity+T,D].
  void store(Value cache, Value present) {
    cache_write(cache, permute(slice(present, 2, capacity_, capacity_ + length_), {0, 2, 1, 3}), start_);
  }

 private:
  Value number(int64_t value) const { return full(b_.graph(), {.dtype = DType::kI64, .shape = {}}, static_cast<double>(value)); }

  Builder& b_;
  int64_t n_, length_, capacity_;
  Value start_;
  std::map<int64_t, Value> places_;  // of the rows that `past` reads, by the number of heads
};

}  // namespace

std::optional<DecoderFile> find_decoder(const Source& source) {
  const OnnxModel& model = source.model();
  DecoderFile found;
  for (const OnnxValue& input : model.inputs) {
    const OnnxType* type = find_onnx_type(input.data_type);
    if (input.name.starts_with(kPast)) {
      found.past.push_back(past_input(source, input));
      continue;
    }
    if (!is_integer(input) || input.shape.size() != 2) return std::nullopt;
    if (input.name == kTokens) {
      found.tokens = input.name;
      found.tokens_type = *type->dtype;
    } else if (input.name == kMask) {
      found.mask = input.name;
      found.mask_type = *type->dtype;
    } else if (input.name == kPositions) {
      found.positions = input.name;
      found.positions_type = *type->dtype;
    } else {
      return std::nullopt;
    }
  }
  // Encoders have no positions as an input.
  if (found.tokens.empty() || (found.past.empty() && found.positions.empty())) return std::nullopt;
  const auto has_output = [&](std::string_view name) {
    return std::any_of(model.outputs.begin(), model.outputs.end(), [&](const OnnxValue& output) { return output.name == name; });
  };
  if (!has_output(kLogits)) return std::nullopt;
  found.logits = kLogits;
  for (const PastInput& past : found.past) {
    if (!has_output(past.output)) return std::nullopt;
  }
  found.context = table_of_positions(model);
  return found;
}

NamedValues capture_decoder(Builder& b, const std::shared_ptr<const Source>& source, const DecoderFile& decoder, Value tokens) {
  GALLEY_CHECK(tokens.shape().rank() == 2 && (tokens.dtype() == DType::kI64 || tokens.dtype() == DType::kI32),
               "[onnx] the input must be integers [N,T] (batch, tokens), it is ", tokens.type());
  const int64_t n = tokens.shape()[0], length = tokens.shape()[1];
  const bool cached = b.cache() > 0;
  GALLEY_ASSERT(!cached || decoder.continues());
  std::optional<Continued> continued;
  if (cached) continued.emplace(b, tokens);
  ImportOptions options{.outputs = {decoder.logits}, .batch = n};
  NamedValues inputs{{decoder.tokens, cast(tokens, decoder.tokens_type)}};
  if (!decoder.mask.empty()) {
    const Value mask = cached ? continued->mask() : full(b.graph(), {.dtype = DType::kI64, .shape = {n, length}}, 1);
    inputs.emplace_back(decoder.mask, cast(mask, decoder.mask_type));
  }
  if (!decoder.positions.empty()) {
    const Value positions =
        cached ? fed_positions(b, n, length) : broadcast_to(iota(b.graph(), DType::kI64, {1, length}, 1), Shape{n, length});
    inputs.emplace_back(decoder.positions, cast(positions, decoder.positions_type));
  }
  std::vector<Value> carried;
  for (const PastInput& past : decoder.past) {
    if (!cached) {
      options.constants.emplace(past.input, Tensor(DType::kF32, {n, past.heads, 0, past.width}));
      continue;
    }
    carried.push_back(b.carried(past.input, {.dtype = DType::kF32, .shape = {n, b.cache(), past.heads, past.width}}));
    inputs.emplace_back(past.input, continued->past(carried.back()));
    options.outputs.push_back(past.output);
  }
  Importer importer(b, source, options);
  const NamedValues results = importer.run(inputs);
  Value logits = results.front().second;
  GALLEY_CHECK_INPUT(logits.shape().rank() == 3 && logits.shape()[0] == n && logits.shape()[1] == length, source->path(),
                     ": the output 'logits' is ", logits.type(), ", but must be [samples, tokens, vocabulary]");
  if (!cached) return {{decoder.logits, logits}};
  for (size_t i = 0; i < carried.size(); ++i) {
    const Value present = results[i + 1].second;
    const PastInput& past = decoder.past[i];
    const Shape expected{n, past.heads, b.cache() + length, past.width};
    GALLEY_CHECK_INPUT(present.shape() == expected, source->path(), ": the output '", past.output, "' is ", present.type(),
                       ", but must be ", expected);
    continued->store(carried[i], present);
  }
  logits = last_tokens(b, logits);
  return {{decoder.logits, logits}};
}

}  // namespace galley::onnx_import
