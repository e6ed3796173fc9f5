// Text for language models: samples are consecutive windows of tokens, and the label of each token is the next token.

#include <algorithm>

#include "libcore/base/file.h"
#include "libcore/data/sources.h"
#include "libcore/text/tokenizer.h"

namespace galley {
namespace {

constexpr int64_t kNoLabel = -100;  // cross_entropy's ignore_index

struct TextSize {
  int32_t characters = 0, bytes = 0;
};
/// A character counts where its first byte is.
TextSize size_of(const std::string& bytes) {
  TextSize size;
  for (const char c : bytes) size.characters += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  size.bytes = static_cast<int32_t>(bytes.size());
  return size;
}

/// Window i has tokens i T .. i T + T-1; labels are the tokens one position later. Every token except the first is a label exactly once.
/// After the last token, inputs are token 0 and labels are ignored. text_size has the characters and bytes of each label's token, by which
/// metrics of tokens become those of text.
class TextSource : public Source {
 public:
  TextSource(std::vector<std::string> files, int64_t length, const text::Tokenizer& tokenizer) : files_(std::move(files)), length_(length) {
    for (const std::string& file : files_) {
      // A file is a part of the text: nothing is put around it, and special tokens that it spells out count.
      tokenizer.encode(read_file(file), tokens_, {.add_special = false, .name = file});
      ends_.push_back(static_cast<int64_t>(tokens_.size()));
    }
    vocabulary_ = tokenizer.size();
    for (int32_t id = 0; id < vocabulary_; ++id) sizes_.push_back(size_of(tokenizer.has(id) ? tokenizer.bytes(id) : ""));
    GALLEY_CHECK_INPUT(!tokens_.empty(), files_.front(), ": the text is empty");
    GALLEY_CHECK_INPUT(tokens_.size() > 1, files_.front(), ": the text has only one token; prediction needs at least two");
  }
  int64_t size() const override { return (static_cast<int64_t>(tokens_.size()) - 1 + length_ - 1) / length_; }
  std::vector<FieldType> fields() const override {
    return {{.name = "input", .kind = FieldKind::kTokens, .dtype = DType::kI64, .sample = {length_}, .classes = vocabulary_},
            {.name = "label", .kind = FieldKind::kClass, .dtype = DType::kI64, .sample = {length_}},
            {.name = "text_size", .kind = FieldKind::kValues, .dtype = DType::kI32, .sample = {length_, 2}}};
  }
  Sample read(int64_t index) const override {
    Tensor input(DType::kI64, {length_}), label(DType::kI64, {length_}), sizes(DType::kI32, {length_, 2});
    const int64_t begin = index * length_, count = std::min(length_, static_cast<int64_t>(tokens_.size()) - 1 - begin);
    for (int64_t i = 0; i < length_; ++i) {
      const auto at = static_cast<size_t>(begin + i);
      input.data_as<int64_t>()[i] = i < count ? tokens_[at] : 0;
      label.data_as<int64_t>()[i] = i < count ? tokens_[at + 1] : kNoLabel;
      const TextSize size = i < count ? sizes_[static_cast<size_t>(tokens_[at + 1])] : TextSize{};
      sizes.data_as<int32_t>()[2 * i] = size.characters;
      sizes.data_as<int32_t>()[2 * i + 1] = size.bytes;
    }
    Sample sample;
    sample.set("input", std::move(input));
    sample.set("label", std::move(label));
    sample.set("text_size", std::move(sizes));
    return sample;
  }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override {
    const int64_t token = index * length_;
    const auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), token) - ends_.begin());
    return cat(files_[std::min(file, files_.size() - 1)], "[token ", token - (file == 0 ? 0 : ends_[file - 1]), "]");
  }
  std::string describe() const override {
    return cat("text: ", files_.front(), files_.size() > 1 ? cat(" and ", files_.size() - 1, " more") : "", ", ", tokens_.size(),
               " tokens of ", vocabulary_, ", ", size(), " samples of ", length_);
  }

 private:
  std::vector<std::string> files_;
  std::vector<int64_t> ends_;  // number of tokens up to the end of each file
  int64_t length_, vocabulary_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<TextSize> sizes_;  // by id
};

}  // namespace

void TextFiles::options(OptionVisitor& visitor) {
  visitor.option({.name = "path", .doc = "Text files, read one after the other", .required = true, .main = true}, path);
  visitor.option({.name = "sequence_length", .doc = "Tokens of a sample; default: the model's", .min = 1}, sequence_length);
}

std::unique_ptr<Source> TextFiles::open(const SourceContext& context) const {
  int64_t length = sequence_length.value_or(0);
  if (length == 0) {
    GALLEY_CHECK(context.input_shape.rank() == 1, "text: the model needs samples of shape ", context.input_shape,
                 ", not [tokens]; set the source's sequence_length, or use another model");
    length = context.input_shape[0];
  }
  return std::make_unique<TextSource>(expand_paths(context.root, path), length,
                                      context.tokenizer ? *context.tokenizer : *text::byte_tokenizer());
}

}  // namespace galley
