// Items of a pipeline that change tokens.

#include <algorithm>
#include <functional>

#include "libcore/data/pack.h"
#include "libcore/data/transform.h"
#include "libcore/text/tokenizer.h"

namespace galley {

void MaskTokens::options(OptionVisitor& visitor) {
  visitor.option({.name = "p", .doc = "Share of the tokens that are hidden", .min = 0, .max = 1, .main = true}, p);
  visitor.option({.name = "replace", .doc = "Share of these that become the mask", .min = 0, .max = 1}, replace);
  visitor.option({.name = "random", .doc = "Share of these that become another token; the rest stays as it is", .min = 0, .max = 1},
                 random);
  visitor.option({.name = "targets",
                  .doc = "true: the model must find the hidden tokens, at least one of a sample, which become its label. false: the label "
                         "stays, and tokens are hidden as augmentation"},
                 targets);
  visitor.option({.name = "mask", .doc = "The mask's piece; default: [MASK] or <mask>"}, mask);
  visitor.option({.name = "field", .doc = "Field of tokens"}, field);
}

void MaskTokens::check() const {
  GALLEY_CHECK(replace + random <= 1 + 1e-9, "[mask_tokens] `replace` is ", replace, " and `random` is ", random,
               "; their sum must be at most 1");
}

int32_t MaskTokens::mask_id() const {
  GALLEY_CHECK(tokenizer != nullptr, "[mask_tokens] the recipe has no tokenizer; set data.tokenizer");
  for (const std::string& piece : mask.empty() ? std::vector<std::string>{"[MASK]", "<mask>"} : std::vector<std::string>{mask}) {
    if (const auto id = tokenizer->id(piece)) return *id;
  }
  fail(ErrorCode::kRecipe, "[mask_tokens] the tokenizer (", tokenizer->str(), ") has no ", mask.empty() ? "[MASK] or <mask>" : mask,
       "; set `mask` to one of its pieces");
}

std::vector<FieldType> MaskTokens::fields(std::vector<FieldType> in) const {
  const FieldType* tokens = find_field(std::span<const FieldType>(in), field);
  GALLEY_CHECK(tokens != nullptr, "the samples have no field '", field, "'; they have ", field_names(in));
  GALLEY_CHECK(tokens->kind == FieldKind::kTokens && tokens->dtype == DType::kI64, "needs tokens; the field '", field, "' holds ",
               field_kind_name(tokens->kind), ": ", *tokens);
  mask_id();
  if (!targets) return in;
  FieldType label = *tokens;
  label.name = "label";
  label.kind = FieldKind::kClass;
  // The sizes of labels as text (TextFiles) are those of the labels before.
  std::erase_if(in, [](const FieldType& other) { return other.name == "label" || other.name == "text_size"; });
  in.push_back(label);
  return in;
}

void MaskTokens::apply_to_sample(Sample& sample, RandomStream& stream) const {
  FieldValue* value = sample.find(field);
  GALLEY_ASSERT(value != nullptr && std::holds_alternative<Tensor>(*value), "no field ", field);
  const Tensor& given = std::get<Tensor>(*value);
  const int64_t count = given.elements(), vocabulary = tokenizer->size();
  Tensor tokens(DType::kI64, given.shape()), label(DType::kI64, given.shape());
  std::copy_n(given.data_as<int64_t>(), count, tokens.data_as<int64_t>());
  std::fill_n(label.data_as<int64_t>(), count, kNoLabel);
  std::vector<int64_t> ordinary;
  for (int64_t i = 0; i < count; ++i) {
    if (!tokenizer->is_special(given.data_as<int64_t>()[i])) ordinary.push_back(i);
  }
  const int32_t masked = mask_id();
  const auto hide = [&](int64_t i) {
    int64_t& token = tokens.data_as<int64_t>()[i];
    label.data_as<int64_t>()[i] = token;
    const double draw = stream.uniform();
    if (draw < replace) {
      token = masked;
    } else if (draw < replace + random) {
      do {
        token = static_cast<int64_t>(stream.below(static_cast<uint64_t>(vocabulary)));
      } while (!tokenizer->has(token));
    }
  };
  int64_t hidden = 0;
  for (const int64_t i : ordinary) {
    if (stream.uniform() >= p) continue;
    hide(i);
    ++hidden;
  }
  if (targets && hidden == 0 && !ordinary.empty()) hide(ordinary[stream.below(ordinary.size())]);
  *value = std::move(tokens);
  if (!targets) return;
  for (auto& [name, other] : sample.fields()) {
    if (name != "label") continue;
    other = std::move(label);
    return;
  }
  sample.set("label", std::move(label));
}

void Bucket::options(OptionVisitor& visitor) {
  visitor.option({.name = "lengths",
                  .doc = "Lengths for which training is compiled, ascending",
                  .unit = "tokens",
                  .min = 1,
                  .required = true,
                  .main = true},
                 lengths);
}

void Bucket::check() const {
  GALLEY_CHECK(!lengths.empty() && std::adjacent_find(lengths.begin(), lengths.end(), std::greater_equal<>()) == lengths.end(),
               "[bucket] `lengths` must ascend, e.g. [16, 32, 64]");
  GALLEY_CHECK(lengths.size() <= 32, "[bucket] `lengths` has ", lengths.size(), " values; at most 32 programs are compiled");
}

std::vector<FieldType> Bucket::fields(std::vector<FieldType> in) const {
  bool padded = false;
  for (FieldType& type : in) {
    if (type.layout != FieldLayout::kPadded) continue;
    type.sample.front() = lengths.back();
    type.lengths = lengths;
    padded = true;
  }
  GALLEY_CHECK(padded, "[bucket] is for fields of different length; the samples have ", field_names(in));
  return in;
}

void with_tokenizer(std::vector<Component>& items, const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  for (Component& item : items) {
    if (auto* mask = dynamic_cast<MaskTokens*>(item.params.get())) mask->tokenizer = tokenizer;
    if (auto* pack = dynamic_cast<Pack*>(item.params.get())) pack->tokenizer = tokenizer;
  }
}

}  // namespace galley
