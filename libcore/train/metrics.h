#pragma once
// Metrics of an evaluation: sums over samples, never means of batch means, so that the result does not depend on the batch size.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libcore/tensor/tensor.h"

namespace galley {

/// Names and values in a fixed order: {"loss", 0.31}, {"top1", 91.2}. top1 and top5 are percent.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// Known metric names of classification: loss, top1, top5.
const std::vector<std::string>& known_metrics();
/// True where a larger value is better (top1), false for loss.
bool larger_is_better(const std::string& metric);

class Metrics {
 public:
  /// `names` from known_metrics(); throws Error (kRecipe) with the near name for others. Empty: loss, top1, and top5 for more than
  /// five classes.
  Metrics(std::vector<std::string> names, int64_t classes);
  /// Adds the first `valid` samples of a batch: per-sample losses f32 [N], scores f32 [N,classes], labels i64 [N] (absent labels count
  /// for the loss only). Rank of the true class = number of classes that score higher, plus those of equal score and lower index, as
  /// torch.topk breaks ties on the CPU in practice; a NaN score ranks below all.
  void add(const Tensor& losses, const Tensor& scores, const Tensor& labels, int64_t valid);
  int64_t samples() const { return samples_; }
  /// Throws Error (kNumeric) where no sample was added.
  MetricValues values() const;

 private:
  std::vector<std::string> names_;
  int64_t samples_ = 0;
  double loss_ = 0;
  int64_t top1_ = 0, top5_ = 0;
};

/// The value of that name, or NaN.
double find_metric(const MetricValues& values, const std::string& name);

}  // namespace galley
