#pragma once
// Byte-pair encoding. A word begins as one symbol a byte or character; the adjacent pair of the lowest rank is merged, the leftmost first,
// until no pair has a merge (Sennrich et al. 2016; with bytes: Radford et al. 2019).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/model.h"
#include "libcore/text/scanner.h"

namespace galley::text {

/// (left, right) -> (rank, merged): open addressing.
class MergeTable {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};
  explicit MergeTable(size_t merges);
  /// Adds a merge, or replaces the rank of the pair if it has one.
  void set(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);
  /// rank << 32 | merged, or kNone.
  uint64_t find(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (uint64_t i = slot(key);; i = (i + 1) & mask_) {
      if (entries_[i].key == key) return entries_[i].value;
      if (entries_[i].key == kNone) return kNone;
    }
  }
  size_t size() const { return used_; }

 private:
  struct Entry {
    uint64_t key = kNone, value = kNone;
  };
  uint64_t slot(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> 20 & mask_; }
  void grow();
  std::vector<Entry> entries_;
  uint64_t mask_ = 0;
  size_t used_ = 0;
};

/// A symbol of a word and the bytes of the word that it stands for.
struct Symbol {
  uint32_t id = 0;
  uint32_t length = 0;
};

/// Merges in place. Short words search an array for the lowest rank, which is fastest up to some 64 symbols; longer ones keep a heap, so
/// the time is n log n for any word.
class Merger {
 public:
  void merge(const MergeTable& table, std::vector<Symbol>& symbols);

 private:
  void merge_short(const MergeTable& table, std::vector<Symbol>& symbols);
  void merge_long(const MergeTable& table, std::vector<Symbol>& symbols);
  std::vector<uint64_t> found_;
  std::vector<uint32_t> next_, previous_;
  std::vector<uint64_t> heap_;
};

/// What a merge joins and makes, by ids. Pairs of the lowest rank come first; of two merges of one pair the later one counts.
struct Merge {
  uint32_t left = 0, right = 0, merged = 0, rank = 0;
};

/// Byte-level BPE: text -> pieces by a scanner -> bytes -> merges. Ids of pieces that were seen before come from a cache.
class ByteBpe {
 public:
  /// `byte_ids`: the token of each byte. `whole`: a piece that is a token is that token, although merges may not build it (tiktoken, Llama
  /// 3).
  ByteBpe(const std::vector<int32_t>& byte_ids, const std::vector<Merge>& merges, bool whole);
  ~ByteBpe();

  /// A token that `whole` finds: its bytes.
  void add_whole(std::string_view bytes, int32_t id);
  /// Appends the ids of valid UTF-8 text.
  void encode(std::string_view text, Scan scan, std::vector<int32_t>& ids) const;
  /// Appends the ids of one piece.
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  class Cache;
  struct Lease;
  void encode_miss(std::string_view piece, Cache& cache) const;

  std::vector<int32_t> byte_ids_;
  MergeTable table_;
  bool whole_;
  StringMap<int32_t> whole_ids_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Cache>> idle_;  // A call takes one, so threads do not share them.
};

/// The merges of ranked tokens (tiktoken): a pair merges if its bytes are a token, whose rank is its id.
std::vector<Merge> merges_of_ranks(const std::vector<std::pair<std::string, int32_t>>& tokens);

/// BPE over characters: Hugging Face's model BPE when no ByteLevel precedes it.
struct CharBpeOptions {
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool whole = false;  ///< ignore_merges
  std::string continuing_prefix;
  std::string end_suffix;
};
std::unique_ptr<Model> char_bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const CharBpeOptions& options);

}  // namespace galley::text
