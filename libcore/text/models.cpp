#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "libcore/base/error.h"
#include "libcore/text/bpe.h"
#include "libcore/text/byte_trie.h"
#include "libcore/text/model.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

class WordPiece : public Model {
 public:
  WordPiece(const Vocabulary& vocabulary, int32_t unknown, const std::string& prefix, int64_t longest)
      : vocabulary_(vocabulary), unknown_(unknown), longest_(longest), prefix_(prefix) {
    for (int64_t id = 0; id < vocabulary.size(); ++id) {
      if (vocabulary.has(id)) longest_piece_ = std::max(longest_piece_, vocabulary.piece(id).size());
    }
  }
  void encode(std::string_view word, std::vector<WordToken>& tokens) const override {
    const size_t before = tokens.size();
    const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
    if (characters > longest_) return unknown(word, before, tokens);
    std::string piece;
    for (size_t at = 0; at < word.size();) {
      // No piece is longer than the longest of the vocabulary, so a hostile word costs no more than its length times that.
      size_t end = std::min(word.size(), at + longest_piece_);
      while (end < word.size() && (static_cast<uint8_t>(word[end]) & 0xC0) == 0x80) --end;
      std::optional<int32_t> found;
      for (; end > at; end = shorter(word, end)) {
        piece.assign(at > 0 ? prefix_ : "").append(word.substr(at, end - at));
        if ((found = vocabulary_.find(piece))) break;
      }
      if (!found) return unknown(word, before, tokens);
      tokens.push_back({*found, static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
      at = end;
    }
  }

 private:
  static size_t shorter(std::string_view word, size_t end) {
    do --end;
    while (end > 0 && (static_cast<uint8_t>(word[end]) & 0xC0) == 0x80);
    return end;
  }
  void unknown(std::string_view word, size_t before, std::vector<WordToken>& tokens) const {
    tokens.resize(before);
    tokens.push_back({unknown_, 0, static_cast<uint32_t>(word.size())});
  }
  const Vocabulary& vocabulary_;
  int32_t unknown_;
  int64_t longest_;
  std::string prefix_;
  size_t longest_piece_ = 1;
};

class WordLevel : public Model {
 public:
  WordLevel(const Vocabulary& vocabulary, std::optional<int32_t> unknown) : vocabulary_(vocabulary), unknown_(unknown) {}
  void encode(std::string_view word, std::vector<WordToken>& tokens) const override {
    const auto found = vocabulary_.find(word);
    GALLEY_CHECK_INPUT(found || unknown_, "'", word, "' is not one of the ", vocabulary_.pieces(),
                       " words of the vocabulary, which has no token for unknown words");
    tokens.push_back({found ? *found : *unknown_, 0, static_cast<uint32_t>(word.size())});
  }

 private:
  const Vocabulary& vocabulary_;
  std::optional<int32_t> unknown_;
};

class CharBpe : public Model {
 public:
  CharBpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const CharBpeOptions& options)
      : vocabulary_(vocabulary), table_(merges.size()), options_(options) {
    for (const Merge& merge : merges) table_.set(merge.left, merge.right, merge.rank, merge.merged);
    if (options.byte_fallback) byte_ids_ = byte_fallback_ids(vocabulary);
  }
  void encode(std::string_view word, std::vector<WordToken>& tokens) const override {
    if (options_.whole) {
      if (const auto id = vocabulary_.find(word)) {
        tokens.push_back({*id, 0, static_cast<uint32_t>(word.size())});
        return;
      }
    }
    std::vector<Symbol> symbols;
    split(word, symbols);
    Merger().merge(table_, symbols);
    uint32_t at = 0;
    for (const Symbol& symbol : symbols) {
      tokens.push_back({static_cast<int32_t>(symbol.id), at, at + symbol.length});
      at += symbol.length;
    }
  }

 private:
  void split(std::string_view word, std::vector<Symbol>& symbols) const {
    std::string text;
    uint32_t unknown_length = 0;  // Of a pending unknown token.
    const auto put_unknown = [&] {
      if (unknown_length > 0) symbols.push_back({static_cast<uint32_t>(*options_.unknown), unknown_length});
      unknown_length = 0;
    };
    for (size_t at = 0; at < word.size();) {
      const size_t n = char_length(word.data() + at);
      text.assign(at > 0 ? options_.continuing_prefix : "").append(word.substr(at, n));
      if (at + n == word.size()) text += options_.end_suffix;
      if (const auto id = vocabulary_.find(text)) {
        put_unknown();
        symbols.push_back({static_cast<uint32_t>(*id), static_cast<uint32_t>(n)});
      } else if (!byte_ids_.empty()) {
        for (size_t i = 0; i < text.size(); ++i)
          symbols.push_back({static_cast<uint32_t>(byte_ids_[static_cast<uint8_t>(text[i])]), static_cast<uint32_t>(i < n)});
      } else if (options_.unknown) {
        if (!options_.fuse_unknown) put_unknown();
        unknown_length += static_cast<uint32_t>(n);
      }
      at += n;
    }
    put_unknown();
  }
  const Vocabulary& vocabulary_;
  MergeTable table_;
  CharBpeOptions options_;
  std::vector<int32_t> byte_ids_;
};

class Unigram : public Model {
 public:
  Unigram(const Vocabulary& vocabulary, std::vector<double> scores, std::optional<int32_t> unknown, bool byte_fallback)
      : scores_(std::move(scores)), unknown_(unknown) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t id = 0; id < static_cast<int64_t>(scores_.size()); ++id) {  // Added tokens have larger ids and no score.
      least = std::min(least, scores_[static_cast<size_t>(id)]);
      pieces_.at(vocabulary.piece(id)) = static_cast<int32_t>(id);
    }
    constexpr double kUnknownPenalty = 10;  // As in SentencePiece.
    unknown_score_ = least - kUnknownPenalty;
    if (byte_fallback) byte_ids_ = byte_fallback_ids(vocabulary);
  }
  void encode(std::string_view word, std::vector<WordToken>& tokens) const override {
    const std::vector<Best> best = forward(word);
    const size_t before = tokens.size();
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      const Best& node = best[end];
      if (node.id == kUnknown && tokens.size() > before && tokens.back().id == kUnknown) {
        tokens.back().begin = node.begin;  // Neighbors without a piece are one token.
      } else {
        tokens.push_back({node.id, node.begin, static_cast<uint32_t>(end)});
      }
    }
    std::reverse(tokens.begin() + static_cast<std::ptrdiff_t>(before), tokens.end());
    resolve_unknown(word, before, tokens);
  }

 private:
  static constexpr int32_t kUnknown = ByteTrie::kNone;
  struct Best {
    double score = 0;
    int32_t id = kUnknown;
    uint32_t begin = ~uint32_t{0};
  };
  /// The best division of each beginning of the word.
  std::vector<Best> forward(std::string_view word) const {
    std::vector<Best> best(word.size() + 1);
    const auto offer = [&](size_t end, double score, int32_t id, size_t begin) {
      if (best[end].begin == ~uint32_t{0} || score > best[end].score) best[end] = {score, id, static_cast<uint32_t>(begin)};
    };
    for (size_t at = 0; at < word.size();) {
      const size_t n = char_length(word.data() + at);
      bool has_character = false;
      pieces_.visit_at(word, at, [&](size_t end, int32_t id) {
        offer(end, best[at].score + scores_[static_cast<size_t>(id)], id, at);
        has_character |= end - at == n;
      });
      if (!has_character) offer(at + n, best[at].score + unknown_score_, kUnknown, at);
      at += n;
    }
    return best;
  }
  void resolve_unknown(std::string_view word, size_t before, std::vector<WordToken>& tokens) const {
    std::vector<WordToken> resolved;
    for (size_t i = before; i < tokens.size(); ++i) {
      const WordToken& token = tokens[i];
      // A piece of the vocabulary that is the unknown token itself is joined too, as in the reference.
      if (token.id != kUnknown) {
        resolved.push_back(token);
      } else if (!byte_ids_.empty()) {
        for (uint32_t at = token.begin; at < token.end; ++at)
          resolved.push_back({byte_ids_[static_cast<uint8_t>(word[at])], token.begin, token.end});
      } else {
        GALLEY_CHECK_INPUT(unknown_, "'", word.substr(token.begin, token.end - token.begin),
                           "' has no piece in the vocabulary, which has no token for unknown text");
        resolved.push_back({*unknown_, token.begin, token.end});
      }
    }
    tokens.resize(before);
    tokens.insert(tokens.end(), resolved.begin(), resolved.end());
  }
  std::vector<double> scores_;
  std::optional<int32_t> unknown_;
  double unknown_score_ = 0;
  std::vector<int32_t> byte_ids_;
  ByteTrie pieces_;
};

}  // namespace

std::vector<int32_t> byte_fallback_ids(const Vocabulary& vocabulary) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::vector<int32_t> ids;
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto id = vocabulary.find(cat("<0x", kHex[byte >> 4], kHex[byte & 15], ">"));
    if (!id) return {};
    ids.push_back(*id);
  }
  return ids;
}

std::unique_ptr<Model> word_piece(const Vocabulary& vocabulary, int32_t unknown, const std::string& prefix, int64_t longest) {
  return std::make_unique<WordPiece>(vocabulary, unknown, prefix, longest);
}
std::unique_ptr<Model> word_level(const Vocabulary& vocabulary, std::optional<int32_t> unknown) {
  return std::make_unique<WordLevel>(vocabulary, unknown);
}
std::unique_ptr<Model> unigram(const Vocabulary& vocabulary, std::vector<double> scores, std::optional<int32_t> unknown,
                               bool byte_fallback) {
  return std::make_unique<Unigram>(vocabulary, std::move(scores), unknown, byte_fallback);
}
std::unique_ptr<Model> char_bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const CharBpeOptions& options) {
  return std::make_unique<CharBpe>(vocabulary, merges, options);
}

}  // namespace galley::text
