#pragma once
// Byte-pair encoding. At first each byte or character of a word is a symbol; the adjacent pair of the lowest rank is merged, the leftmost
// first, until no pair has a merge (Sennrich et al. 2016; with bytes: Radford et al. 2019).

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

/// (left, right) -> rank, by open addressing; a rank says what is made. Pairs of the lowest ids, which begin every word of byte-level BPE,
/// have a square table.
class MergeTable {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  explicit MergeTable(size_t merges);
  /// Adds a merge, or replaces the rank of the pair if it has one. Pairs of one rank make the same symbol.
  void set(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);
  /// The rank of a pair, or kNone.
  uint32_t find(uint32_t left, uint32_t right) const {
    if (left < kSquare && right < kSquare) return square_[left * kSquare + right];
    const uint64_t key = uint64_t{left} << 32 | right;
    if (!may_have(key)) return kNone;
    for (uint64_t i = slot(key);; i = (i + 1) & mask_) {
      if (keys_[i] == key) return ranks_[i];
      if (keys_[i] == kEmpty) return kNone;
    }
  }
  uint32_t merged(uint32_t rank) const { return merged_[rank]; }
  /// All ranks are less.
  size_t ranks() const { return merged_.size(); }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0}, kMix = 0x9E3779B97F4A7C15u;
  static constexpr uint32_t kSquare = 272;  // 256 bytes and some special tokens before them: 289 KiB.
  uint64_t slot(uint64_t key) const { return (key * kMix) >> 20 & mask_; }
  /// Most pairs have no merge. One bit for each of some hashes says so, in an eighth of the memory of the keys or less.
  bool may_have(uint64_t key) const {
    const uint64_t bit = (key * kMix) >> filter_shift_;
    return (filter_[bit / 64] >> bit % 64 & 1) != 0;
  }
  void mark(uint64_t key) {
    const uint64_t bit = (key * kMix) >> filter_shift_;
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
  }
  void grow();
  void make_filter();
  std::vector<uint32_t> square_;
  std::vector<uint64_t> keys_;
  std::vector<uint32_t> ranks_;
  std::vector<uint32_t> merged_;  // By rank.
  std::vector<uint64_t> filter_;  // 8 bits for each key.
  int filter_shift_ = 0;
  uint64_t mask_ = 0;
  size_t used_ = 0;
};

/// A symbol of a word and the bytes of the word that it stands for.
struct Symbol {
  uint32_t id = 0;
  uint32_t length = 0;
};

/// Merges in place. Short words search an array for the lowest rank, which is fastest up to some 64 symbols; longer ones keep a heap of
/// pairs. Words of hundreds of symbols keep a list of pairs for each rank and a heap of the ranks, and words of tens of thousands do so for
/// one window after the other: the time is in proportion to the length.
class Merger {
 public:
  void merge(const MergeTable& table, std::vector<Symbol>& symbols);

 private:
  static constexpr uint32_t kEnd = ~uint32_t{0};
  /// A symbol of the word in work.
  struct Node {
    uint32_t id, rank;        // rank: of its pair with the next symbol
    uint32_t next, previous;  // kEnd: none
  };
  /// A pair in the list of its rank.
  struct Pair {
    uint32_t at, next;  // the node on its left; the next pair
  };
  struct List {
    uint32_t first = kEnd, last = kEnd;
  };
  void merge_short(const MergeTable& table, std::vector<Symbol>& symbols);
  void merge_by_heap(const MergeTable& table, std::vector<Symbol>& symbols);
  void merge_by_rank(const MergeTable& table, std::vector<Symbol>& symbols);
  void merge_in_windows(const MergeTable& table, std::vector<Symbol>& symbols);
  void link(const MergeTable& table, const std::vector<Symbol>& symbols);
  void join(const MergeTable& table, uint32_t at);
  void collect(std::vector<Symbol>& symbols) const;
  void push_pair(uint32_t at);
  std::pair<uint32_t, uint32_t> pop_pair();
  void list_pair(uint32_t at);
  uint32_t take_list();
  std::vector<Node> nodes_;
  std::vector<uint64_t> heap_;  // rank and node of pairs
  std::vector<Pair> pairs_;
  std::vector<List> lists_;      // by rank, in pairs_
  std::vector<uint32_t> ranks_;  // a heap of those that have a list
  std::vector<uint32_t> taken_;  // the list in work
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
