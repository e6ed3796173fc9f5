#pragma once
// Choosing the next token from logits: penalties, filters, and a draw that repeats.

#include <cstdint>
#include <optional>
#include <span>

namespace galley {

struct SamplingOptions {
  /// Divides the logits. 0: the most probable token (greedy). Null: 1 where a filter below is set, else 0.
  std::optional<double> temperature;
  int64_t top_k = 0;              ///< Only the k most probable tokens; 0: all.
  double top_p = 1;               ///< The smallest set of most probable tokens whose probabilities add up to this (Holtzman et al. 2019).
  double min_p = 0;               ///< Tokens of at least this share of the largest probability (Nguyen et al. 2024).
  double repetition_penalty = 1;  ///< Above 1: tokens of the text so far become less probable (Keskar et al. 2019).

  bool greedy() const { return (temperature ? *temperature : top_k > 0 || top_p < 1 || min_p > 0 ? 1.0 : 0.0) == 0; }
};

/// Identifies a draw: the same key and logits give the same token, in any batch and with any number of threads.
struct TokenKey {
  uint64_t seed = 0;
  int64_t sequence = 0;  ///< Index of the prompt.
  int64_t position = 0;  ///< Index of the token in its sequence.
};

/// Throws Error (kNumeric) if a logit is NaN or +infinity, or all are -infinity.
void check_logits(std::span<const float> logits, const TokenKey& key);

/// The next token. Filters apply in the order of SamplingOptions, each to the tokens that the earlier ones kept, as in transformers. Of
/// equal logits the smallest index is the most probable. `text`: the tokens so far. Throws Error (kNumeric) if a logit is NaN or +infinity,
/// or all are -infinity.
int64_t sample_token(std::span<const float> logits, std::span<const int64_t> text, const SamplingOptions& options, const TokenKey& key);

}  // namespace galley
