#pragma once
// Tokenizers convert between text and the integers that a language model reads. One line of text (str) describes a tokenizer. Weight files
// store that line, so that later tools use the same tokenizer.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"

namespace galley {

/// A vocabulary with ids 0 .. size()-1. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Number of tokens in the vocabulary.
  virtual int64_t size() const = 0;
  /// Appends the ids of a text. Throws Error (kInput), naming `name` with line and column, if the text is not valid or has a character
  /// outside the vocabulary.
  virtual void encode(std::string_view text, const std::string& name, std::vector<int32_t>& ids) const = 0;
  /// The text for these ids. Throws Error (kInput) for an id outside the vocabulary.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// Description: "byte", "char ABC...". parse_tokenizer reads it.
  virtual std::string str() const = 0;
};

/// Facts from outside a tokenizer's own options.
struct TokenizerContext {
  std::string root;                         ///< Folder of relative paths.
  std::vector<std::string> training_files;  ///< The text files of data.train; empty if it is not text.
};

/// Base of the option structs of all tokenizers.
class TokenizerOptions : public Options {
 public:
  /// Builds the tokenizer. Throws Error if a text is missing, empty or not valid.
  virtual std::shared_ptr<const Tokenizer> make(const TokenizerContext& context) const = 0;
};
/// Implements clone() for the option struct Self.
template <class Self>
class TokenizerOptionsOf : public TokenizerOptions {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// One token per character (Unicode code point of UTF-8 text), in the order of code points.
struct CharTokenizer : TokenizerOptionsOf<CharTokenizer> {
  std::vector<std::string> path;  ///< Text files whose characters form the vocabulary; empty: the training text.
  void options(OptionVisitor& visitor) override;
  std::shared_ptr<const Tokenizer> make(const TokenizerContext& context) const override;
};
/// One token per byte, 256 in all. Any file is valid.
struct ByteTokenizer : TokenizerOptionsOf<ByteTokenizer> {
  void options(OptionVisitor& visitor) override;
  std::shared_ptr<const Tokenizer> make(const TokenizerContext& context) const override;
};

/// The tokenizers that a recipe may name.
ComponentKinds data_tokenizers();
/// The tokenizer that a line of str() describes. Throws Error (kInput) for any other line.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view line);
/// The tokenizer "byte".
std::shared_ptr<const Tokenizer> byte_tokenizer();
/// The tokenizer "char" with these characters (valid UTF-8, each once), in the order of code points.
std::shared_ptr<const Tokenizer> char_tokenizer(std::string_view characters);

}  // namespace galley
