// Text for language models: samples are consecutive windows of tokens, and the label of each token is the next token.

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/data/documents.h"
#include "libcore/data/sources.h"
#include "libcore/data/text_size.h"
#include "libcore/data/token_cache.h"
#include "libcore/text/tokenizer.h"

namespace galley {
namespace {

constexpr int64_t kNoLabel = -100;  // cross_entropy's ignore_index

/// Window i has tokens i T .. i T + T-1; labels are the tokens one position later. Every token except the first is a label exactly once.
/// After the last token, inputs are token 0 and labels are ignored. text_size has the characters and bytes of each label's token, by which
/// metrics of tokens become those of text.
class TextSource : public TextDocuments {
 public:
  TextSource(std::vector<std::string> files, int64_t length, const text::Tokenizer& tokenizer, const std::string& cache)
      : files_(std::move(files)), length_(length) {
    const TokenCache tokens(tokenizer, cache);
    for (const std::string& file : files_) {
      lists_.push_back(tokens.tokens_of(file));
      count_ += lists_.back().size();
      ends_.push_back(count_);
    }
    vocabulary_ = tokenizer.size();
    sizes_ = text_sizes(tokenizer);
    GALLEY_CHECK_INPUT(count_ > 0, files_.front(), ": the text is empty");
    GALLEY_CHECK_INPUT(count_ > 1, files_.front(), ": the text has only one token; prediction needs at least two");
  }
  int64_t size() const override { return (count_ - 1 + length_ - 1) / length_; }
  std::vector<FieldType> fields() const override {
    return {{.name = "input", .kind = FieldKind::kTokens, .dtype = DType::kI64, .sample = {length_}, .classes = vocabulary_},
            {.name = "label", .kind = FieldKind::kClass, .dtype = DType::kI64, .sample = {length_}},
            {.name = "text_size", .kind = FieldKind::kValues, .dtype = DType::kI32, .sample = {length_, 2}}};
  }
  Sample read(int64_t index) const override {
    Tensor input(DType::kI64, {length_}), label(DType::kI64, {length_}), sizes(DType::kI32, {length_, 2});
    const int64_t begin = index * length_, count = std::min(length_, count_ - 1 - begin);
    size_t file = file_of(begin);
    auto next = [&, at = begin]() mutable {
      while (at >= ends_[file]) ++file;
      const int64_t start = file == 0 ? 0 : ends_[file - 1];
      return lists_[file][at++ - start];
    };
    int32_t token = next();
    for (int64_t i = 0; i < length_; ++i) {
      const int32_t following = i < count ? next() : 0;
      const TextSize size = i < count ? sizes_[static_cast<size_t>(following)] : TextSize{};
      input.data_as<int64_t>()[i] = i < count ? token : 0;
      label.data_as<int64_t>()[i] = i < count ? following : kNoLabel;
      sizes.data_as<int32_t>()[2 * i] = size.characters;
      sizes.data_as<int32_t>()[2 * i + 1] = size.bytes;
      token = following;
    }
    Sample sample;
    sample.set("input", std::move(input));
    sample.set("label", std::move(label));
    sample.set("text_size", std::move(sizes));
    return sample;
  }
  int64_t label(int64_t) const override { return -1; }
  int64_t documents() const override { return std::ssize(files_); }
  TokenList document(int64_t index) const override { return lists_[static_cast<size_t>(index)]; }
  std::string document_name(int64_t index) const override { return files_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override {
    const int64_t token = index * length_;
    const size_t file = file_of(token);
    return cat(files_[file], "[token ", token - (file == 0 ? 0 : ends_[file - 1]), "]");
  }
  std::string describe() const override {
    return cat("text: ", files_.front(), files_.size() > 1 ? cat(" and ", files_.size() - 1, " more") : "", ", ", count_, " tokens of ",
               vocabulary_, ", ", size(), " samples of ", length_);
  }

 private:
  /// The file that holds a token.
  size_t file_of(int64_t token) const {
    const auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), token) - ends_.begin());
    return std::min(file, files_.size() - 1);
  }

  std::vector<std::string> files_;
  std::vector<int64_t> ends_;  // number of tokens up to the end of each file
  int64_t length_, vocabulary_ = 0;
  int64_t count_ = 0;
  std::vector<TokenList> lists_;  // of each file
  std::vector<TextSize> sizes_;   // by id
};

}  // namespace

void TextFiles::options(OptionVisitor& visitor) {
  visitor.option({.name = "path", .doc = "Text files, read one after the other", .required = true, .main = true}, path);
  visitor.option({.name = "sequence_length", .doc = "Number of tokens per sample; default: the model's", .min = 1}, sequence_length);
  visitor.option(
      {.name = "cache",
       .doc = "Where the tokens of files are kept for the next start: auto (galley/tokens in $XDG_CACHE_HOME or ~/.cache, for files "
              "of 8 MiB or more), none, or a folder"},
      cache);
}

std::unique_ptr<Source> TextFiles::open(const SourceContext& context) const {
  int64_t length = sequence_length.value_or(0);
  if (length == 0) {
    GALLEY_CHECK(context.input_shape.rank() == 1, "text: the model needs samples of shape ", context.input_shape,
                 ", not [tokens]; set the source's sequence_length, or use another model");
    length = context.input_shape[0];
  }
  const std::string folder = cache == "auto" || cache == "none" ? cache : below_root(context.root, cache);
  return std::make_unique<TextSource>(expand_paths(context.root, path), length,
                                      context.tokenizer ? *context.tokenizer : *text::byte_tokenizer(), folder);
}

}  // namespace galley
