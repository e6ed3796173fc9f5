#pragma once
// Tokens that are cut out of the text before the model sees it.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/buffer.h"
#include "libcore/text/byte_trie.h"

namespace galley::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< Only where no word character is next to it.
  bool lstrip = false;       ///< White space on its left belongs to it.
  bool rstrip = false;
  bool normalized = false;  ///< Found after normalization, in its normalized spelling.
  bool special = false;
};

/// Finds the leftmost, then the longest, of a set of strings.
class AddedTokens {
 public:
  void add(const AddedToken& token, std::string_view spelling);
  bool empty() const { return tokens_.empty(); }

  struct Part {
    Range range;
    const AddedToken* token = nullptr;  ///< Null: text between tokens.
  };
  /// Divides text into tokens and the text between them; no part is empty, and parts are in order and cover the text. `parse_special`
  /// false: special tokens are text.
  std::vector<Part> divide(std::string_view text, bool parse_special) const;

 private:
  /// The longest token at text[at], or ByteTrie::kNone; its end.
  int32_t match(std::string_view text, size_t at, size_t& end) const;
  ByteTrie spellings_;  // With positions in tokens_.
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> first_{};  // Bytes that begin a token.
  int first_count_ = 0;
  uint8_t only_first_ = 0;
};

}  // namespace galley::text
