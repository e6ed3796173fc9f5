#pragma once
// What all language models of the zoo share: a vocabulary that the tokenizer may decide.

#include <cstdint>
#include <optional>
#include <string_view>

namespace galley {

/// The number of tokens of a model to which no tokenizer and no recipe gives one: it reads bytes.
inline constexpr int64_t kByteVocabulary = 256;

/// Base of the parameters of language models, in addition to OptionsOf.
struct LanguageModelParams {
  virtual ~LanguageModelParams() = default;
  /// Name of the recipe's key, below `model`, that sets the vocabulary: "vocab" or "vocab_size".
  virtual std::string_view vocabulary_key() const = 0;
  /// The value of that key: tokens of the vocabulary. None where the tokenizer determines it.
  virtual std::optional<int64_t>& vocabulary() = 0;
  const std::optional<int64_t>& vocabulary() const { return const_cast<LanguageModelParams*>(this)->vocabulary(); }
  /// Rows of the token embedding: the vocabulary, or kByteVocabulary where nothing set it.
  int64_t tokens() const { return vocabulary().value_or(kByteVocabulary); }
};

}  // namespace galley
