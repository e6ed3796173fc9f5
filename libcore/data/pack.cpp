#include "libcore/data/pack.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/data/documents.h"
#include "libcore/data/special_tokens.h"
#include "libcore/data/text_size.h"

namespace galley {
namespace {

/// The texts of a source as one sequence of tokens, cut into blocks.
class PackedSource : public Source {
 public:
  struct Form {
    int64_t length = 0, stride = 0;
    std::optional<int32_t> end;
    bool separate = false;
  };

  PackedSource(std::shared_ptr<const TextDocuments> source, const text::Tokenizer& tokenizer, Form form)
      : source_(std::move(source)), form_(form), sizes_(text_sizes(tokenizer)) {
    for (int64_t i = 0; i < source_->documents(); ++i) {
      TokenList tokens = source_->document(i);
      if (tokens.size() == 0) continue;
      begins_.push_back(count_);
      count_ += tokens.size();
      if (form_.end && tokens[tokens.size() - 1] != *form_.end) ++count_;
      numbers_.push_back(i);
      documents_.push_back(std::move(tokens));
    }
    GALLEY_CHECK_INPUT(count_ > 1, source_->describe(), ": the texts have ", count_ == 0 ? "no token" : "only one token",
                       "; prediction needs at least two");
  }

  int64_t size() const override {
    const int64_t rest = std::max<int64_t>(0, count_ - 1 - form_.length);
    return 1 + (rest + form_.stride - 1) / form_.stride;
  }
  std::vector<FieldType> fields() const override {
    const int64_t length = form_.length;
    std::vector<FieldType> fields{
        {.name = "input", .kind = FieldKind::kTokens, .dtype = DType::kI64, .sample = {length}, .classes = std::ssize(sizes_)},
        {.name = "label", .kind = FieldKind::kClass, .dtype = DType::kI64, .sample = {length}},
        {.name = "text_size", .kind = FieldKind::kValues, .dtype = DType::kI32, .sample = {length, 2}}};
    if (form_.separate) fields.push_back({.name = "position_ids", .kind = FieldKind::kValues, .dtype = DType::kI64, .sample = {length}});
    return fields;
  }
  Sample read(int64_t index) const override {
    const int64_t length = form_.length, begin = index * form_.stride, used = std::min(length, count_ - 1 - begin);
    const int64_t known = index == 0 ? 0 : length - form_.stride;  // labels of the block before
    Tensor input(DType::kI64, {length}), label(DType::kI64, {length}), sizes(DType::kI32, {length, 2}), places(DType::kI64, {length});
    Cursor cursor = at(begin);
    Step step = next(cursor);
    int64_t place = 0;
    for (int64_t i = 0; i < length; ++i) {
      const bool holds = i < used;
      if (holds && step.begins) place = 0;
      const Step following = holds ? next(cursor) : Step{};
      const bool labelled = holds && i >= known && !(form_.separate && following.begins);
      const TextSize size = labelled && !following.added ? sizes_[static_cast<size_t>(following.token)] : TextSize{};
      input.data_as<int64_t>()[i] = holds ? step.token : 0;
      label.data_as<int64_t>()[i] = labelled ? following.token : Pack::kNoLabel;
      sizes.data_as<int32_t>()[2 * i] = size.characters;
      sizes.data_as<int32_t>()[2 * i + 1] = size.bytes;
      places.data_as<int64_t>()[i] = place++;
      step = following;
    }
    Sample sample;
    sample.set("input", std::move(input));
    sample.set("label", std::move(label));
    sample.set("text_size", std::move(sizes));
    if (form_.separate) sample.set("position_ids", std::move(places));
    return sample;
  }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override {
    const Cursor cursor = at(index * form_.stride);
    return cat(source_->document_name(numbers_[cursor.document]), "[token ", cursor.token, "]");
  }
  std::string describe() const override {
    return cat(source_->describe(), "; packed: ", documents_.size(), " texts, ", count_, " tokens, ", size(), " blocks of ", form_.length);
  }

 private:
  struct Cursor {
    size_t document = 0;
    int64_t token = 0;  // of the document; its size: the end token that pack added
    bool after_end = false;
  };
  struct Step {
    int32_t token = 0;
    bool begins = false;  // it is the first of a document
    bool added = false;   // it is an end token that no text has
  };

  Cursor at(int64_t position) const {
    const auto document = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), position) - begins_.begin()) - 1;
    return {.document = document, .token = position - begins_[document]};
  }
  /// The token at a cursor, which moves on.
  Step next(Cursor& cursor) const {
    const TokenList& tokens = documents_[cursor.document];
    Step step{.begins = cursor.token == 0 || cursor.after_end, .added = cursor.token == tokens.size()};
    step.token = step.added ? *form_.end : tokens[cursor.token];
    cursor.after_end = form_.end && step.token == *form_.end;
    ++cursor.token;
    const int64_t following = cursor.document + 1 < begins_.size() ? begins_[cursor.document + 1] : count_;
    if (begins_[cursor.document] + cursor.token == following) cursor = {.document = cursor.document + 1, .token = 0};
    return step;
  }

  std::shared_ptr<const TextDocuments> source_;
  Form form_;
  std::vector<TextSize> sizes_;       // by id
  std::vector<TokenList> documents_;  // those that have tokens
  std::vector<int64_t> numbers_;      // their numbers in the source
  std::vector<int64_t> begins_;       // their first tokens in the sequence
  int64_t count_ = 0;
};

}  // namespace

void Pack::options(OptionVisitor& visitor) {
  visitor.option({.name = "length", .doc = "Tokens of a block; default: the model's", .min = 1, .main = true}, length);
  visitor.option({.name = "stride", .doc = "Tokens from the beginning of a block to that of the next; default: length", .min = 1}, stride);
  visitor.option({.name = "end",
                  .doc = "The piece of the tokenizer that ends each text; auto: the usual one (docs/tools.md); none: texts have no end"},
                 end);
  visitor.option({.name = "separate", .doc = "Tokens attend to those of their own text alone, and positions count from its beginning"},
                 separate);
}

void Pack::check() const {
  GALLEY_CHECK(!length || !stride || *stride <= *length, "[pack] `stride` is ", stride.value_or(0), ", more than `length`, ",
               length.value_or(0), "; tokens would be lost");
  GALLEY_CHECK(!end.empty(), "[pack] `end` is empty; write none, or a piece of the tokenizer");
}

std::vector<FieldType> Pack::fields(std::vector<FieldType> in) const {
  const FieldType* input = find_field(std::span<const FieldType>(in), "input");
  GALLEY_CHECK(
      input != nullptr && input->layout == FieldLayout::kDense && find_field(std::span<const FieldType>(in), "text_size") != nullptr,
      "the samples are not blocks; the split that they are drawn from must have pack in its pipeline too");
  return in;
}

std::shared_ptr<const Source> Pack::blocks(std::shared_ptr<const Source> source, int64_t usual) const {
  check();
  PackedSource::Form form{.length = length.value_or(usual), .separate = separate};
  GALLEY_CHECK(form.length > 0, "[pack] the model has no length of a sample; set `length`");
  form.stride = stride.value_or(form.length);
  GALLEY_CHECK(form.stride <= form.length, "[pack] `stride` is ", form.stride, ", more than the length, ", form.length,
               "; tokens would be lost");
  const auto texts = std::dynamic_pointer_cast<const TextDocuments>(source);
  GALLEY_CHECK(
      texts != nullptr && texts->documents() > 0,
      "[pack] joins whole texts: of the source text, or of jsonl and text_pairs with one text a sample; the samples are of another "
      "kind: ",
      source->describe());
  if (end != "none") form.end = end_token(tokenizer.get(), end, "pack", ", or to none");
  const std::shared_ptr<const text::Tokenizer> bytes = tokenizer != nullptr ? tokenizer : text::byte_tokenizer();
  return std::make_shared<PackedSource>(texts, *bytes, form);
}

const Pack* find_pack(const std::vector<Component>& items, std::string_view prefix) {
  for (size_t i = 0; i < items.size(); ++i) {
    const auto* pack = items[i].as<Pack>();
    if (pack == nullptr) continue;
    if (i == 0) return pack;
    throw Error(ErrorCode::kRecipe, cat("pipeline item ", i, ": pack must be the first item, since it makes the samples"))
        .key(cat(prefix, ".", i))
        .suggest("move it to the front");
  }
  return nullptr;
}

}  // namespace galley
