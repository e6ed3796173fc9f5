#include "libcore/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/philox.h"

namespace galley {
namespace {

[[noreturn]] void refuse(const TokenKey& key, const std::string& why) {
  throw Error(ErrorCode::kNumeric, cat("prompt ", key.sequence + 1, ", token ", key.position + 1, ": ", why))
      .suggest("values overflow: galley-weights verify looks for damage in the weights; precision=f32 has the widest range");
}

/// Makes tokens of the text less probable: divides positive logits by the penalty and multiplies negative ones.
void penalize(std::vector<float>& logits, std::span<const int64_t> text, double penalty) {
  std::vector<bool> seen(logits.size());
  for (const int64_t token : text) {
    const auto i = static_cast<size_t>(token);
    if (i >= logits.size() || seen[i]) continue;
    seen[i] = true;
    const double x = logits[i];
    logits[i] = static_cast<float>(x > 0 ? x / penalty : x * penalty);
  }
}

struct Candidate {
  int64_t token;
  double probability;
};

/// Softmax of these tokens, most probable first.
std::vector<Candidate> softmax_of(const std::vector<float>& logits, const std::vector<int64_t>& tokens, double temperature) {
  const double top = logits[static_cast<size_t>(tokens.front())];
  std::vector<Candidate> candidates;
  candidates.reserve(tokens.size());
  double sum = 0;
  for (const int64_t token : tokens) {
    candidates.push_back({token, std::exp((logits[static_cast<size_t>(token)] - top) / temperature)});
    sum += candidates.back().probability;
  }
  for (Candidate& candidate : candidates) candidate.probability /= sum;
  return candidates;
}

void keep(std::vector<Candidate>& candidates, size_t count) {
  candidates.resize(count);
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.probability;
  for (Candidate& candidate : candidates) candidate.probability /= sum;
}

}  // namespace

void check_logits(std::span<const float> logits, const TokenKey& key) {
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = logits[i];
    if (std::isnan(x) || x == std::numeric_limits<float>::infinity()) refuse(key, cat("the logit of the id ", i, " is ", x));
    any = any || std::isfinite(x);
  }
  if (!any) refuse(key, "no id has a finite logit");
}

int64_t sample_token(std::span<const float> logits, std::span<const int64_t> text, const SamplingOptions& options, const TokenKey& key) {
  GALLEY_ASSERT(!logits.empty());
  check_logits(logits, key);
  std::vector<float> scores(logits.begin(), logits.end());
  if (options.repetition_penalty != 1) penalize(scores, text, options.repetition_penalty);
  if (options.greedy()) return std::max_element(scores.begin(), scores.end()) - scores.begin();

  std::vector<int64_t> tokens(scores.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(tokens.size())) {
    std::nth_element(tokens.begin(), tokens.begin() + options.top_k - 1, tokens.end(), before);
    tokens.resize(static_cast<size_t>(options.top_k));
  }
  std::sort(tokens.begin(), tokens.end(), before);
  std::vector<Candidate> candidates = softmax_of(scores, tokens, options.temperature.value_or(1));
  if (options.top_p < 1) {
    double sum = 0;
    size_t count = 0;
    while (count < candidates.size() && (count == 0 || sum < options.top_p)) sum += candidates[count++].probability;
    keep(candidates, count);
  }
  if (options.min_p > 0) {
    const double least = options.min_p * candidates.front().probability;
    size_t count = 1;
    while (count < candidates.size() && candidates[count].probability >= least) ++count;
    keep(candidates, count);
  }
  RandomStream stream(stream_key(key.seed, "generate") + static_cast<uint64_t>(key.sequence), "token", static_cast<uint64_t>(key.position));
  double rest = stream.uniform();
  for (const Candidate& candidate : candidates) {
    rest -= candidate.probability;
    if (rest < 0) return candidate.token;
  }
  return candidates.back().token;
}

}  // namespace galley
