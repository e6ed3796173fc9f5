#include "libcore/text/pipeline.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

/// Bytes to text as they come: holds back what more bytes could complete.
class ByteStream : public StreamDecoder {
 public:
  ByteStream(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id) override {
    const std::string& piece = tokenizer_.piece(id);
    if (skip_special_ && tokenizer_.is_special(id)) return {};
    std::string bytes;
    held_ += bytes_of_piece(piece, bytes) ? bytes : piece;
    const size_t unfinished = unfinished_utf8(held_);
    const std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, held_.size() - unfinished));
    held_.erase(0, held_.size() - unfinished);
    return text;
  }
  std::string finish() override {
    const std::string text = replace_invalid_utf8(held_);
    held_.clear();
    return text;
  }
  std::unique_ptr<StreamDecoder> clone() const override { return std::make_unique<ByteStream>(*this); }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_;
};

class Pipeline : public Tokenizer {
 public:
  explicit Pipeline(Parts parts) : parts_(std::move(parts)) {
    vocabulary_ = std::move(parts_.vocabulary);
    if (!parts_.bytes.bpe) model_ = parts_.make_model(vocabulary_);
    for (const AddedToken& token : parts_.added) {
      if (token.special) mark_special(token.id);
      std::string spelling = token.content;
      if (token.normalized) {
        Buffer buffer(token.content, 0, false);
        for (const Normalizer& normalize : parts_.normalizers) normalize(buffer);
        spelling = buffer.text();
      }
      (token.normalized ? normalized_ : raw_).add(token, spelling);
    }
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<std::string> pieces;
    std::string all, bytes;
    for (const int32_t id : ids) {
      const std::string& piece = vocabulary_.piece(id);
      if (skip_special && is_special(id)) continue;
      if (parts_.bytes_decoder) {
        all += bytes_of_piece(piece, bytes) ? bytes : piece;
      } else {
        pieces.push_back(piece);
      }
    }
    if (parts_.bytes_decoder) return replace_invalid_utf8(all);
    for (const DecodeStep& step : parts_.decoders) step(pieces);
    for (const std::string& piece : pieces) all += piece;
    return all;
  }

  std::unique_ptr<StreamDecoder> stream(bool skip_special) const override {
    if (parts_.bytes_decoder) return std::make_unique<ByteStream>(*this, skip_special);
    return Tokenizer::stream(skip_special);
  }

  std::vector<Token> pair(std::string_view first, std::string_view second, const EncodeOptions& options) const override {
    check_utf8(first, options.name);
    check_utf8(second, options.name);
    return apply(parts_.post.pair, first, second, options);
  }

  std::string bytes(int32_t id) const override {
    if (!parts_.bytes_decoder) return Tokenizer::bytes(id);
    std::string bytes;
    return bytes_of_piece(piece(id), bytes) ? bytes : piece(id);
  }

  std::string str() const override {
    std::string text = cat(parts_.kind, ", ", vocabulary_.pieces(), " tokens");
    if (parts_.bytes.pattern) text += cat(", pattern ", parts_.bytes.pattern->name);
    return text;
  }

 protected:
  void encode_valid(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    for (const TemplateItem& item : items(options)) {
      if (item.kind == TemplateItem::kTokens) {
        ids.insert(ids.end(), item.ids.begin(), item.ids.end());
      } else {
        encode_text(text, options, &ids, nullptr);
      }
    }
  }
  std::vector<Token> tokens_of_valid(std::string_view text, const EncodeOptions& options) const override {
    return apply(items(options), text, {}, options);
  }

 private:
  std::vector<TemplateItem> items(const EncodeOptions& options) const {
    return options.add_special ? parts_.post.single : std::vector<TemplateItem>{{TemplateItem::kFirst, {}, 0}};
  }

  std::vector<Token> apply(const std::vector<TemplateItem>& pattern, std::string_view first, std::string_view second,
                           const EncodeOptions& options) const {
    std::vector<Token> tokens;
    for (const TemplateItem& item : pattern) {
      if (item.kind == TemplateItem::kTokens) {
        for (const int32_t id : item.ids) {
          if (options.add_special) tokens.push_back({id, 0, 0, item.type});
        }
        continue;
      }
      const size_t before = tokens.size();
      encode_text(item.kind == TemplateItem::kFirst ? first : second, options, nullptr, &tokens);
      for (size_t i = before; i < tokens.size(); ++i) tokens[i].type = item.type;
    }
    return tokens;
  }

  /// Appends to one of ids and tokens; places are kept for tokens only.
  void encode_text(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* ids, std::vector<Token>* tokens) const {
    const auto put = [&](int32_t id, Range range) {
      if (ids) ids->push_back(id);
      if (tokens) tokens->push_back({id, range.begin, range.end, 0});
    };
    for (const AddedTokens::Part& part : raw_.divide(text, options.parse_special)) {
      const std::string_view segment = text.substr(part.range.begin, part.range.end - part.range.begin);
      if (part.token) {
        put(part.token->id, part.range);
      } else if (parts_.normalizers.empty() && normalized_.empty() && parts_.bytes.bpe) {
        encode_bytes(segment, nullptr, part.range.begin, ids, tokens);
      } else {
        Buffer buffer(segment, part.range.begin, tokens != nullptr);
        for (const Normalizer& normalize : parts_.normalizers) normalize(buffer);
        for (const AddedTokens::Part& inner : normalized_.divide(buffer.text(), options.parse_special)) {
          if (inner.token) {
            put(inner.token->id, buffer.origin(inner.range.begin, inner.range.end));
          } else if (parts_.bytes.bpe) {
            encode_bytes(std::string_view(buffer.text()).substr(inner.range.begin, inner.range.end - inner.range.begin), &buffer,
                         inner.range.begin, ids, tokens);
          } else {
            encode_words(buffer, inner.range, part.range.begin == 0 && inner.range.begin == 0, ids, tokens);
          }
        }
      }
    }
  }

  /// `buffer` null: `base` is the place of the text in the input, else in the buffer.
  void encode_bytes(std::string_view text, const Buffer* buffer, uint32_t base, std::vector<int32_t>* ids,
                    std::vector<Token>* tokens) const {
    std::vector<int32_t> found;
    std::vector<int32_t>& out = ids ? *ids : found;
    if (parts_.bytes.pattern) {
      parts_.bytes.bpe->encode(text, parts_.bytes.pattern->scan, out);
    } else {
      parts_.bytes.bpe->encode_piece(text, out);
    }
    if (!tokens) return;
    std::string bytes;
    uint32_t at = base;
    for (const int32_t id : found) {
      bytes_of_piece(vocabulary_.piece(id), bytes);
      const auto end = at + static_cast<uint32_t>(bytes.size());
      const Range range = buffer ? buffer->origin(at, end) : Range{at, end};
      tokens->push_back({id, range.begin, range.end, 0});
      at = end;
    }
  }

  void encode_words(const Buffer& buffer, Range range, bool at_start, std::vector<int32_t>* ids, std::vector<Token>* tokens) const {
    Words words{buffer, {range}, at_start};
    for (const PreTokenizer& divide : parts_.pre_tokenizers) divide(words);
    std::vector<WordToken> found;
    for (const Range& word : words.words) {
      if (word.begin == word.end) continue;
      found.clear();
      model_->encode(std::string_view(words.buffer.text()).substr(word.begin, word.end - word.begin), found);
      for (const WordToken& token : found) {
        if (ids) {
          ids->push_back(token.id);
        } else {
          const Range place = words.buffer.origin(word.begin + token.begin, word.begin + token.end);
          tokens->push_back({token.id, place.begin, place.end, 0});
        }
      }
    }
  }

  Parts parts_;
  std::unique_ptr<Model> model_;
  AddedTokens raw_, normalized_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline(Parts parts) { return std::make_unique<Pipeline>(std::move(parts)); }

}  // namespace galley::text
