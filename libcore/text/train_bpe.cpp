#include "libcore/text/train_bpe.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>

#include "libcore/base/error.h"
#include "libcore/text/scanner.h"
#include "libcore/text/unicode.h"
#include "libcore/text/vocabulary.h"

namespace galley::text {
namespace {

using Pair = uint64_t;  // left << 32 | right

struct Word {
  std::vector<uint32_t> symbols;
  int64_t count = 0;
};

struct PairUse {
  int64_t count = 0;
  std::vector<uint32_t> words;  // That had the pair when it was noted; some more than once.
};

/// The most frequent pair first; of equals the smallest.
struct Candidate {
  int64_t count = 0;
  Pair pair = 0;
  friend bool operator<(const Candidate& a, const Candidate& b) { return a.count != b.count ? a.count < b.count : a.pair > b.pair; }
};

/// Learns merges from counted words.
class Learner {
 public:
  Learner(std::vector<Word> words, std::vector<std::string> pieces) : words_(std::move(words)), pieces_(std::move(pieces)) {
    for (size_t i = 0; i < pieces_.size(); ++i) ids_.emplace(pieces_[i], static_cast<uint32_t>(i));
    for (uint32_t w = 0; w < words_.size(); ++w) note(w, 1, true);
    for (const auto& [pair, use] : uses_) queue_.push({use.count, pair});
    changed_.clear();
  }
  void learn(size_t vocabulary, int64_t min_count) {
    while (pieces_.size() < vocabulary && !queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = uses_[top.pair].count;
      if (count != top.count) {
        if (count > 0 && count < top.count) queue_.push({count, top.pair});  // A greater count has its own entry.
        continue;
      }
      if (count < std::max<int64_t>(1, min_count)) break;
      merge(top.pair);
    }
  }
  const std::vector<std::string>& pieces() const { return pieces_; }
  const std::vector<std::array<uint32_t, 2>>& merges() const { return merges_; }

 private:
  /// Adds (sign 1) or takes away (-1) the pairs of a word.
  void note(uint32_t w, int64_t sign, bool remember) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const Pair pair = Pair{word.symbols[i]} << 32 | word.symbols[i + 1];
      PairUse& use = uses_[pair];
      use.count += sign * word.count;
      if (remember && (use.words.empty() || use.words.back() != w)) use.words.push_back(w);
      changed_.push_back(pair);
    }
  }
  void merge(Pair pair) {
    const auto left = static_cast<uint32_t>(pair >> 32), right = static_cast<uint32_t>(pair);
    const std::string piece = pieces_[left] + pieces_[right];
    const auto [entry, is_new] = ids_.emplace(piece, static_cast<uint32_t>(pieces_.size()));
    if (is_new) pieces_.push_back(piece);
    merges_.push_back({left, right});
    const std::vector<uint32_t> words = std::move(uses_[pair].words);
    changed_.clear();
    for (const uint32_t w : words) replace(w, left, right, entry->second);
    uses_[pair].words.clear();
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair changed : changed_) {
      const int64_t count = uses_[changed].count;
      if (count > 0) queue_.push({count, changed});
    }
  }
  void replace(uint32_t w, uint32_t left, uint32_t right, uint32_t merged) {
    std::vector<uint32_t>& symbols = words_[w].symbols;
    bool has = false;
    for (size_t i = 0; i + 1 < symbols.size() && !has; ++i) has = symbols[i] == left && symbols[i + 1] == right;
    if (!has) return;
    note(w, -1, false);
    size_t to = 0;
    for (size_t i = 0; i < symbols.size(); ++to) {
      const bool joins = i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right;
      symbols[to] = joins ? merged : symbols[i];
      i += joins ? 2 : 1;
    }
    symbols.resize(to);
    note(w, 1, true);
  }

  std::vector<Word> words_;
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<Pair, PairUse> uses_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> changed_;
  std::vector<std::array<uint32_t, 2>> merges_;
};

using Json = nlohmann::ordered_json;

/// Bytes in the order of the characters that spell them.
std::vector<uint8_t> bytes_by_character() {
  std::vector<uint8_t> bytes(256);
  for (size_t b = 0; b < 256; ++b) bytes[b] = static_cast<uint8_t>(b);
  std::sort(bytes.begin(), bytes.end(), [](uint8_t a, uint8_t b) { return byte_character(a) < byte_character(b); });
  return bytes;
}

Json pre_tokenizer_of(const KnownPattern& pattern) {
  const bool own = pattern.name == "gpt2";
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", own}};
  if (own) return bytes;
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", pattern.text}}}, {"behavior", "Isolated"}, {"invert", false}};
  return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
}

}  // namespace

struct BpeTrainer::State {
  TrainBpeOptions options;
  const KnownPattern* pattern = nullptr;
  StringMap<int64_t> counts;
};

BpeTrainer::BpeTrainer(const TrainBpeOptions& options) : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->pattern = &pattern_named(options.pattern);
  const auto least = static_cast<int64_t>(options.special.size()) + 256;
  GALLEY_CHECK_INPUT(options.vocabulary >= least && options.vocabulary <= Vocabulary::kLargestId, "a vocabulary of ", options.vocabulary,
                     " tokens: with 256 bytes and ", options.special.size(), " special tokens it must have ", least, " to ",
                     Vocabulary::kLargestId);
  for (size_t i = 0; i < options.special.size(); ++i) {
    const std::string& token = options.special[i];
    check_utf8(token, "a special token");
    std::string bytes;
    const bool is_byte = char_length(token.data()) == token.size() && bytes_of_piece(token, bytes);
    const auto* end = options.special.data() + i;
    GALLEY_CHECK_INPUT(!token.empty() && !is_byte && std::find(options.special.data(), end, token) == end, "the special token '", token,
                       "' is empty, a single byte, or named twice");
  }
}
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view text, std::string_view name) {
  check_utf8(text, name);
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* q = state_->pattern->scan(p, end);
    const std::string_view piece(p, static_cast<size_t>(q - p));
    if (const auto found = state_->counts.find(piece); found != state_->counts.end()) {
      ++found->second;
    } else {
      state_->counts.emplace(piece, 1);
    }
    p = q;
  }
}

std::string BpeTrainer::finish() const {
  GALLEY_CHECK_INPUT(!state_->counts.empty(), "there is no text to learn a vocabulary from");
  const TrainBpeOptions& options = state_->options;
  std::vector<std::string> pieces = options.special;
  std::array<uint32_t, 256> id_of_byte{};
  for (const uint8_t byte : bytes_by_character()) {
    id_of_byte[byte] = static_cast<uint32_t>(pieces.size());
    pieces.emplace_back();
    append_utf8(pieces.back(), byte_character(byte));
  }
  std::vector<Word> words;
  words.reserve(state_->counts.size());
  for (const auto& [piece, count] : state_->counts) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char c : piece) word.symbols.push_back(id_of_byte[static_cast<uint8_t>(c)]);
  }
  Learner learner(std::move(words), std::move(pieces));
  learner.learn(static_cast<size_t>(options.vocabulary), options.min_count);

  Json added = Json::array(), vocabulary = Json::object(), merges = Json::array();
  for (size_t i = 0; i < options.special.size(); ++i) {
    added.push_back(Json{{"id", i},
                         {"content", options.special[i]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
  }
  // push_back of a member: an ordered object would search for each key.
  auto& members = vocabulary.get_ref<Json::object_t&>();
  for (size_t i = 0; i < learner.pieces().size(); ++i) members.push_back({learner.pieces()[i], Json(i)});
  for (const auto& [left, right] : learner.merges()) merges.push_back(Json::array({learner.pieces()[left], learner.pieces()[right]}));
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  const Json file{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", std::move(added)},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", pre_tokenizer_of(*state_->pattern)},
                  {"post_processor", bytes},
                  {"decoder", bytes},
                  {"model",
                   {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", false},
                    {"vocab", std::move(vocabulary)},
                    {"merges", std::move(merges)}}}};
  return file.dump() + "\n";
}

}  // namespace galley::text
