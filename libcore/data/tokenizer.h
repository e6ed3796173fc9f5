#pragma once
// Tokenizers: between text and the integers that a language model reads. A tokenizer is known by one line of text (str), which weights
// carry, so that every later tool reads the same.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"

namespace galley {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Tokens of the vocabulary: ids are 0 .. size()-1.
  virtual int64_t size() const = 0;
  /// Appends the ids of a text. Throws (kInput), naming `name` with line and column, where the text is not valid or holds what the
  /// vocabulary does not.
  virtual void encode(std::string_view text, const std::string& name, std::vector<int32_t>& ids) const = 0;
  /// The text of ids of the vocabulary.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// "byte", "char ABC...": parse_tokenizer makes the same tokenizer of it.
  virtual std::string str() const = 0;
};

/// What a tokenizer may be made from.
struct TokenizerContext {
  std::string root;                         ///< Relative paths start here.
  std::vector<std::string> training_files;  ///< The text of data.train; empty where that is no text.
};

/// Base of the option structs of all tokenizers.
class TokenizerOptions : public Options {
 public:
  virtual std::shared_ptr<const Tokenizer> make(const TokenizerContext& context) const = 0;
};
template <class Self>
class TokenizerOptionsOf : public TokenizerOptions {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// One token a character (Unicode code point of UTF-8 text), in the order of their code points.
struct CharTokenizer : TokenizerOptionsOf<CharTokenizer> {
  std::vector<std::string> path;  ///< The text whose characters make the vocabulary; empty: the training text.
  void options(OptionVisitor& visitor) override;
  std::shared_ptr<const Tokenizer> make(const TokenizerContext& context) const override;
};
/// One token a byte, 256 in all: any file is valid.
struct ByteTokenizer : TokenizerOptionsOf<ByteTokenizer> {
  void options(OptionVisitor& visitor) override;
  std::shared_ptr<const Tokenizer> make(const TokenizerContext& context) const override;
};

/// The tokenizers that a recipe may name.
ComponentKinds data_tokenizers();
/// Of a line that str() gave. Throws (kInput) where it is none.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view line);
std::shared_ptr<const Tokenizer> byte_tokenizer();
/// Of these characters (valid UTF-8, each once), in the order of their code points.
std::shared_ptr<const Tokenizer> char_tokenizer(std::string_view characters);

}  // namespace galley
