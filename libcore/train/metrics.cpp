#include "libcore/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace galley {

const std::vector<std::string>& known_metrics() {
  static const std::vector<std::string> names{"loss", "top1", "top5"};
  return names;
}

bool larger_is_better(const std::string& metric) { return metric != "loss"; }

Metrics::Metrics(std::vector<std::string> names, int64_t classes) : names_(std::move(names)) {
  if (names_.empty()) {
    names_ = {"loss", "top1"};
    if (classes > 5) names_.push_back("top5");
  }
  for (const std::string& name : names_) {
    if (std::find(known_metrics().begin(), known_metrics().end(), name) != known_metrics().end()) continue;
    const std::string near = nearest(name, known_metrics());
    fail(ErrorCode::kRecipe, "unknown metric '", name, "' (known: loss, top1, top5)", near.empty() ? "" : "; did you mean " + near + "?");
  }
  if (std::find(names_.begin(), names_.end(), "loss") == names_.end()) names_.insert(names_.begin(), "loss");
}

void Metrics::add(const Tensor& losses, const Tensor& scores, const Tensor& labels, int64_t valid) {
  const float* loss = losses.data_as<float>();
  for (int64_t n = 0; n < valid; ++n) loss_ += static_cast<double>(loss[n]);
  samples_ += valid;
  if (!labels.defined() || labels.dtype() != DType::kI64 || scores.shape().rank() != 2) return;
  const int64_t classes = scores.shape()[1];
  const int64_t* label = labels.data_as<int64_t>();
  for (int64_t n = 0; n < valid; ++n) {
    const float* row = scores.data_as<float>() + n * classes;
    if (label[n] < 0 || label[n] >= classes || std::isnan(row[label[n]])) continue;
    int64_t rank = 0;
    for (int64_t c = 0; c < classes; ++c) rank += row[c] > row[label[n]] || (row[c] == row[label[n]] && c < label[n]);
    top1_ += rank < 1;
    top5_ += rank < 5;
  }
}

MetricValues Metrics::values() const {
  if (samples_ == 0) fail(ErrorCode::kNumeric, "no sample was evaluated");
  const double count = static_cast<double>(samples_);
  MetricValues values;
  for (const std::string& name : names_) {
    values.emplace_back(name, name == "loss" ? loss_ / count : 100.0 * static_cast<double>(name == "top1" ? top1_ : top5_) / count);
  }
  return values;
}

double find_metric(const MetricValues& values, const std::string& name) {
  for (const auto& [metric, value] : values) {
    if (metric == name) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace galley
