// Regression: predicts numbers of the shape of the output.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "libcore/tasks/elementwise.h"

namespace galley {
namespace {

constexpr MetricInfo kMetrics[] = {
    {.name = "loss", .ranks = true},
    {.name = "mae", .by_default = false},
    {.name = "pearson", .larger_is_better = true, .by_default = false},
    {.name = "spearman", .larger_is_better = true, .by_default = false},
};

/// Pearson's correlation coefficient; 0 where one of both is constant.
double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto count = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / count, mean_b = std::accumulate(b.begin(), b.end(), 0.0) / count;
  double both = 0, of_a = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    both += (a[i] - mean_a) * (b[i] - mean_b);
    of_a += (a[i] - mean_a) * (a[i] - mean_a);
    of_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  const double spread = std::sqrt(of_a) * std::sqrt(of_b);
  return spread > 0 ? both / spread : 0;
}

/// The places of values in ascending order; equal values have the mean of theirs.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = (static_cast<double>(begin) + static_cast<double>(end) - 1) / 2;
    begin = end;
  }
  return ranks;
}

/// Errors and correlations of all numbers of the samples. Correlations are those of each element of the output, and their mean.
class NumberMetrics : public Collector {
 public:
  explicit NumberMetrics(std::vector<std::string> names) : names_(std::move(names)) {
    for (const std::string& name : names_) correlates_ |= name == "pearson" || name == "spearman";
  }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const Tensor &scores = results.at("scores"), &target = batch.at(std::string(kTarget));
    const int64_t width = scores.elements() / scores.shape()[0];
    if (correlates_) columns_.resize(static_cast<size_t>(width));
    for (int64_t i = 0; i < batch.valid * width; ++i) {
      const auto got = static_cast<double>(scores.data_as<float>()[i]), wanted = static_cast<double>(target.data_as<float>()[i]);
      error_ += std::abs(got - wanted);
      ++count_;
      if (!std::isfinite(got)) fail(ErrorCode::kNumeric, "sample ", batch.indices[static_cast<size_t>(i / width)], ": the output is ", got);
      if (!correlates_) continue;
      Column& column = columns_[static_cast<size_t>(i % width)];
      column.got.push_back(got);
      column.wanted.push_back(wanted);
    }
  }
  void finish(MetricValues& values) const override {
    if (count_ == 0) fail(ErrorCode::kNumeric, "no sample was evaluated");
    for (const std::string& name : names_) {
      if (name == "mae") values.emplace_back(name, error_ / static_cast<double>(count_));
      if (name != "pearson" && name != "spearman") continue;
      double sum = 0;
      for (const Column& column : columns_)
        sum += name == "pearson" ? correlation(column.got, column.wanted) : correlation(ranks_of(column.got), ranks_of(column.wanted));
      values.emplace_back(name, sum / static_cast<double>(columns_.size()));
    }
  }

 private:
  struct Column {
    std::vector<double> got, wanted;
  };
  std::vector<std::string> names_;
  bool correlates_ = false;
  std::vector<Column> columns_;  // of each element of the output
  double error_ = 0;
  int64_t count_ = 0;
};

/// Shows the numbers of a sample.
class Numbers : public Presenter {
 public:
  std::vector<std::string> columns() const override { return {"index", "value"}; }

  Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas*) const override {
    const Tensor& output = results.at("output");
    check_finite_output(output, sample);
    Presentation shown;
    nlohmann::ordered_json json{{"values", nlohmann::ordered_json::array()}};
    for (int64_t i = 0; i < output.elements(); ++i) {
      const float value = output.data_as<float>()[i];
      json["values"].push_back(value);
      shown.rows.push_back({cat(i), cat(value)});
      shown.lines.push_back(cat(value));
    }
    shown.json = json.dump();
    return shown;
  }
};

class Regression : public Elementwise {
 public:
  explicit Regression(const TaskModel& model) : Elementwise("regression", model, "mse") {}
  std::span<const MetricInfo> metrics() const override { return kMetrics; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    const bool only_loss = std::all_of(metrics.begin(), metrics.end(), [](const std::string& name) { return name == "loss"; });
    return only_loss ? nullptr : std::make_unique<NumberMetrics>(metrics);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext&) const override {
    return output().shape.rank() == 2 ? std::make_unique<Numbers>() : nullptr;
  }
};

}  // namespace

std::unique_ptr<Task> RegressionTask::make(const TaskModel& model) const { return std::make_unique<Regression>(model); }
std::span<const MetricInfo> RegressionTask::metrics() const { return kMetrics; }

}  // namespace galley
