#include "libcore/onnx/import/decoder.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <tuple>

#include "libcore/base/counted.h"
#include "libcore/base/log.h"
#include "libcore/nn/attention.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/cached_attention.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr std::string_view kTokens = "input_ids", kLogits = "logits", kPast = open_port::kPast, kKey = ".key", kValue = ".value";

bool is_integer(const OnnxValue& value) {
  const OnnxType* type = find_onnx_type(value.data_type);
  return type != nullptr && (type->dtype == DType::kI64 || type->dtype == DType::kI32);
}

bool has_output(const OnnxModel& model, std::string_view name) {
  return std::any_of(model.outputs.begin(), model.outputs.end(), [&](const OnnxValue& output) { return output.name == name; });
}

/// Whether the file has logits of every token, not of the whole text.
bool has_token_logits(const OnnxModel& model) {
  return std::any_of(model.outputs.begin(), model.outputs.end(),
                     [](const OnnxValue& output) { return output.name == kLogits && (output.shape.empty() || output.shape.size() == 3); });
}

/// Rows of the table that the positions select.
int64_t table_of_positions(const OnnxModel& model, std::string_view positions) {
  for (const OnnxNode& node : model.nodes) {
    if (node.op_type != "Gather" || node.inputs.size() != 2 || node.inputs[1] != positions) continue;
    for (const OnnxTensor& tensor : model.initializers) {
      if (tensor.name == node.inputs[0] && tensor.shape.rank() == 2) return tensor.shape[0];
    }
  }
  return 0;
}

/// Whether a node takes a part of a constant [1,1,C,C].
bool has_table_mask(const OnnxModel& model) {
  std::set<std::string_view> tables;
  const auto add = [&](const std::string& name, const OnnxTensor& tensor) {
    const Shape& shape = tensor.shape;
    if (shape.rank() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] == shape[3] && shape[2] > 1) tables.insert(name);
  };
  for (const OnnxTensor& tensor : model.initializers) add(tensor.name, tensor);
  for (const OnnxNode& node : model.nodes) {
    const OnnxAttribute* value = node.op_type == "Constant" && !node.outputs.empty() ? node.find("value") : nullptr;
    if (value != nullptr && value->tensor) add(node.outputs[0], *value->tensor);
  }
  return std::any_of(model.nodes.begin(), model.nodes.end(), [&](const OnnxNode& node) {
    return node.op_type == "Slice" && !node.inputs.empty() && tables.contains(node.inputs[0]);
  });
}

/// Heads and features of an input of keys or values.
std::pair<int64_t, int64_t> past_sizes(const Source& source, const OnnxValue& input) {
  const OnnxType* type = find_onnx_type(input.data_type);
  const std::vector<OnnxDimension>& shape = input.shape;
  const bool known = type != nullptr && type->dtype == DType::kF32 && shape.size() == 4 && shape[1].size && shape[3].size &&
                     *shape[1].size > 0 && *shape[3].size > 0 && *shape[1].size <= kMaxConstant && *shape[3].size <= kMaxConstant;
  GALLEY_CHECK_INPUT(known, source.path(), ": the input '", input.name.substr(0, 200),
                     "' must be float32 [samples, heads, earlier tokens, features], with the numbers of heads and of features");
  return {*shape[1].size, *shape[3].size};
}

/// The layers whose keys and values are inputs; nullopt if they are not complete.
std::optional<std::vector<PastLayer>> past_layers(const Source& source) {
  std::vector<PastLayer> layers;
  std::map<std::string, const OnnxValue*> values;
  const OnnxModel& model = source.model();
  for (const OnnxValue& input : model.inputs) {
    if (input.name.starts_with(kPast) && input.name.ends_with(kValue)) values[input.name] = &input;
  }
  size_t count = 0;
  for (const OnnxValue& input : model.inputs) {
    if (!input.name.starts_with(kPast)) continue;
    ++count;
    if (!input.name.ends_with(kKey)) continue;
    PastLayer layer{.name = input.name.substr(0, input.name.size() - kKey.size()), .key = input.name};
    layer.value = cat(layer.name, kValue);
    const std::string made = cat(open_port::kPresent, layer.name.substr(kPast.size()));
    layer.made[0] = cat(made, kKey);
    layer.made[1] = cat(made, kValue);
    const auto found = values.find(layer.value);
    if (found == values.end() || !has_output(model, layer.made[0]) || !has_output(model, layer.made[1])) return std::nullopt;
    const auto sizes = past_sizes(source, input);
    GALLEY_CHECK_INPUT(past_sizes(source, *found->second) == sizes, source.path(), ": the inputs '", layer.key.substr(0, 200), "' and '",
                       layer.value.substr(0, 200), "' have different numbers of heads or features, which Galley does not support");
    std::tie(layer.heads, layer.width) = sizes;
    layers.push_back(std::move(layer));
  }
  if (count != 2 * layers.size()) return std::nullopt;
  return layers;
}

/// The inputs of one program with a cache, made from those that generation feeds. Row `position` of a sequence's cache has the keys and
/// then the values of the token at that position.
class Continued {
 public:
  Continued(Builder& b, Value tokens) : b_(b), n_(tokens.shape()[0]), length_(tokens.shape()[1]), capacity_(b.cache()) {
    start_ = b.fed(cache_input::kStart, {.dtype = DType::kI64, .shape = {n_}});
    if (length_ > 1) last_ = b.fed(cache_input::kLast, {.dtype = DType::kI64, .shape = {n_}});
    first_ = where(less(start_, number(0)), number(0), start_);
  }

  /// [N,capacity+T]: 1 for the last `start` of the earlier places, and for the new tokens up to `last`.
  Value mask() {
    const Value place = iota(b_.graph(), DType::kI64, {1, capacity_}, 1);
    const Value earlier = cast(greater(add(reshape(start_, {n_, 1}), place), number(capacity_ - 1)), DType::kI64);
    ConcatAttrs along;
    along.axis = 1;
    std::vector<Value> parts{earlier};
    if (length_ == 1) {
      parts.push_back(full(b_.graph(), {.dtype = DType::kI64, .shape = {n_, 1}}, 1));
    } else {
      const Value padding = greater(iota(b_.graph(), DType::kI64, {1, length_}, 1), reshape(last_, {n_, 1}));
      parts.push_back(where(padding, number(0), number(1)));
    }
    return concat(parts, along);
  }

  /// The keys and values of a layer: the file's inputs [N,H,capacity,D]. The first `start` rows of the cache are at the last places; others
  /// are masked.
  std::pair<Value, Value> past(const PastLayer& layer) {
    const int64_t heads = 2 * layer.heads;
    Layer made{.type = b_.cache_dtype()};
    made.cache = b_.carried(cat(layer.name, ".cache"), {.dtype = made.type, .shape = {n_, capacity_, heads, layer.width}});
    if (made.type == DType::kI8)
      made.scales = b_.carried(cat(layer.name, ".cache_scales"), {.dtype = DType::kF32, .shape = {n_, capacity_, heads}});
    const Value rows = reshape(as_float(made.cache, made.scales), Shape{n_ * capacity_ * heads, layer.width});
    const Value index = places(layer.heads);
    made.keys = embedding(rows, index);
    made.values = embedding(rows, add(index, number(layer.heads)));
    layers_.push_back(made);
    return {made.keys, made.values};
  }

  /// Attention to the keys and values that the file puts together from `past` and the new ones: of the cache itself, without the copies,
  /// after it has the new ones. Its rows are in another order than the file's places, so is the bias.
  Value attend(Importer& to, const AttentionInputs& inputs, const AttentionAttrs& attrs) {
    const auto [earlier_keys, keys] = parts_of(to, inputs.k);
    const auto [earlier_values, values] = parts_of(to, inputs.v);
    if (!keys || !values || !inputs.bias || inputs.lengths || inputs.position) return {};
    const auto layer = std::find_if(layers_.begin(), layers_.end(), [&, k = earlier_keys, v = earlier_values](const Layer& item) {
      return item.keys.id() == k.id() && item.values.id() == v.id();
    });
    if (layer == layers_.end() || layer->stored) return {};
    const CachedAttention written = write(*layer, keys, values);
    return attention({.q = inputs.q,
                      .k = as_float(written.cache, written.scales),
                      .bias = bias_of_rows(inputs.bias),
                      .lengths = add(first_, length_ == 1 ? ones() : add(last_, ones()))},
                     attrs)
        .o;
  }

  /// Stores the keys and values of the new tokens, the last of `keys` and `values` [N,H,capacity+T,D]. Returns whether `attend` has done
  /// so: otherwise the file reads copies of the cache.
  bool store(size_t layer, Value keys, Value values) {
    const auto added = [&](Value x) { return permute(slice(x, 2, capacity_, capacity_ + length_), {0, 2, 1, 3}); };
    if (layers_[layer].stored) return true;
    write(layers_[layer], added(keys), added(values));
    return false;
  }

 private:
  struct Layer {
    DType type;
    Value cache, scales;
    Value keys = {}, values = {};  // of earlier tokens, as the file's inputs
    bool stored = false;           // whether the new ones are in the cache
  };

  /// Writes keys and values [N,T,H,D] to the cache. Attention to themselves alone does so; its result is not used.
  CachedAttention write(Layer& layer, Value keys, Value values) {
    layer.stored = true;
    CachedAttentionAttrs attrs;
    attrs.window = 1;
    return cached_attention(
        {.q = keys, .k = keys, .v = values, .cache = layer.cache, .scales = layer.scales, .position = start_, .last = last_}, attrs);
  }
  /// Rows of a cache [N,capacity,heads,D] as f32.
  Value as_float(Value cache, Value scales) const {
    Value rows = cache.dtype() == DType::kF32 ? cache : cast(cache, DType::kF32);
    return scales ? mul(rows, unsqueeze(scales, 3)) : rows;
  }
  /// x [N,P+T,H,D] as its transpose's parts: of earlier tokens [N,H,P,D], and of new ones [N,T,H,D]. Absent: it is made in another way.
  static std::pair<Value, Value> parts_of(Importer& to, Value x) {
    const std::vector<int64_t> turned{0, 2, 1, 3};
    const auto transposes = [&](const Node* node) {
      return node != nullptr && node->is("permute") && node->attrs<PermuteAttrs>().order == turned;
    };
    const Node* outer = x ? to.made_by(x) : nullptr;
    if (!transposes(outer)) return {};
    const Value whole = x.graph().at(outer->inputs[0]);
    const Node* joining = to.made_by(whole);
    while (joining != nullptr && joining->is("reshape")) joining = to.made_by(x.graph().at(joining->inputs[0]));  // of heads not repeated
    if (joining == nullptr || !joining->is("concat") || joining->inputs.size() != 2) return {};
    if (x.graph().type(joining->outputs[0]).shape != whole.shape()) return {};
    const int64_t axis = joining->attrs<ConcatAttrs>().axis;
    if (axis != 2 && axis != -2) return {};
    const Value added = x.graph().at(joining->inputs[1]);
    const Node* inner = to.made_by(added);
    return {x.graph().at(joining->inputs[0]), transposes(inner) ? x.graph().at(inner->inputs[0]) : permute(added, turned)};
  }
  /// A bias [1 or N,H,T,capacity+T] of the file's places, for the rows of the cache: row r of a sequence is the place capacity + r - start.
  Value bias_of_rows(Value bias) {
    Value& made = biases_[bias.id()];
    if (made) return made;
    const Shape from{n_, bias.shape()[1], bias.shape()[2], bias.shape()[3]}, to{from[0], from[1], from[2], capacity_};
    const Value place = add(iota(b_.graph(), DType::kI64, {1, 1, 1, capacity_}, 3), sub(number(capacity_), reshape(first_, {n_, 1, 1, 1})));
    const Value last = number(from[3] - 1), index = where(greater(place, last), last, place);  // rows after the new tokens are not read
    return made = gather(bias.shape() == from ? bias : broadcast_to(bias, from), broadcast_to(index, to), 3);
  }
  Value ones() const { return full(b_.graph(), {.dtype = DType::kI64, .shape = {n_}}, 1); }
  Value number(int64_t value) const { return full(b_.graph(), {.dtype = DType::kI64, .shape = {}}, static_cast<double>(value)); }

  /// Rows of a cache's heads, [N,heads,capacity]: of keys.
  Value places(int64_t heads) {
    Value& index = places_[heads];
    if (index) return index;
    const auto counted = [&](const Shape& shape, int64_t axis) { return iota(b_.graph(), DType::kI64, shape, axis); };
    const Value from = add(reshape(start_, {n_, 1, 1}), sub(counted({1, 1, capacity_}, 2), number(capacity_)));
    const Value row = where(less(from, number(0)), number(0), from);
    const Value sequence = mul(counted({n_, 1, 1}, 0), number(capacity_));
    return index = add(mul(add(row, sequence), number(2 * heads)), counted({1, heads, 1}, 1));
  }

  Builder& b_;
  int64_t n_, length_, capacity_;
  Value start_, last_;
  Value first_;  // start_, and 0 of sequences without new tokens
  std::vector<Layer> layers_;
  std::map<ValueId, Value> biases_;  // by those of the file
  std::map<int64_t, Value> places_;  // by the number of heads
};

/// Says once that tokens are slow.
void note_copies(const std::string& path, int64_t layers) {
  static std::atomic_flag told;
  if (told.test_and_set()) return;
  log(LogLevel::kInfo, cat(path, ": the attention of ", counted(layers, "layer"),
                           " is not recognized: each new token copies their keys and values (docs/onnx.md); a hub folder does not"));
}

/// The inputs of a decoder in the file, and what its outputs are for.
class Capture {
 public:
  Capture(Builder& b, const DecoderFile& decoder, Value tokens)
      : b_(b), decoder_(decoder), tokens_(tokens), n_(tokens.shape()[0]), length_(tokens.shape()[1]) {
    if (b.cache() > 0) continued_.emplace(b, tokens);
  }

  NamedValues run(const std::shared_ptr<const Source>& source) {
    ImportOptions options{.outputs = {decoder_.logits}, .batch = n_};
    if (continued_) {
      options.attend = [&](Importer& to, const AttentionInputs& given, const AttentionAttrs& attrs) {
        return continued_->attend(to, given, attrs);
      };
    }
    const NamedValues inputs = make_inputs(options);
    Importer importer(b_, source, options);
    const NamedValues results = importer.run(inputs);
    Value logits = results.front().second;
    GALLEY_CHECK_INPUT(logits.shape().rank() == 3 && logits.shape()[0] == n_ && logits.shape()[1] == length_, source->path(),
                       ": the output 'logits' is ", logits.type(), ", but must be [samples, tokens, vocabulary]");
    int64_t copied = 0;  // layers
    for (size_t i = 0; i + 1 < results.size(); i += 2) {
      const PastLayer& layer = decoder_.past[i / 2];
      const Shape expected{n_, layer.heads, earlier() + length_, layer.width};
      for (const size_t part : {i + 1, i + 2}) {
        GALLEY_CHECK_INPUT(results[part].second.shape() == expected, source->path(), ": the output '", results[part].first, "' is ",
                           results[part].second.type(), ", but must be ", expected);
        if (!continued_) b_.graph().add_output(results[part].first, results[part].second);
      }
      if (continued_ && !continued_->store(i / 2, results[i + 1].second, results[i + 2].second)) ++copied;
    }
    if (copied > 0) note_copies(source->path(), copied);
    if (continued_) logits = last_tokens(b_, logits);
    return {{decoder_.logits, logits}};
  }

 private:
  /// Places of earlier tokens.
  int64_t earlier() const { return continued_ ? b_.cache() : is_open(b_) ? -1 - b_.cache() : 0; }

  Value mask() {
    if (continued_) return continued_->mask();
    const TensorType type{.dtype = DType::kI64, .shape = {n_, earlier() + length_}};
    return is_open(b_) ? b_.fed(open_port::kMask, type) : full(b_.graph(), type, 1);
  }
  Value positions() {
    if (has_positions(b_)) return fed_positions(b_, n_, length_);
    return broadcast_to(iota(b_.graph(), DType::kI64, {1, length_}, 1), Shape{n_, length_});
  }

  NamedValues make_inputs(ImportOptions& options) {
    NamedValues inputs{{decoder_.tokens, cast(tokens_, decoder_.tokens_type)}};
    if (!decoder_.mask.empty()) inputs.emplace_back(decoder_.mask, cast(mask(), decoder_.mask_type));
    if (!decoder_.positions.empty()) inputs.emplace_back(decoder_.positions, cast(positions(), decoder_.positions_type));
    for (const PastLayer& layer : decoder_.past) {
      const TensorType type{.dtype = DType::kF32, .shape = {n_, layer.heads, earlier(), layer.width}};
      if (earlier() == 0) {
        for (const std::string& name : {layer.key, layer.value}) options.constants.emplace(name, Tensor(type.dtype, type.shape));
        continue;
      }
      const auto [keys, values] = continued_ ? continued_->past(layer) : std::pair(b_.fed(layer.key, type), b_.fed(layer.value, type));
      inputs.emplace_back(layer.key, keys);
      inputs.emplace_back(layer.value, values);
      options.outputs.insert(options.outputs.end(), {layer.made[0], layer.made[1]});
    }
    return inputs;
  }

  Builder& b_;
  const DecoderFile& decoder_;
  Value tokens_;
  int64_t n_, length_;
  std::optional<Continued> continued_;
};

}  // namespace

std::optional<DecoderFile> find_decoder(const Source& source) {
  const OnnxModel& model = source.model();
  DecoderFile found;
  bool has_past = false;
  for (const OnnxValue& input : model.inputs) {
    if (input.name.starts_with(kPast)) {
      has_past = true;
      continue;
    }
    if (!is_integer(input) || input.shape.size() != 2) return std::nullopt;
    const DType dtype = *find_onnx_type(input.data_type)->dtype;
    const auto take = [&](std::string_view name, std::string& as, DType& type) {
      if (input.name != name) return false;
      as = input.name;
      type = dtype;
      return true;
    };
    if (!take(kTokens, found.tokens, found.tokens_type) && !take(open_port::kMask, found.mask, found.mask_type) &&
        !take(open_port::kPositions, found.positions, found.positions_type))
      return std::nullopt;
  }
  // Encoders have no positions as an input.
  if (found.tokens.empty() || (!has_past && found.positions.empty()) || !has_token_logits(model)) return std::nullopt;
  found.logits = kLogits;
  std::optional<std::vector<PastLayer>> layers = past_layers(source);
  if (!layers) return std::nullopt;
  found.past = std::move(*layers);
  found.context = table_of_positions(model, found.positions);
  found.table_mask = has_table_mask(model);
  return found;
}

NamedValues capture_decoder(Builder& b, const std::shared_ptr<const Source>& source, const DecoderFile& decoder, Value tokens) {
  GALLEY_CHECK(tokens.shape().rank() == 2 && (tokens.dtype() == DType::kI64 || tokens.dtype() == DType::kI32),
               "[onnx] the input must be integers [N,T] (batch, tokens), it is ", tokens.type());
  GALLEY_ASSERT(b.cache() <= 0 || decoder.continues());
  return Capture(b, decoder, tokens).run(source);
}

}  // namespace galley::onnx_import
