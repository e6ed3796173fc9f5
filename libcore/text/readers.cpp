#include "libcore/text/readers.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/text/json_node.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

[[noreturn]] void fail_at(const std::string& path, size_t line, const std::string& message) {
  throw Error(ErrorCode::kInput, message).at({.file = path, .line = static_cast<int>(line)});
}

/// Runs `read`; an error that names no file gets this one.
template <class Read>
auto in_file(const std::string& path, const Read& read) {
  try {
    return read();
  } catch (Error& error) {
    if (error.place().file.empty()) error.at({.file = path});
    throw;
  }
}

struct PublishedEncoding {
  std::string_view file;  ///< How the file's name begins.
  std::string_view pattern;
  std::vector<std::pair<std::string_view, int64_t>> special;
};
const std::vector<PublishedEncoding>& published_encodings() {
  static const std::vector<PublishedEncoding> encodings{
      {"r50k_base", "gpt2", {{"<|endoftext|>", 50256}}},
      {"gpt2", "gpt2", {{"<|endoftext|>", 50256}}},
      {"p50k_base", "gpt2", {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       "cl100k",
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", "o200k", {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {"qwen", "qwen2", {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}},
  };
  return encodings;
}

}  // namespace

bool from_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const auto value = [](char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int v = i + k >= text.size() - padding ? 0 : value(text[i + k]);
      if (v < 0) return false;
      bits = bits << 6 | static_cast<uint32_t>(v);
    }
    const size_t count = i + 4 == text.size() ? 3 - padding : 3;
    for (size_t k = 0; k < count; ++k) bytes += static_cast<char>(bits >> (16 - 8 * k) & 255);
  }
  return true;
}

std::string to_base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::vector<std::string> lines_of(const SourceFile& file) {
  const std::string& text = file.contents;
  check_utf8(text, file.place);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    size_t length = end - at;
    if (length > 0 && text[at + length - 1] == '\r') --length;
    lines.push_back(text.substr(at, length));
    at = end + 1;
  }
  return lines;
}

std::unique_ptr<ByteBpe> make_byte_bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, bool whole) {
  std::vector<int32_t> byte_ids;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.clear();
    append_utf8(bytes, byte_character(static_cast<uint8_t>(byte)));
    const auto id = vocabulary.find(bytes);
    if (!id) return nullptr;
    byte_ids.push_back(*id);
  }
  auto bpe = std::make_unique<ByteBpe>(byte_ids, merges, whole);
  for (int64_t id = 0; whole && id < vocabulary.size(); ++id) {
    if (vocabulary.has(id) && bytes_of_piece(vocabulary.piece(id), bytes)) bpe->add_whole(bytes, static_cast<int32_t>(id));
  }
  return bpe;
}

std::unique_ptr<Tokenizer> read_bpe_files(const SourceFile& vocabulary, const SourceFile& merges_file, const KnownPattern& pattern) {
  const std::string &vocabulary_path = vocabulary.place, &merges_path = merges_file.place;
  Parts parts;
  parts.kind = "byte-level BPE";
  const JsonNode file = JsonNode::parse(vocabulary.contents, vocabulary_path);
  in_file(vocabulary_path, [&] {
    if (!file.json().is_object()) file.fail("must be an object of pieces and ids");
    for (const auto& [piece, id] : file.json().items()) {
      if (!id.is_number_integer()) file.fail(cat("the id of '", piece, "' must be an integer"));
      parts.vocabulary.add(piece, id.get<int64_t>());
    }
  });
  std::vector<Merge> merges;
  std::set<uint32_t> made;
  const std::vector<std::string> lines = lines_of(merges_file);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || lines[i].starts_with("#version")) continue;
    const size_t space = lines[i].find(' ');
    if (space == std::string::npos || lines[i].find(' ', space + 1) != std::string::npos)
      fail_at(merges_path, i + 1, cat("'", lines[i], "' is not a merge: two pieces and a space between them are expected"));
    const std::string left = lines[i].substr(0, space), right = lines[i].substr(space + 1);
    const auto id_of = [&](const std::string& piece) {
      const auto id = parts.vocabulary.find(piece);
      if (!id) fail_at(merges_path, i + 1, cat("the piece '", piece, "' of the merge '", lines[i], "' is not in ", vocabulary_path));
      return static_cast<uint32_t>(*id);
    };
    merges.push_back({id_of(left), id_of(right), id_of(left + right), static_cast<uint32_t>(merges.size())});
    made.insert(merges.back().merged);
  }
  if (merges.empty()) fail_at(merges_path, 1, "has no merges: the file is cut off, or is not one of merges");
  parts.bytes = {make_byte_bpe(parts.vocabulary, merges, false), &pattern};
  if (!parts.bytes.bpe)
    throw Error(ErrorCode::kInput, "lacks the tokens of some bytes: it is cut off, or is not a byte-level vocabulary")
        .at({.file = vocabulary_path});
  for (int64_t id = 0; id < parts.vocabulary.size(); ++id) {
    if (!parts.vocabulary.has(id) || made.count(static_cast<uint32_t>(id))) continue;
    const std::string& piece = parts.vocabulary.piece(id);
    if (piece.size() > 2 && piece.front() == '<' && piece.back() == '>')
      parts.added.push_back({.id = static_cast<int32_t>(id), .content = piece, .special = true});
  }
  parts.bytes_decoder = true;
  return make_pipeline(std::move(parts));
}

std::unique_ptr<Tokenizer> read_tiktoken(const SourceFile& file, const std::string& pattern_name) {
  const std::string &path = file.place, &name = file.name;
  const PublishedEncoding* published = nullptr;
  for (const PublishedEncoding& encoding : published_encodings()) {
    if (name.starts_with(encoding.file)) published = &encoding;
  }
  if (!published && pattern_name.empty()) {
    std::string names;
    for (const std::string& known : pattern_names()) names += (names.empty() ? "" : ", ") + known;
    throw Error(ErrorCode::kInput, cat("a .tiktoken file does not say how text is cut into pieces, and the name '", name,
                                       "' is not that of a published encoding: set pattern to one of ", names))
        .at({.file = path});
  }
  Parts parts;
  parts.kind = "byte-level BPE";
  std::vector<std::pair<std::string, int32_t>> tokens;
  const std::vector<std::string> lines = lines_of(file);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const size_t space = lines[i].find(' ');
    std::string bytes;
    const std::string rank = space == std::string::npos ? "" : lines[i].substr(space + 1);
    const bool is_number =
        !rank.empty() && rank.size() <= 9 && std::all_of(rank.begin(), rank.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number || !from_base64(std::string_view(lines[i]).substr(0, space), bytes))
      fail_at(path, i + 1, cat("'", lines[i], "' is not a token in base64, a space and a rank; the file may be cut off"));
    std::string piece;
    append_byte_characters(piece, bytes);
    try {
      parts.vocabulary.add(piece, std::stoi(rank));
    } catch (Error& error) {
      throw error.at({.file = path, .line = static_cast<int>(i) + 1});
    }
    tokens.emplace_back(bytes, std::stoi(rank));
  }
  parts.bytes = {make_byte_bpe(parts.vocabulary, merges_of_ranks(tokens), true),
                 &pattern_named(pattern_name.empty() ? published->pattern : std::string_view(pattern_name))};
  if (!parts.bytes.bpe) throw Error(ErrorCode::kInput, "lacks the tokens of some bytes: the file is cut off").at({.file = path});
  for (const auto& [content, id] : published ? published->special : std::vector<std::pair<std::string_view, int64_t>>{}) {
    if (parts.vocabulary.has(id) || parts.vocabulary.find(content)) continue;
    parts.vocabulary.add(content, id);
    parts.added.push_back({.id = static_cast<int32_t>(id), .content = std::string(content), .special = true});
  }
  parts.bytes_decoder = true;
  return make_pipeline(std::move(parts));
}

std::unique_ptr<Tokenizer> read_word_piece(const SourceFile& file, bool lowercase) {
  const std::string& path = file.place;
  Parts parts;
  parts.kind = "WordPiece";
  const std::vector<std::string> lines = lines_of(file);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) fail_at(path, i + 1, "the piece is empty: each line of a WordPiece vocabulary is a piece");
    try {
      parts.vocabulary.add(lines[i], static_cast<int64_t>(i));
    } catch (Error& error) {
      throw error.at({.file = path, .line = static_cast<int>(i) + 1});
    }
  }
  const auto special = [&](const std::string& piece) {
    const auto id = parts.vocabulary.find(piece);
    if (!id)
      throw Error(ErrorCode::kInput, cat("the piece ", piece, " is missing: the file is cut off, or not a BERT vocabulary"))
          .at({.file = path});
    return *id;
  };
  const int32_t unknown = special("[UNK]"), cls = special("[CLS]"), sep = special("[SEP]");
  for (const char* piece : {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}) {
    if (const auto id = parts.vocabulary.find(piece)) parts.added.push_back({.id = *id, .content = piece, .special = true});
  }
  parts.normalizers.push_back(bert_normalizer({.strip_accents = lowercase, .lowercase = lowercase}));
  parts.pre_tokenizers.push_back(bert_pre_tokenizer());
  constexpr int64_t kLongestWord = 100;  // BERT's max_input_chars_per_word.
  parts.make_model = [unknown](const Vocabulary& vocabulary) { return word_piece(vocabulary, unknown, "##", kLongestWord); };
  parts.post.single = {{TemplateItem::kTokens, {cls}, 0}, {TemplateItem::kFirst, {}, 0}, {TemplateItem::kTokens, {sep}, 0}};
  parts.post.pair = parts.post.single;
  parts.post.pair.push_back({TemplateItem::kSecond, {}, 1});
  parts.post.pair.push_back({TemplateItem::kTokens, {sep}, 1});
  parts.decoders.push_back(decode_word_piece("##", true));
  return make_pipeline(std::move(parts));
}

std::unique_ptr<Tokenizer> read_word_list(const SourceFile& file, const std::string& unknown) {
  return in_file(file.place, [&] { return make_word_tokenizer(lines_of(file), unknown); });
}

}  // namespace galley::text
