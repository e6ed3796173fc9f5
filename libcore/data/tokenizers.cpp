#include "libcore/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/data/source.h"

namespace galley {
namespace {

/// A position in a text for messages; line and column count characters from 1.
struct TextPlace {
  int64_t line = 1, column = 1;
  void pass(uint32_t character) {
    if (character == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
};

constexpr uint32_t kInvalid = 0xFFFFFFFF;

/// Decodes the character at `at` and moves `at` past it; kInvalid if the bytes are not UTF-8 (RFC 3629: no overlong forms, no surrogates,
/// nothing above U+10FFFF).
uint32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint32_t>(static_cast<unsigned char>(text[i])) : 0u; };
  const uint32_t first = byte(at);
  if (first < 0x80) {
    ++at;
    return first;
  }
  const int more = first >= 0xC2 && first <= 0xDF ? 1 : (first & 0xF0) == 0xE0 ? 2 : first >= 0xF0 && first <= 0xF4 ? 3 : 0;
  if (more == 0) return kInvalid;
  uint32_t character = first & (0x3Fu >> more);
  for (int i = 1; i <= more; ++i) {
    const uint32_t next = byte(at + static_cast<size_t>(i));
    if ((next & 0xC0) != 0x80) return kInvalid;
    character = character << 6 | (next & 0x3F);
  }
  constexpr std::array<uint32_t, 4> kLeast{0, 0x80, 0x800, 0x10000};
  if (character < kLeast[static_cast<size_t>(more)] || character > 0x10FFFF || (character >= 0xD800 && character <= 0xDFFF))
    return kInvalid;
  at += static_cast<size_t>(more) + 1;
  return character;
}

std::string utf8(uint32_t c) {
  std::string text;
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    text += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
             static_cast<char>(0x80 | (c & 0x3F))};
  }
  return text;
}

std::string hex(uint32_t value, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += "0123456789ABCDEF"[value >> shift & 15];
  return text;
}

/// A character for messages: "'a' (U+0061)"; control characters only by number.
std::string shown(uint32_t c) {
  const std::string code = "U+" + hex(c, c > 0xFFFF ? 6 : 4);
  return c < 0x20 || c == 0x7F ? code : cat("'", utf8(c), "' (", code, ")");
}

/// Calls take(character, place) for each character of a text.
template <class Take>
void each_character(std::string_view text, const std::string& name, const Take& take) {
  TextPlace place;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = next_character(text, at);
    GALLEY_CHECK_INPUT(c != kInvalid, name, ":", place.line, ":", place.column, ": byte 0x",
                       hex(static_cast<unsigned char>(text[begin]), 2), " at ", begin,
                       " is not UTF-8; convert the text, or set data.tokenizer: byte");
    take(c, place);
    place.pass(c);
  }
}

class Characters : public Tokenizer {
 public:
  explicit Characters(const std::set<uint32_t>& characters) : characters_(characters.begin(), characters.end()) {
    ascii_.fill(-1);
    for (size_t id = 0; id < characters_.size(); ++id) {
      if (characters_[id] < ascii_.size()) {
        ascii_[characters_[id]] = static_cast<int32_t>(id);
      } else {
        others_.emplace(characters_[id], static_cast<int32_t>(id));
      }
    }
  }
  int64_t size() const override { return static_cast<int64_t>(characters_.size()); }
  void encode(std::string_view text, const std::string& name, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    each_character(text, name, [&](uint32_t c, const TextPlace& place) {
      const int32_t id = find(c);
      GALLEY_CHECK_INPUT(id >= 0, name, ":", place.line, ":", place.column, ": character ", shown(c), " is not among the vocabulary's ",
                         characters_.size(), " characters; add a text with it to data.tokenizer.path, or remove it from this text");
      ids.push_back(id);
    });
  }
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      GALLEY_CHECK_INPUT(id >= 0 && id < size(), "token ", id, " is outside the vocabulary of ", size());
      text += utf8(characters_[static_cast<size_t>(id)]);
    }
    return text;
  }
  std::string str() const override {
    std::string line = "char ";
    for (const uint32_t c : characters_) line += utf8(c);
    return line;
  }

 private:
  int32_t find(uint32_t c) const {
    if (c < ascii_.size()) return ascii_[c];
    const auto found = others_.find(c);
    return found == others_.end() ? -1 : found->second;
  }
  std::vector<uint32_t> characters_;
  std::array<int32_t, 128> ascii_{};
  std::unordered_map<uint32_t, int32_t> others_;
};

class Bytes : public Tokenizer {
 public:
  int64_t size() const override { return 256; }
  void encode(std::string_view text, const std::string&, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      GALLEY_CHECK_INPUT(id >= 0 && id < size(), "token ", id, " is not a byte (0 .. 255)");
      text += static_cast<char>(id);
    }
    return text;
  }
  std::string str() const override { return "byte"; }
};

constexpr std::array<ComponentKind, 2> kKinds{{
    {"char", "one token a character of UTF-8 text", make_options<CharTokenizer>},
    {"byte", "one token a byte, 256 in all", make_options<ByteTokenizer>},
}};

}  // namespace

void CharTokenizer::options(OptionVisitor& visitor) {
  visitor.option(
      {.name = "path", .doc = "Text whose characters make the vocabulary; default: what the weights carry, else the training text"}, path);
}
void ByteTokenizer::options(OptionVisitor&) {}

std::shared_ptr<const Tokenizer> CharTokenizer::make(const TokenizerContext& context) const {
  const std::vector<std::string> files = path.empty() ? context.training_files : expand_paths(context.root, path);
  GALLEY_CHECK(!files.empty(),
               "the tokenizer char takes its vocabulary from the training text, but data.train is not text; set data.tokenizer.path");
  std::set<uint32_t> characters;
  for (const std::string& file : files) each_character(read_file(file), file, [&](uint32_t c, const TextPlace&) { characters.insert(c); });
  GALLEY_CHECK_INPUT(!characters.empty(), files.front(), ": the text is empty, so the vocabulary has no characters");
  return std::make_shared<Characters>(characters);
}
std::shared_ptr<const Tokenizer> ByteTokenizer::make(const TokenizerContext&) const { return byte_tokenizer(); }

ComponentKinds data_tokenizers() { return kKinds; }

std::shared_ptr<const Tokenizer> byte_tokenizer() { return std::make_shared<Bytes>(); }

std::shared_ptr<const Tokenizer> char_tokenizer(std::string_view characters) {
  std::set<uint32_t> all;
  each_character(characters, "the vocabulary", [&](uint32_t c, const TextPlace& place) {
    GALLEY_CHECK_INPUT(all.insert(c).second, "the vocabulary contains ", shown(c), " twice, at character ", place.column);
  });
  GALLEY_CHECK_INPUT(!all.empty(), "the vocabulary is empty");
  return std::make_shared<Characters>(all);
}

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view line) {
  if (line == "byte") return byte_tokenizer();
  GALLEY_CHECK_INPUT(line.starts_with("char "), "'", line.substr(0, 20),
                     "' is not a known tokenizer; expected byte, or char and its characters");
  return char_tokenizer(line.substr(5));
}

}  // namespace galley
