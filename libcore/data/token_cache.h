#pragma once
// The tokens of a text file, in memory or in a cache on disk that is mapped. A cache is keyed by digests of the tokenizer and of the file's
// contents: it is never out of date, and may be deleted at any time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace galley {

namespace text {
class Tokenizer;
}

/// Ids of one file. Copies share them. Thread-safe.
class TokenList {
 public:
  TokenList() = default;
  explicit TokenList(std::vector<int32_t> ids);

  int64_t size() const { return size_; }
  int32_t operator[](int64_t i) const { return narrow_ != nullptr ? narrow_[i] : wide_[i]; }
  bool is_mapped() const { return mapped_; }

 private:
  friend class TokenCache;
  std::shared_ptr<const void> owner_;
  const uint16_t* narrow_ = nullptr;  // Vocabularies of at most 65536 tokens.
  const int32_t* wide_ = nullptr;
  int64_t size_ = 0;
  bool mapped_ = false;
};

/// Encodes text files, and keeps the tokens of those that are worth it in a folder.
class TokenCache {
 public:
  /// Smaller files are encoded in less than a fifth of a second.
  static constexpr int64_t kLeastBytes = int64_t{8} << 20;

  /// `where`: auto (galley/tokens in $XDG_CACHE_HOME or ~/.cache, for files of at least kLeastBytes), none, or a folder for files of any
  /// size. The tokenizer must outlive the cache.
  TokenCache(const text::Tokenizer& tokenizer, const std::string& where);

  /// The tokens of a file, nothing put around them. Throws Error (kInput) if the text cannot be read or encoded. A cache that is damaged is
  /// made again; where it cannot be written, a warning says so and the tokens stay in memory.
  TokenList tokens_of(const std::string& path) const;

 private:
  TokenList map(const std::string& path, const std::string& key) const;

  const text::Tokenizer& tokenizer_;
  std::string folder_;  // "": none
  int64_t least_ = 0;
  std::string digest_;  // Of the tokenizer.
};

}  // namespace galley
