#pragma once
// What all language models of the zoo share: a vocabulary that the tokenizer may decide.

#include <cstdint>
#include <optional>
#include <string_view>

namespace galley {

/// The number of tokens of a model to which no tokenizer and no recipe gives one: it reads bytes.
inline constexpr int64_t kByteVocabulary = 256;

/// Base of the parameters of language models, beside OptionsOf.
class LanguageModelParams {
 public:
  virtual ~LanguageModelParams() = default;
  /// Rows of the token embedding; none where the tokenizer decides.
  virtual std::optional<int64_t>& vocabulary() = 0;
  /// The option that sets it.
  virtual std::string_view vocabulary_key() const = 0;
  const std::optional<int64_t>& vocabulary() const { return const_cast<LanguageModelParams*>(this)->vocabulary(); }
};

}  // namespace galley
