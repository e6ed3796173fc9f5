#pragma once
// The tokenizers that a recipe may name (data.tokenizer). Each is an option struct; libcore/text makes the tokenizer.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/text/tokenizer.h"

namespace galley {

/// Facts from outside a tokenizer's own options.
struct TokenizerContext {
  std::string root;  ///< Folder of relative paths.
  /// The text files of data.train, none if it is not text. Called only for a tokenizer without a file, since the data may be elsewhere.
  std::function<std::vector<std::string>()> training_files = [] { return std::vector<std::string>(); };
};

/// Base of the option structs of all tokenizers.
class TokenizerOptions : public Options {
 public:
  /// Builds the tokenizer. Throws Error if a file is missing, empty or not valid.
  virtual std::shared_ptr<const text::Tokenizer> make(const TokenizerContext& context) const = 0;
  /// Whether the recipe leaves the vocabulary to the weights, which carry theirs.
  virtual bool from_weights() const = 0;
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
  std::shared_ptr<const text::Tokenizer> make(const TokenizerContext& context) const override;
  bool from_weights() const override { return true; }
};
/// One token per byte, 256 in all. Any file is valid.
struct ByteTokenizer : TokenizerOptionsOf<ByteTokenizer> {
  void options(OptionVisitor& visitor) override;
  std::shared_ptr<const text::Tokenizer> make(const TokenizerContext& context) const override;
  bool from_weights() const override { return true; }
};

/// A tokenizer of files. `read` says how to read them (text/tokenizer.h).
struct FileTokenizer : TokenizerOptions {
  std::string path;
  text::ReadOptions read;
  std::shared_ptr<const text::Tokenizer> make(const TokenizerContext& context) const override;
  bool from_weights() const override { return path.empty(); }
};

/// The tokenizers that a recipe may name.
ComponentKinds data_tokenizers();
/// The type of data.tokenizer for a tokenizer that weights carry (text::Tokenizer::saved): char, byte, or hub for one of files.
std::string_view tokenizer_type(std::string_view saved);

}  // namespace galley
