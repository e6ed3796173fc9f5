#pragma once
// TextStream: turns generated tokens into text that can be shown at once.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libcore/text/tokenizer.h"

namespace galley {

/// Holds back text that may still change: an incomplete UTF-8 character, and an end that may begin a stop string. Bytes that cannot become
/// a character are replaced by U+FFFD. Special tokens have no text.
class TextStream {
 public:
  /// Stop strings must not be empty. The tokenizer must outlive the stream.
  explicit TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops = {});
  TextStream(const TextStream& other);
  TextStream& operator=(const TextStream& other);
  TextStream(TextStream&&) = default;
  TextStream& operator=(TextStream&&) = default;
  ~TextStream() = default;

  /// Tokens before the text, which is returned as their continuation: some tokenizers leave out the space that a text begins with.
  void follow(std::span<const int64_t> tokens);
  /// Returns the text that became final with this token. It excludes the stop string and everything after it. Throws (kInput) if the
  /// vocabulary has no such token.
  std::string push(int64_t token);
  /// Ends the stream. Returns the text held back.
  std::string finish();
  /// Whether a stop string was found.
  bool stopped() const { return stopped_; }

 private:
  std::string pass(const std::string& text);

  std::unique_ptr<text::StreamDecoder> decoder_;
  std::vector<std::string> stops_;
  std::string text_;  // characters that may begin a stop string
  bool stopped_ = false;
};

}  // namespace galley
