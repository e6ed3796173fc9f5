#include "libcore/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

constexpr size_t kShortWord = 64;  // Symbols. Above it the heap is faster; the anchors measured 0.4 us a short word.
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
  } else {
    merge_long(table, symbols);
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

void Merger::merge_long(const MergeTable& table, std::vector<Symbol>& symbols) {
  constexpr uint32_t kEnd = ~uint32_t{0};
  const auto n = static_cast<uint32_t>(symbols.size());
  next_.resize(n);
  previous_.resize(n);
  found_.resize(n);
  heap_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    next_[i] = i + 1 < n ? i + 1 : kEnd;
    previous_[i] = i > 0 ? i - 1 : kEnd;
    found_[i] = i + 1 < n ? table.find(symbols[i].id, symbols[i + 1].id) : MergeTable::kNone;
    if (found_[i] != MergeTable::kNone) heap_.push_back(uint64_t{found_[i]} << 32 | i);
  }
  const std::greater<> lowest;
  std::make_heap(heap_.begin(), heap_.end(), lowest);
  const auto look_up = [&](uint32_t at) {
    found_[at] = next_[at] == kEnd ? MergeTable::kNone : table.find(symbols[at].id, symbols[next_[at]].id);
    if (found_[at] == MergeTable::kNone) return;
    heap_.push_back(uint64_t{found_[at]} << 32 | at);
    std::push_heap(heap_.begin(), heap_.end(), lowest);
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), lowest);
    const auto at = static_cast<uint32_t>(heap_.back());
    const auto rank = static_cast<uint32_t>(heap_.back() >> 32);
    heap_.pop_back();
    if (found_[at] != rank) continue;  // The pair changed since.
    const uint32_t right = next_[at];
    symbols[at] = {table.merged(rank), symbols[at].length + symbols[right].length};
    symbols[right].id = kEnd;  // It is gone.
    found_[right] = MergeTable::kNone;
    next_[at] = next_[right];
    if (next_[at] != kEnd) previous_[next_[at]] = at;
    look_up(at);
    if (previous_[at] != kEnd) look_up(previous_[at]);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.id == kEnd; });
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
