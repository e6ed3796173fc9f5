#pragma once
// Metrics of an evaluation: sums over samples, never means of batch means, so that the result does not depend on the batch size.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libcore/tensor/tensor.h"

namespace galley {

/// Names and values in a fixed order: {"loss", 0.31}, {"top1", 91.2}. top1 and top5 are percent; perplexity is e^loss and bits_per_char
/// loss / ln 2, with the loss as the mean over tokens (bits of a token: of a character by the tokenizer char, of a byte by byte).
using MetricValues = std::vector<std::pair<std::string, double>>;

/// Known metric names: loss, top1, top5 and, of language models, perplexity and bits_per_char.
const std::vector<std::string>& known_metrics();
/// True where a larger value is better (top1), false for loss, perplexity and bits_per_char.
bool larger_is_better(const std::string& metric);
/// "91.20 %", "0.3100", "4.7310": a value as people read it; `metric` may have a prefix ("ema/top1").
std::string metric_text(const std::string& metric, double value);

class Metrics {
 public:
  /// `names` from known_metrics(); throws Error (kRecipe) with the near name for others, and for perplexity of a model whose loss is not of
  /// tokens. Empty: loss, top1, and top5 for more than five classes; of tokens loss, perplexity and bits_per_char.
  Metrics(std::vector<std::string> names, int64_t classes, bool tokens = false);
  /// Adds the first `valid` samples of a batch: per-sample losses f32 [N], scores f32 [N,classes], labels i64 [N] (absent labels count
  /// for the loss only). Rank of the true class = number of classes that score higher, plus those of equal score and lower index, as
  /// torch.topk breaks ties on the CPU in practice; a NaN score ranks below all. Of tokens: losses f32 [N,T], scores f32 [N,T,classes],
  /// labels i64 [N,T], of which those below 0 do not count.
  void add(const Tensor& losses, const Tensor& scores, const Tensor& labels, int64_t valid);
  int64_t samples() const { return samples_; }
  /// Throws Error (kNumeric) where no sample was added.
  MetricValues values() const;

 private:
  std::vector<std::string> names_;
  bool by_tokens_ = false;
  int64_t samples_ = 0, tokens_ = 0;
  double loss_ = 0;
  int64_t top1_ = 0, top5_ = 0;
};

/// The value of that name, or NaN.
double find_metric(const MetricValues& values, const std::string& name);

}  // namespace galley
