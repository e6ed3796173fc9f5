#include "libcore/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>

namespace galley {

const std::vector<std::string>& known_metrics() {
  static const std::vector<std::string> names{"loss", "top1", "top5", "perplexity", "bits_per_char"};
  return names;
}

bool larger_is_better(const std::string& metric) { return metric != "loss" && metric != "perplexity" && metric != "bits_per_char"; }

std::string metric_text(const std::string& metric, double value) {
  const bool percent = metric.ends_with("top1") || metric.ends_with("top5");
  char text[32];
  std::snprintf(text, sizeof text, percent ? "%.2f %%" : "%.4f", value);
  return text;
}

Metrics::Metrics(std::vector<std::string> names, int64_t classes, bool tokens) : names_(std::move(names)), by_tokens_(tokens) {
  if (names_.empty() && tokens) {
    names_ = {"loss", "perplexity", "bits_per_char"};
  } else if (names_.empty()) {
    names_ = {"loss", "top1"};
    if (classes > 5) names_.push_back("top5");
  }
  for (const std::string& name : names_) {
    if (std::find(known_metrics().begin(), known_metrics().end(), name) != known_metrics().end()) {
      GALLEY_CHECK(tokens || (name != "perplexity" && name != "bits_per_char"), "metric '", name, "' is of language models: the loss of this one is not of tokens");
      continue;
    }
    const std::string near = nearest(name, known_metrics());
    fail(ErrorCode::kRecipe, "unknown metric '", name, "' (known: loss, top1, top5, perplexity, bits_per_char)", near.empty() ? "" : "; did you mean " + near + "?");
  }
  if (std::find(names_.begin(), names_.end(), "loss") == names_.end()) names_.insert(names_.begin(), "loss");
}

void Metrics::add(const Tensor& losses, const Tensor& scores, const Tensor& labels, int64_t valid) {
  const float* loss = losses.data_as<float>();
  samples_ += valid;
  // Each row of scores has a label: a sample, or a token.
  const int64_t rows = by_tokens_ ? valid * losses.shape()[1] : valid;
  const int64_t* label = labels.defined() && labels.dtype() == DType::kI64 ? labels.data_as<int64_t>() : nullptr;
  for (int64_t n = 0; n < rows; ++n) {
    if (by_tokens_ && label != nullptr && label[n] < 0) continue;
    loss_ += static_cast<double>(loss[n]);
    ++tokens_;
  }
  if (label == nullptr || scores.shape().rank() != (by_tokens_ ? 3 : 2)) return;
  const int64_t classes = scores.shape()[-1];
  for (int64_t n = 0; n < rows; ++n) {
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
  if (tokens_ == 0) fail(ErrorCode::kNumeric, "no token was evaluated");
  const double count = static_cast<double>(tokens_), loss = loss_ / count;
  MetricValues values;
  for (const std::string& name : names_) {
    if (name == "loss") {
      values.emplace_back(name, loss);
    } else if (name == "perplexity") {
      values.emplace_back(name, std::exp(loss));
    } else if (name == "bits_per_char") {
      values.emplace_back(name, loss / std::numbers::ln2);
    } else {
      values.emplace_back(name, 100.0 * static_cast<double>(name == "top1" ? top1_ : top5_) / count);
    }
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
