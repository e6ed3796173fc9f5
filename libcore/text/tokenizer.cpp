#include "libcore/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "libcore/base/error.h"
#include "libcore/text/definition.h"
#include "libcore/text/readers.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

/// Decodes a window of the last ids again for each token: right for any decoder whose text depends on neighbors only.
class WindowStream : public StreamDecoder {
 public:
  WindowStream(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id) override {
    static_cast<void>(tokenizer_.piece(id));  // Throws where there is none.
    if (skip_special_ && tokenizer_.is_special(id)) return {};
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_, skip_special_);
    constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
    // The bytes of a character may be separate tokens; their replacement is final when the next token is not one of them.
    constexpr size_t kLongestHeld = 4;
    if (text.ends_with(kReplacement) && ids_.size() - settled_ < kLongestHeld) return {};
    return settle(text);
  }
  std::string finish() override {
    if (ids_.empty()) return {};
    std::string text = settle(tokenizer_.decode(ids_, skip_special_));
    ids_.clear();
    shown_ = 0;
    settled_ = 0;
    return text;
  }
  std::unique_ptr<StreamDecoder> clone() const override { return std::make_unique<WindowStream>(*this); }

 private:
  std::string settle(const std::string& text) {
    size_t from = std::min(shown_, text.size());
    // A byte that breaks its predecessors changes what was returned; the rest still begins with a whole character.
    while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
    // Later text is decoded after the tokens since the last settlement, unless they show nothing.
    const std::vector<int32_t> last(ids_.begin() + static_cast<std::ptrdiff_t>(settled_), ids_.end());
    if (const size_t length = tokenizer_.decode(last, skip_special_).size(); length > 0) {
      ids_ = last;
      shown_ = length;
    } else {
      shown_ = text.size();
    }
    settled_ = ids_.size();
    return text.substr(from);
  }
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> ids_;
  size_t settled_ = 0;  // Of ids_: their text was returned.
  size_t shown_ = 0;    // Bytes of the text of ids_ that were returned.
};

/// A piece of text for messages: 'word'; a character with its number, and a control character by that alone.
std::string shown(std::string_view text) {
  const char* p = text.data();
  if (char_length(p) != text.size()) return cat("'", text, "'");
  const uint32_t c = next_char(p);
  std::string code = "U+";
  for (int shift = c > 0xFFFF ? 20 : 12; shift >= 0; shift -= 4) code += "0123456789ABCDEF"[c >> shift & 15];
  return c < 0x20 || c == 0x7F ? code : cat("'", text, "' (", code, ")");
}

/// Common to tokenizers with one token a piece of text.
class Simple : public Tokenizer {
 public:
  std::vector<Token> tokens_of_valid(std::string_view text, const EncodeOptions& options) const override {
    std::vector<Token> tokens;
    each(text, options, [&](int32_t id, size_t begin, size_t end) {
      tokens.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), 0});
    });
    return tokens;
  }
  void encode_valid(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    each(text, options, [&](int32_t id, size_t, size_t) { ids.push_back(id); });
  }

 protected:
  using Take = std::function<void(int32_t id, size_t begin, size_t end)>;
  virtual void each(std::string_view text, const EncodeOptions& options, const Take& take) const = 0;
  /// Throws that the text at `at` is not in the vocabulary.
  [[noreturn]] void not_found(std::string_view text, size_t at, size_t end, const EncodeOptions& options, std::string_view what) const {
    const std::string_view before = text.substr(0, at);
    const size_t newline = before.rfind('\n');
    const std::string_view line = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
    const auto column = std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
    throw Error(ErrorCode::kInput, cat("the ", what, " ", shown(text.substr(at, end - at)), " is not in the vocabulary of ",
                                       vocabulary_.pieces(), "; make the vocabulary from text that has it, or take it out of this text"))
        .at({.file = std::string(options.name),
             .line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
             .column = static_cast<int>(column) + 1});
  }
};

class Bytes : public Simple {
 public:
  Bytes() {
    std::string piece;
    for (int b = 0; b < 256; ++b) {
      piece.clear();
      append_utf8(piece, byte_character(static_cast<uint8_t>(b)));
      vocabulary_.add(piece, b);
    }
  }
  std::string decode(std::span<const int32_t> ids, bool) const override { return replace_invalid_utf8(bytes(ids)); }
  std::unique_ptr<StreamDecoder> stream(bool skip_special) const override {
    class Stream : public StreamDecoder {
     public:
      explicit Stream(const Bytes& bytes) : bytes_(bytes) {}
      std::string push(int32_t id) override {
        held_ += bytes_.bytes({&id, 1});
        const size_t complete = held_.size() - unfinished_utf8(held_);
        std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, complete));
        held_.erase(0, complete);
        return text;
      }
      std::string finish() override { return replace_invalid_utf8(std::exchange(held_, {})); }
      std::unique_ptr<StreamDecoder> clone() const override { return std::make_unique<Stream>(*this); }

     private:
      const Bytes& bytes_;
      std::string held_;
    };
    static_cast<void>(skip_special);
    return std::make_unique<Stream>(*this);
  }
  std::string bytes(int32_t id) const override { return bytes(std::span(&id, 1)); }
  std::string str() const override { return "bytes, 256 tokens"; }
  std::string saved() const override { return "byte"; }

 protected:
  bool takes_bytes() const override { return true; }
  void each(std::string_view text, const EncodeOptions&, const Take& take) const override {
    for (size_t i = 0; i < text.size(); ++i) take(static_cast<uint8_t>(text[i]), i, i + 1);
  }

 private:
  std::string bytes(std::span<const int32_t> ids) const {
    std::string out;
    for (const int32_t id : ids) {
      vocabulary_.piece(id);  // Throws where there is none.
      out += static_cast<char>(id);
    }
    return out;
  }
};

class Characters : public Simple {
 public:
  explicit Characters(std::string_view characters) {
    std::vector<std::string> all;
    check_utf8(characters, "the vocabulary");
    for (size_t at = 0; at < characters.size();) {
      const size_t n = char_length(characters.data() + at);
      all.emplace_back(characters.substr(at, n));
      at += n;
    }
    GALLEY_CHECK_INPUT(!all.empty(), "the vocabulary of characters is empty");
    std::sort(all.begin(), all.end());  // UTF-8 sorts as its code points do.
    ascii_.fill(-1);
    for (size_t i = 0; i < all.size(); ++i) {
      vocabulary_.add(all[i], static_cast<int64_t>(i));
      if (all[i].size() == 1) ascii_[static_cast<uint8_t>(all[i][0])] = static_cast<int32_t>(i);
    }
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += vocabulary_.piece(id);
    return text;
  }
  std::unique_ptr<StreamDecoder> stream(bool) const override {
    class Stream : public StreamDecoder {
     public:
      explicit Stream(const Characters& characters) : characters_(characters) {}
      std::string push(int32_t id) override { return characters_.vocabulary_.piece(id); }
      std::string finish() override { return {}; }
      std::unique_ptr<StreamDecoder> clone() const override { return std::make_unique<Stream>(*this); }

     private:
      const Characters& characters_;
    };
    return std::make_unique<Stream>(*this);
  }
  std::string str() const override { return cat("characters, ", vocabulary_.pieces(), " tokens"); }
  std::string saved() const override {
    std::string text = "char ";
    for (int64_t id = 0; id < size(); ++id) text += piece(id);
    return text;
  }

 protected:
  void each(std::string_view text, const EncodeOptions& options, const Take& take) const override {
    for (size_t at = 0; at < text.size();) {
      const size_t n = char_length(text.data() + at);
      const auto id = n == 1 ? ascii_[static_cast<uint8_t>(text[at])] : vocabulary_.find(text.substr(at, n)).value_or(-1);
      if (id < 0) not_found(text, at, at + n, options, "character");
      take(id, at, at + n);
      at += n;
    }
  }

 private:
  std::array<int32_t, 128> ascii_{};
};

class WordList : public Simple {
 public:
  WordList(const std::vector<std::string>& words, const std::string& unknown) {
    for (size_t i = 0; i < words.size(); ++i) vocabulary_.add(words[i], static_cast<int64_t>(i));
    GALLEY_CHECK_INPUT(!words.empty(), "the vocabulary of words is empty");
    if (unknown.empty()) return;
    const auto id = vocabulary_.find(unknown);
    GALLEY_CHECK_INPUT(id, "the token for unknown words, '", unknown, "', is not in the vocabulary of ", words.size(),
                       " words: add it, or name another");
    unknown_ = *id;
    mark_special(unknown_);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      const std::string& word = vocabulary_.piece(id);
      if (skip_special && is_special(id)) continue;
      text += (text.empty() ? "" : " ") + word;
    }
    return text;
  }
  std::string str() const override { return cat("words, ", vocabulary_.pieces(), " tokens"); }

 protected:
  void each(std::string_view text, const EncodeOptions& options, const Take& take) const override {
    const ClassTable& classes = ClassTable::get();
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      const char* p = text.data() + at;
      while (end < text.size() && !(classes[next_char(p)] & kSpace)) end = static_cast<size_t>(p - text.data());
      if (end == at) {
        at = static_cast<size_t>(p - text.data());
        continue;
      }
      const int32_t id = vocabulary_.find(text.substr(at, end - at)).value_or(unknown_);
      if (id < 0) not_found(text, at, end, options, "word");
      take(id, at, end);
      at = end;
    }
  }

 private:
  int32_t unknown_ = -1;
};

}  // namespace

bool Tokenizer::is_special(int64_t id) const {
  return id >= 0 && id <= Vocabulary::kLargestId && std::binary_search(special_.begin(), special_.end(), static_cast<int32_t>(id));
}

void Tokenizer::mark_special(int32_t id) {
  const auto place = std::lower_bound(special_.begin(), special_.end(), id);
  if (place == special_.end() || *place != id) special_.insert(place, id);
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids, const EncodeOptions& options) const {
  GALLEY_CHECK_INPUT(text.size() < std::numeric_limits<uint32_t>::max(), options.name, ": ", text.size(),
                     " bytes are too many for one text: encode at most 4 GiB at a time");
  if (!takes_bytes()) check_utf8(text, options.name);
  encode_valid(text, options, ids);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  encode(text, ids, options);
  return ids;
}

std::vector<Token> Tokenizer::tokens(std::string_view text, const EncodeOptions& options) const {
  GALLEY_CHECK_INPUT(text.size() < std::numeric_limits<uint32_t>::max(), options.name, ": ", text.size(),
                     " bytes are too many for one text: encode at most 4 GiB at a time");
  if (!takes_bytes()) check_utf8(text, options.name);
  return tokens_of_valid(text, options);
}

std::vector<Token> Tokenizer::pair(std::string_view first, std::string_view second, const EncodeOptions& options) const {
  std::vector<Token> both = tokens(first, options);
  for (Token token : tokens(second, options)) {
    token.type = 1;
    both.push_back(token);
  }
  return both;
}

std::string Tokenizer::bytes(int32_t id) const {
  const std::string& spelled = piece(id);
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  // A byte that the vocabulary has no character for: <0xE2>.
  if (spelled.size() == 6 && spelled.starts_with("<0x") && is_hex(spelled[3]) && is_hex(spelled[4]) && spelled[5] == '>')
    return {static_cast<char>(std::stoi(spelled.substr(3, 2), nullptr, 16))};
  // Decoders may leave out the space that a text begins with.
  const std::vector<int32_t> twice{id, id};
  return decode(twice).substr(std::min(decode(std::span(twice).first(1)).size(), decode(twice).size()));
}

std::string Tokenizer::saved() const {
  GALLEY_ASSERT(definition_ != nullptr, "a tokenizer was made without its definition");
  return definition_->str();
}

std::unique_ptr<StreamDecoder> Tokenizer::stream(bool skip_special) const { return std::make_unique<WindowStream>(*this, skip_special); }

std::unique_ptr<const Tokenizer> byte_tokenizer() { return std::make_unique<Bytes>(); }
std::unique_ptr<const Tokenizer> character_tokenizer(std::string_view characters) { return std::make_unique<Characters>(characters); }
std::unique_ptr<Tokenizer> make_word_tokenizer(const std::vector<std::string>& words, const std::string& unknown) {
  return std::make_unique<WordList>(words, unknown);
}
std::unique_ptr<const Tokenizer> word_tokenizer(const std::vector<std::string>& words, const std::string& unknown) {
  std::string lines;
  for (const std::string& word : words) {
    GALLEY_CHECK_INPUT(word.find_first_of("\r\n") == std::string::npos, "the word '", word, "' of the vocabulary has a line end");
    lines += word + "\n";
  }
  return make_tokenizer({.type = "vocabulary", .files = {{"words", lines, "words"}}, .pattern = "", .unknown = unknown});
}

std::unique_ptr<const Tokenizer> load_tokenizer(std::string_view saved, const std::string& place) {
  if (saved.starts_with('{')) return make_tokenizer(parse_definition(saved, place));
  if (saved == "byte") return byte_tokenizer();
  constexpr std::string_view kCharacters = "char ";
  if (!saved.starts_with(kCharacters))
    fail(ErrorCode::kInput, place, ": '", saved.substr(0, 20),
         "' is not a saved tokenizer; it must be byte, char and its characters, or JSON");
  return character_tokenizer(saved.substr(kCharacters.size()));
}

}  // namespace galley::text
