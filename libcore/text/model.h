#pragma once
// Models split a pre-tokenized word into tokens.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/vocabulary.h"

namespace galley::text {

/// A token of a word, and its bytes [begin, end) there.
struct WordToken {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of a word: valid UTF-8, not empty. Throws (kInput) where it has an unknown part and the model no token for that.
  virtual void encode(std::string_view word, std::vector<WordToken>& tokens) const = 0;
};

/// WordPiece (Wu et al. 2016, as in BERT): splits a word from the left into the longest pieces; pieces after the first begin with `prefix`.
/// A word of more than `longest` characters, or one that the pieces do not cover, becomes `unknown`. Keeps a reference to the vocabulary.
std::unique_ptr<Model> word_piece(const Vocabulary& vocabulary, int32_t unknown, const std::string& prefix, int64_t longest);

/// A word is a token, or `unknown`; without one it is an error.
std::unique_ptr<Model> word_level(const Vocabulary& vocabulary, std::optional<int32_t> unknown);

/// The division of the greatest sum of scores (Kudo 2018). `scores` by id. Characters without a piece are `unknown`, neighbors joined, or
/// with `byte_fallback` the tokens <0x00> to <0xFF> of their bytes.
std::unique_ptr<Model> unigram(const Vocabulary& vocabulary, std::vector<double> scores, std::optional<int32_t> unknown,
                               bool byte_fallback);

/// Ids of <0x00> to <0xFF>; empty if one is missing.
std::vector<int32_t> byte_fallback_ids(const Vocabulary& vocabulary);

}  // namespace galley::text
