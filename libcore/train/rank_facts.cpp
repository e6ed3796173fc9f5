#include "libcore/train/rank_facts.h"

#include <algorithm>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/communicator.h"
#include "libcore/comm/texts.h"
#include "libcore/data/source.h"
#include "libcore/recipe/differences.h"

namespace galley {
namespace {

constexpr char kSeparator = '\x1e';      // of texts that ranks exchange; not in recipes
constexpr int64_t kBlockSamples = 4096;  // ranks compare a digest of each block, and then the samples of one block

/// The first key whose values differ in two recipes; their texts differ.
KeyDifference first_difference(const std::string& before, const std::string& after) {
  const auto tree = [](const std::string& text) { return parse_yaml(std::make_shared<TextSource>(TextSource{"recipe", text})); };
  const std::vector<KeyDifference> found = differences(tree(before), tree(after));
  return found.empty() ? KeyDifference{"recipe", digest_of(before), digest_of(after)} : found.front();
}

/// The digests of blocks of samples, one after the other.
std::string block_digests(const Source& source) {
  const int64_t blocks = (source.size() + kBlockSamples - 1) / kBlockSamples;
  std::string all(static_cast<size_t>(blocks) * kDigestDigits, ' ');
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      Digest digest;
      for (int64_t i = block * kBlockSamples; i < std::min((block + 1) * kBlockSamples, source.size()); ++i) {
        const int64_t label = source.label(i);
        digest.update(source.sample_name(i));
        digest.update(std::as_bytes(std::span(&label, 1)));
      }
      const std::string hex = digest.hex();
      std::copy(hex.begin(), hex.end(), all.begin() + block * static_cast<int64_t>(kDigestDigits));
    }
  });
  return all;
}

std::string sample_text(const Source& source, int64_t index) {
  const int64_t label = source.label(index);
  return cat(source.sample_name(index), label < 0 ? "" : cat(" of class ", label));
}

/// Texts of the samples of a block, each followed by a separator.
std::string block_texts(const Source& source, int64_t block) {
  std::string texts;
  for (int64_t i = block * kBlockSamples; i < std::min((block + 1) * kBlockSamples, source.size()); ++i)
    texts += sample_text(source, i) + kSeparator;
  return texts;
}

class Comparison {
 public:
  explicit Comparison(Communicator& ranks) : ranks_(ranks) {}

  /// Throws on all ranks if a rank's text is not that of rank 0. `difference`: the error for a text of rank 0 and an own one that differ.
  template <class Difference>
  void compare(const char* name, const std::string& own, Difference&& difference) {
    const std::string first = broadcast_text(ranks_, name, own, 0);
    refuse(first == own ? "" : difference(first));
  }

  /// Throws on all ranks if a rank has other samples than rank 0.
  void compare_data(const std::string& key, const Source& own) {
    const std::string digests = block_digests(own), counted = cat(own.size(), " samples");
    const std::string all = counted + digest_of(digests), first = broadcast_text(ranks_, "data", all, 0);
    // The lowest rank that differs compares its samples with those of rank 0.
    int64_t differs = first == all ? 0 : ranks_.size() - ranks_.rank();
    ranks_.all_reduce("data", &differs, &differs, 1, DType::kI64, ReduceOp::kMax);
    if (differs == 0) return;
    const auto rank = static_cast<int>(ranks_.size() - differs);
    const std::string first_digests = broadcast_text(ranks_, "data", digests, 0);
    const auto [place, own_place] = std::mismatch(first_digests.begin(), first_digests.end(), digests.begin(), digests.end());
    int64_t block = (place - first_digests.begin()) / static_cast<int64_t>(kDigestDigits);
    ranks_.broadcast("data", &block, 1, DType::kI64, rank);
    const std::string first_texts = broadcast_text(ranks_, "data", block_texts(own, block), 0);
    if (rank != ranks_.rank()) return refuse("");
    const std::string own_texts = block_texts(own, block);
    const auto [at, own_at] = std::mismatch(first_texts.begin(), first_texts.end(), own_texts.begin(), own_texts.end());
    const int64_t sample = block * kBlockSamples + std::count(first_texts.begin(), at, kSeparator);
    const auto text = [](const std::string& texts, std::string::const_iterator where) -> std::string {
      if (where == texts.end()) return "not there";
      const auto separator = std::find(std::reverse_iterator(where), texts.rend(), kSeparator).base();
      return std::string(separator, std::find(where, texts.end(), kSeparator));
    };
    const std::string size = first.substr(0, first.size() - kDigestDigits);
    refuse(differs_text("data", cat("the data of the ranks differ: sample ", sample, " of ", key, " is "),
                        cat(text(first_texts, at), size == counted ? "" : cat(" (", size, ")")),
                        cat(text(own_texts, own_at), size == counted ? "" : cat(" (", counted, ")")), "give all ranks the same files"));
  }

  std::string differs_text(const std::string& key, const std::string& what, const std::string& was, const std::string& is,
                           const char* suggestion) const {
    return cat(key, kSeparator, what, was, " on rank 0, but ", is, " on rank ", ranks_.rank(), kSeparator, suggestion);
  }

 private:
  /// Throws the error of the lowest rank that has one: key, message and suggestion.
  void refuse(const std::string& own) const {
    const std::string message = first_text(ranks_, own);
    if (message.empty()) return;
    try {
      ranks_.barrier("refusal");  // a rank that ends would end the others before they have the message
    } catch (const Error&) {      // it has ended, after all had the message
    }
    const size_t key_end = message.find(kSeparator), message_end = message.rfind(kSeparator);
    const std::string key = message.substr(0, key_end);
    Error error(key.empty() ? ErrorCode::kWorker : ErrorCode::kRecipe, message.substr(key_end + 1, message_end - key_end - 1));
    if (!key.empty()) error.key(key);
    throw error.suggest(message.substr(message_end + 1));
  }

  Communicator& ranks_;
};

}  // namespace

void check_equal_facts(Communicator& ranks, const RankFacts& own) {
  Comparison comparison(ranks);
  comparison.compare("build", own.build, [&](const std::string& first) {
    return comparison.differs_text("", "the program is ", first, own.build, "start the same build on every machine");
  });
  comparison.compare("recipe", own.recipe_text, [&](const std::string& first) {
    const KeyDifference key = first_difference(first, own.recipe_text);
    return comparison.differs_text(key.key, cat("the recipes of the ranks differ: ", key.key, " is "), key.before, key.after,
                                   "give all ranks the same recipe, overrides and environment");
  });
  for (const auto& setting : own.settings) {
    comparison.compare("settings", setting.second, [&](const std::string& first) {
      return comparison.differs_text("", cat(setting.first, " is "), first, setting.second,
                                     "start all ranks with the same options, on a file system that all machines share");
    });
  }
}

void check_equal_data(Communicator& ranks, const RankData& own) {
  Comparison comparison(ranks);
  for (const auto& [key, source] : own) comparison.compare_data(key, *source);
}

}  // namespace galley
