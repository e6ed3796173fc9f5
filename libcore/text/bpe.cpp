#include "libcore/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <tuple>

#include "libcore/base/error.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

constexpr size_t kShortWord = 64;  // Symbols. Above it the heap is faster; the anchors measured 0.4 us a short word.
constexpr size_t kLongWord = 512;  // Above it lists by rank are faster than one heap.
constexpr size_t kWindow = 16384;  // Symbols of a longer word that are merged together: 400 KiB, which the second-level cache holds.
constexpr size_t kOverlap = 64;    // Symbols at the end of a window that the next one merges again, at least.
constexpr uint64_t kMixA = 0x9E3779B97F4A7C15u, kMixB = 0xFF51AFD7ED558CCDu;

}  // namespace

MergeTable::MergeTable(size_t merges) : square_(size_t{kSquare} * kSquare, kNone) {
  size_t capacity = 16;
  while (capacity < 2 * merges) capacity *= 2;
  keys_.resize(capacity, kEmpty);
  ranks_.resize(capacity);
  mask_ = capacity - 1;
  make_filter();
}

void MergeTable::make_filter() {
  const size_t bits = 8 * keys_.size();
  filter_.assign(bits / 64, 0);
  filter_shift_ = 64 - std::countr_zero(bits);
  for (const uint64_t key : keys_) {
    if (key != kEmpty) mark(key);
  }
}

void MergeTable::set(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
  if (rank >= merged_.size()) merged_.resize(size_t{rank} + 1);
  merged_[rank] = merged;
  if (left < kSquare && right < kSquare) {
    square_[left * kSquare + right] = rank;
    return;
  }
  if (2 * (used_ + 1) > keys_.size()) grow();
  const uint64_t key = uint64_t{left} << 32 | right;
  uint64_t i = slot(key);
  while (keys_[i] != kEmpty && keys_[i] != key) i = (i + 1) & mask_;
  used_ += keys_[i] == kEmpty;
  keys_[i] = key;
  ranks_[i] = rank;
  mark(key);
}

void MergeTable::grow() {
  std::vector<uint64_t> keys(2 * keys_.size(), kEmpty);
  std::vector<uint32_t> ranks(2 * keys_.size());
  keys.swap(keys_);
  ranks.swap(ranks_);
  mask_ = keys_.size() - 1;
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k] == kEmpty) continue;
    uint64_t i = slot(keys[k]);
    while (keys_[i] != kEmpty) i = (i + 1) & mask_;
    keys_[i] = keys[k];
    ranks_[i] = ranks[k];
  }
  make_filter();
}

void Merger::merge(const MergeTable& table, std::vector<Symbol>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShortWord) {
    merge_short(table, symbols);
  } else if (symbols.size() <= kLongWord) {
    merge_by_heap(table, symbols);
  } else if (symbols.size() <= kWindow) {
    merge_by_rank(table, symbols);
  } else {
    merge_in_windows(table, symbols);
  }
}

void Merger::merge_short(const MergeTable& table, std::vector<Symbol>& symbols) {
  std::array<uint32_t, kShortWord> found;
  Symbol* s = symbols.data();
  size_t pairs = symbols.size() - 1;
  for (size_t i = 0; i < pairs; ++i) found[i] = table.find(s[i].id, s[i + 1].id);
  while (pairs > 0) {
    uint32_t lowest = MergeTable::kNone;
    for (size_t i = 0; i < pairs; ++i) lowest = std::min(lowest, found[i]);
    if (lowest == MergeTable::kNone) break;
    size_t best = 0;
    while (found[best] != lowest) ++best;
    s[best] = {table.merged(lowest), s[best].length + s[best + 1].length};
    for (size_t i = best + 1; i < pairs; ++i) {  // The rest moves down; loops beat memmove at this length.
      s[i] = s[i + 1];
      found[i - 1] = found[i];
    }
    --pairs;
    if (best < pairs) found[best] = table.find(s[best].id, s[best + 1].id);
    if (best > 0) found[best - 1] = table.find(s[best - 1].id, s[best].id);
  }
  symbols.resize(pairs + 1);
}

/// Finds the pairs and neighbors of all symbols.
void Merger::link(const MergeTable& table, const std::vector<Symbol>& symbols) {
  const auto n = static_cast<uint32_t>(symbols.size());
  nodes_.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    nodes_[i] = {symbols[i].id, last ? MergeTable::kNone : table.find(symbols[i].id, symbols[i + 1].id), last ? kEnd : i + 1, i - 1};
  }
  nodes_[0].previous = kEnd;
}

/// Merges the pair at this node by its rank, which makes other pairs of the node and of that before it.
void Merger::join(const MergeTable& table, uint32_t at) {
  Node& node = nodes_[at];
  Node& right = nodes_[node.next];
  node.id = table.merged(node.rank);
  node.next = right.next;
  right.rank = MergeTable::kNone;  // It is gone.
  node.rank = MergeTable::kNone;
  if (node.next != kEnd) {
    nodes_[node.next].previous = at;
    node.rank = table.find(node.id, nodes_[node.next].id);
  }
  if (node.previous != kEnd) nodes_[node.previous].rank = table.find(nodes_[node.previous].id, node.id);
}

/// Leaves the symbols of the nodes that are left.
void Merger::collect(std::vector<Symbol>& symbols) const {
  size_t count = 0;
  for (uint32_t at = 0; at != kEnd; at = nodes_[at].next) {
    const uint32_t end = nodes_[at].next == kEnd ? static_cast<uint32_t>(symbols.size()) : nodes_[at].next;
    uint32_t length = 0;
    for (uint32_t i = at; i < end; ++i) length += symbols[i].length;
    symbols[count++] = {nodes_[at].id, length};
  }
  symbols.resize(count);
}

void Merger::merge_by_heap(const MergeTable& table, std::vector<Symbol>& symbols) {
  link(table, symbols);
  heap_.clear();
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].rank != MergeTable::kNone) heap_.push_back(uint64_t{nodes_[i].rank} << 32 | i);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    const auto [rank, at] = pop_pair();
    if (nodes_[at].rank != rank) continue;  // The pair changed since.
    join(table, at);
    push_pair(at);
    push_pair(nodes_[at].previous);
  }
  collect(symbols);
}

void Merger::push_pair(uint32_t at) {
  if (at == kEnd || nodes_[at].rank == MergeTable::kNone) return;
  heap_.push_back(uint64_t{nodes_[at].rank} << 32 | at);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

std::pair<uint32_t, uint32_t> Merger::pop_pair() {
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const uint64_t lowest = heap_.back();
  heap_.pop_back();
  return {static_cast<uint32_t>(lowest >> 32), static_cast<uint32_t>(lowest)};
}

/// Adds the pair at this node to the list of its rank.
void Merger::list_pair(uint32_t at) {
  List& list = lists_[nodes_[at].rank];
  const auto place = static_cast<uint32_t>(pairs_.size());
  pairs_.push_back({at, kEnd});
  if (list.first == kEnd) {
    list.first = place;
    ranks_.push_back(nodes_[at].rank);
    std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
  } else {
    pairs_[list.last].next = place;
  }
  list.last = place;
}

/// Takes the list of the lowest rank to taken_, the leftmost pair first. Returns the rank.
uint32_t Merger::take_list() {
  std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
  const uint32_t rank = ranks_.back();
  ranks_.pop_back();
  taken_.clear();
  for (uint32_t i = lists_[rank].first; i != kEnd; i = pairs_[i].next) taken_.push_back(pairs_[i].at);
  lists_[rank].first = kEnd;
  if (!std::is_sorted(taken_.begin(), taken_.end())) std::sort(taken_.begin(), taken_.end());
  return rank;
}

/// Lists are emptied in the order of ranks. A merge usually makes pairs of higher ranks, which join the lists. Pairs of the present rank or
/// a lower one are left of all that remain of the list, so they come first, from a heap of their own.
void Merger::merge_by_rank(const MergeTable& table, std::vector<Symbol>& symbols) {
  link(table, symbols);
  lists_.resize(table.ranks());  // All are empty after a word.
  pairs_.clear();
  heap_.clear();
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].rank != MergeTable::kNone) list_pair(i);
  }
  while (!ranks_.empty()) {
    const uint32_t present = take_list();
    const auto file = [&](uint32_t at) {
      if (at == kEnd || nodes_[at].rank == MergeTable::kNone) return;
      nodes_[at].rank > present ? list_pair(at) : push_pair(at);
    };
    for (uint32_t at : taken_) {
      for (uint32_t rank = present;; std::tie(rank, at) = pop_pair()) {
        if (nodes_[at].rank == rank) {  // Else the pair changed since.
          join(table, at);
          file(at);
          file(nodes_[at].previous);
        }
        if (heap_.empty()) break;
      }
    }
  }
  collect(symbols);
}

/// Merges windows of the word one after the other, so that what is in work fits the caches. Each window begins where a symbol that the ones
/// before it gave begins, some way from their end. Where both give the same symbol at the same place, the symbols of the first up to there
/// and of the second from there on are what the whole word gives: only a merge across the boundary of two neighbors could change them, and
/// for any two neighbors a window has shown that none does. Without such a symbol the window begins earlier, and in the end with the word.
void Merger::merge_in_windows(const MergeTable& table, std::vector<Symbol>& symbols) {
  std::vector<Symbol> done, window;  // their lengths count symbols of the word
  size_t end = 0, overlap = 0;       // end: of `done` in the word
  while (end < symbols.size()) {
    size_t kept = done.size(), begin = end;
    while (end - begin < overlap) begin -= done[--kept].length;
    const size_t next_end = std::min(symbols.size(), end + kWindow);
    window.clear();
    for (size_t i = begin; i < next_end; ++i) window.push_back({symbols[i].id, 1});
    merge_by_rank(table, window);
    size_t i = 0, left = begin, right = begin;
    const auto equal = [&] { return left == right && done[kept].length == window[i].length; };  // and so the same symbol
    while (kept < done.size() && i < window.size() && !equal()) {
      if (left <= right) {
        left += done[kept++].length;
      } else {
        right += window[i++].length;
      }
    }
    if (end > 0 && (kept == done.size() || i == window.size())) {
      overlap *= 2;
      if (overlap > kWindow) return merge_by_rank(table, symbols);
      continue;
    }
    done.resize(kept);
    done.insert(done.end(), window.begin() + static_cast<std::ptrdiff_t>(i), window.end());
    end = next_end;
    overlap = kOverlap;
  }
  size_t at = 0;
  for (Symbol& symbol : done) {
    const size_t count = symbol.length;
    symbol.length = 0;
    for (size_t i = at; i < at + count; ++i) symbol.length += symbols[i].length;
    at += count;
  }
  symbols.swap(done);
}

/// Two tables of pieces and their ids. Pieces of up to 15 bytes are two words of 64 bits, followed by up to three ids: one cache
/// line answers. Longer ones are found by their hash. A full table is emptied, so a change of language cannot freeze it.
class ByteBpe::Cache {
 public:
  static constexpr size_t kLargest = size_t{1} << 18;  // Entries of a table: 8 MiB of short pieces, half of them used.
  static constexpr size_t kLongestShort = 15, kLongestPiece = 128;
  struct Key {
    uint64_t low = 0, high = 0;  // The bytes, and the length in the last.
  };
  struct Short {
    Key key;
    uint32_t count = 0;
    int32_t ids[3] = {};  // More than three: ids[0] is their place in pool.
  };
  struct Long {
    uint64_t hash = 0;
    uint32_t text = 0, length = 0, ids = 0, count = 0;
  };

  Cache() : shorts_(4096), longs_(1024) {}

  static Key key_of(const char* p, size_t n, const char* end) {
    uint64_t words[2] = {};
    if (end - p >= 16) {
      std::memcpy(words, p, 16);
      words[0] &= kMasks[n][0];
      words[1] &= kMasks[n][1];
    } else {
      std::memcpy(words, p, n);
    }
    return {words[0], words[1] | uint64_t{n} << 56};
  }
  const Short* find(const Key& key) const {
    for (size_t i = slot(key);; i = (i + 1) & (shorts_.size() - 1)) {
      const Short& entry = shorts_[i];
      if (entry.key.low == key.low && entry.key.high == key.high) return &entry;
      if (entry.key.high == 0) return nullptr;
    }
  }
  void prefetch(const Key& key) const { __builtin_prefetch(&shorts_[slot(key)]); }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&longs_[slot(hash)]); }
  const int32_t* ids(const Short& entry) const { return entry.count <= 3 ? entry.ids : pool_.data() + entry.ids[0]; }
  /// Returns the new entry, which lives until the next one.
  const Short* put(const Key& key, const std::vector<Symbol>& symbols) {
    if (2 * (used_shorts_ + 1) > shorts_.size()) grow_shorts();
    size_t i = slot(key);
    while (shorts_[i].key.high != 0) i = (i + 1) & (shorts_.size() - 1);
    Short& entry = shorts_[i];
    entry.key = key;
    entry.count = static_cast<uint32_t>(symbols.size());
    if (entry.count <= 3) {
      for (uint32_t k = 0; k < entry.count; ++k) entry.ids[k] = static_cast<int32_t>(symbols[k].id);
    } else {
      entry.ids[0] = static_cast<int32_t>(keep(symbols));
    }
    ++used_shorts_;
    return &entry;
  }

  static uint64_t hash(std::string_view text) {
    uint64_t h = text.size() * kMixA;
    size_t i = 0;
    for (; i + 8 <= text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, 8);
      h = (h ^ word) * kMixB;
      h ^= h >> 32;
    }
    uint64_t rest = 0;
    std::memcpy(&rest, text.data() + i, text.size() - i);
    h = (h ^ rest) * kMixB;
    return (h ^ h >> 32) | 1;
  }
  const Long* find(uint64_t hash, std::string_view text) const {
    for (size_t i = slot(hash);; i = (i + 1) & (longs_.size() - 1)) {
      const Long& entry = longs_[i];
      if (entry.hash == 0) return nullptr;
      if (entry.hash == hash && entry.length == text.size() && std::memcmp(text_.data() + entry.text, text.data(), text.size()) == 0)
        return &entry;
    }
  }
  const int32_t* ids(const Long& entry) const { return pool_.data() + entry.ids; }
  const Long* put(uint64_t hash, std::string_view text, const std::vector<Symbol>& symbols) {
    if (2 * (used_longs_ + 1) > longs_.size()) grow_longs();
    size_t i = slot(hash);
    while (longs_[i].hash != 0) i = (i + 1) & (longs_.size() - 1);
    longs_[i] = {hash, static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(text.size()), 0, static_cast<uint32_t>(symbols.size())};
    text_.insert(text_.end(), text.begin(), text.end());
    longs_[i].ids = static_cast<uint32_t>(keep(symbols));
    ++used_longs_;
    return &longs_[i];
  }

  Merger merger;
  std::vector<Symbol> symbols;

 private:
  static constexpr std::array<std::array<uint64_t, 2>, 16> make_masks() {
    std::array<std::array<uint64_t, 2>, 16> masks{};
    for (size_t n = 0; n < 16; ++n) {
      masks[n][0] = n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * n)) - 1;
      masks[n][1] = n <= 8 ? 0 : (uint64_t{1} << (8 * (n - 8))) - 1;
    }
    return masks;
  }
  static const std::array<std::array<uint64_t, 2>, 16> kMasks;

  size_t slot(const Key& key) const {
    uint64_t h = key.low * kMixA;
    h = (h ^ h >> 32 ^ key.high) * kMixB;
    return (h ^ h >> 32) & (shorts_.size() - 1);
  }
  size_t slot(uint64_t hash) const { return hash >> 20 & (longs_.size() - 1); }
  size_t keep(const std::vector<Symbol>& symbols_of) {
    const size_t at = pool_.size();
    for (const Symbol& symbol : symbols_of) pool_.push_back(static_cast<int32_t>(symbol.id));
    return at;
  }
  void empty() {
    shorts_.assign(shorts_.size(), Short{});
    longs_.assign(longs_.size(), Long{});
    pool_.clear();
    text_.clear();
    used_shorts_ = used_longs_ = 0;
  }
  void grow_shorts() {
    if (shorts_.size() >= kLargest) return empty();
    std::vector<Short> old(shorts_.size() * 4);
    old.swap(shorts_);
    for (const Short& entry : old) {
      if (entry.key.high == 0) continue;
      size_t i = slot(entry.key);
      while (shorts_[i].key.high != 0) i = (i + 1) & (shorts_.size() - 1);
      shorts_[i] = entry;
    }
  }
  void grow_longs() {
    if (longs_.size() >= kLargest) return empty();
    std::vector<Long> old(longs_.size() * 4);
    old.swap(longs_);
    for (const Long& entry : old) {
      if (entry.hash == 0) continue;
      size_t i = slot(entry.hash);
      while (longs_[i].hash != 0) i = (i + 1) & (longs_.size() - 1);
      longs_[i] = entry;
    }
  }

  std::vector<Short> shorts_;
  std::vector<Long> longs_;
  std::vector<int32_t> pool_;
  std::vector<char> text_;
  size_t used_shorts_ = 0, used_longs_ = 0;
};

const std::array<std::array<uint64_t, 2>, 16> ByteBpe::Cache::kMasks = ByteBpe::Cache::make_masks();

/// A cache for the time of a call.
struct ByteBpe::Lease {
  explicit Lease(const ByteBpe& owner) : bpe(owner) {
    const std::lock_guard lock(bpe.mutex_);
    if (bpe.idle_.empty()) {
      cache = std::make_unique<Cache>();
    } else {
      cache = std::move(bpe.idle_.back());
      bpe.idle_.pop_back();
    }
  }
  ~Lease() {
    const std::lock_guard lock(bpe.mutex_);
    bpe.idle_.push_back(std::move(cache));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  const ByteBpe& bpe;
  std::unique_ptr<Cache> cache;
};

ByteBpe::ByteBpe(const std::vector<int32_t>& byte_ids, const std::vector<Merge>& merges, bool whole)
    : byte_ids_(byte_ids), table_(merges.size()), whole_(whole) {
  GALLEY_ASSERT(byte_ids_.size() == 256, byte_ids_.size());
  for (const Merge& merge : merges) table_.set(merge.left, merge.right, merge.rank, merge.merged);
  idle_.reserve(256);
}
ByteBpe::~ByteBpe() = default;

void ByteBpe::add_whole(std::string_view bytes, int32_t id) { whole_ids_.emplace(bytes, id); }

void ByteBpe::encode_miss(std::string_view piece, Cache& cache) const {
  std::vector<Symbol>& symbols = cache.symbols;
  if (whole_) {
    if (const auto found = whole_ids_.find(piece); found != whole_ids_.end()) {
      symbols.assign(1, {static_cast<uint32_t>(found->second), static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  symbols.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) symbols[i] = {static_cast<uint32_t>(byte_ids_[static_cast<uint8_t>(piece[i])]), 1};
  cache.merger.merge(table_, symbols);
}

void ByteBpe::encode(std::string_view text, Scan scan, std::vector<int32_t>& ids) const {
  const Lease lease(*this);
  Cache& cache = *lease.cache;
  constexpr size_t kBuffered = 1024, kAhead = 16;
  struct Piece {
    std::string_view text;
    Cache::Key key;     // of a short one
    uint64_t hash = 0;  // of a long one; 0: the cache does not hold it
  };
  int32_t buffer[kBuffered + 4];
  size_t buffered = 0;
  const auto append = [&](const int32_t* from, size_t count) {
    if (count <= 3) {  // Entries hold three, so that copying three is safe; one is the usual case.
      buffer[buffered] = from[0];
      buffer[buffered + 1] = count > 1 ? from[1] : 0;
      buffer[buffered + 2] = count > 2 ? from[2] : 0;
      buffered += count;
      if (buffered < kBuffered) return;
      count = 0;
    }
    ids.insert(ids.end(), buffer, buffer + buffered);
    buffered = 0;
    ids.insert(ids.end(), from, from + count);
  };
  const auto encode_short = [&](const Piece& piece) {
    const Cache::Short* entry = cache.find(piece.key);
    if (!entry) {
      encode_miss(piece.text, cache);
      entry = cache.put(piece.key, cache.symbols);
    }
    append(cache.ids(*entry), entry->count);
  };
  const auto encode_long = [&](const Piece& piece) {
    const Cache::Long* entry = piece.hash ? cache.find(piece.hash, piece.text) : nullptr;
    if (!entry) {
      encode_miss(piece.text, cache);
      if (piece.hash) entry = cache.put(piece.hash, piece.text, cache.symbols);
    }
    if (entry) return append(cache.ids(*entry), entry->count);
    ids.insert(ids.end(), buffer, buffer + buffered);
    buffered = 0;
    for (const Symbol& symbol : cache.symbols) ids.push_back(static_cast<int32_t>(symbol.id));
  };
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    // Entries of a large table come from memory: those of the next pieces are asked for before the first is used.
    std::array<Piece, kAhead> pieces;
    size_t count = 0;
    for (; count < kAhead && p < end; ++count) {
      const char* q = scan(p, end);
      Piece& piece = pieces[count];
      piece.text = {p, static_cast<size_t>(q - p)};
      if (piece.text.size() <= Cache::kLongestShort) {
        piece.key = Cache::key_of(p, piece.text.size(), end);
        cache.prefetch(piece.key);
      } else {
        piece.hash = piece.text.size() <= Cache::kLongestPiece ? Cache::hash(piece.text) : 0;
        if (piece.hash) cache.prefetch(piece.hash);
      }
      p = q;
    }
    for (size_t i = 0; i < count; ++i) {
      pieces[i].text.size() <= Cache::kLongestShort ? encode_short(pieces[i]) : encode_long(pieces[i]);
    }
  }
  ids.insert(ids.end(), buffer, buffer + buffered);
}

void ByteBpe::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  const Lease lease(*this);
  encode_miss(piece, *lease.cache);
  for (const Symbol& symbol : lease.cache->symbols) ids.push_back(static_cast<int32_t>(symbol.id));
}

std::vector<Merge> merges_of_ranks(const std::vector<std::pair<std::string, int32_t>>& tokens) {
  std::vector<const std::pair<std::string, int32_t>*> by_rank;
  std::unordered_map<std::string_view, int32_t> ids;
  for (const auto& token : tokens) {
    by_rank.push_back(&token);
    ids.emplace(token.first, token.second);
  }
  std::sort(by_rank.begin(), by_rank.end(), [](const auto* a, const auto* b) { return a->second < b->second; });
  std::vector<Merge> merges;
  for (const auto* token : by_rank) {
    const std::string_view bytes = token->first;
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(bytes.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(bytes.substr(cut));
      if (right == ids.end()) continue;
      const auto id = static_cast<uint32_t>(token->second);
      merges.push_back({static_cast<uint32_t>(left->second), static_cast<uint32_t>(right->second), id, id});
    }
  }
  return merges;
}

}  // namespace galley::text
