#pragma once
// Learns a byte-level BPE vocabulary from texts.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace galley::text {

struct TrainBpeOptions {
  int64_t vocabulary = 8000;         ///< Tokens in all: special ones, 256 bytes and merges. Fewer if the texts have no more pairs.
  int64_t min_count = 2;             ///< A pair that occurs less often is not merged.
  std::string pattern = "gpt2";      ///< How text is cut into pieces: a name of pattern_names() (scanner.h).
  std::vector<std::string> special;  ///< Special tokens, with the ids 0, 1, ...
};

/// Counts pieces, then merges the most frequent pair again and again (Sennrich et al. 2016); of pairs that are equally frequent the one of
/// the lowest ids. The result depends on the multiset of texts only, neither on their order nor on threads. Ids are those of Hugging Face's
/// BpeTrainer: special tokens, bytes in the order of their characters, merges.
class BpeTrainer {
 public:
  /// Throws (kInput) if the options contradict each other.
  explicit BpeTrainer(const TrainBpeOptions& options);
  ~BpeTrainer();

  /// Counts the pieces of a text; `name` is its file for messages. Throws (kInput) if it is not UTF-8.
  void add(std::string_view text, std::string_view name);
  /// The tokenizer.json. Throws (kInput) if no text was added.
  std::string finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::text
