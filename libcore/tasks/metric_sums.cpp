#include "libcore/tasks/metric_sums.h"

#include <algorithm>
#include <cmath>

#include "libcore/data/loader.h"
#include "libcore/tasks/count_collector.h"
#include "libcore/tasks/source_collector.h"

namespace galley {

MetricSums::MetricSums(const Task& task, std::vector<std::string> names, const CapturedResults& results)
    : names_(std::move(names)), collector_(task.collector(names_)) {
  for (const std::string& name : results.results) {
    if (collector_ != nullptr && collector_->reads(name)) results_.push_back(name);
  }
  for (const auto& [metric, output] : results.sums) {
    if (std::find(names_.begin(), names_.end(), metric) != names_.end()) sums_.push_back({.metric = metric, .output = output});
  }
}

void MetricSums::begin(const Source& source) {
  if (auto* collector = dynamic_cast<SourceCollector*>(collector_.get())) collector->begin(source);
}

void MetricSums::begin(const DataLoader& loader) {
  begin(loader.source());
  if (auto* collector = dynamic_cast<SourceCollector*>(collector_.get()))
    collector->locate([&loader](int64_t height, int64_t width, int64_t index) { return loader.grid(height, width, index); });
}

std::vector<ClassMetrics> MetricSums::classes() const {
  return collector_ == nullptr ? std::vector<ClassMetrics>() : collector_->classes();
}

void MetricSums::add(const std::function<Tensor(const std::string&)>& output, const Batch& batch) {
  samples_ += batch.valid;
  for (Sum& sum : sums_) {
    const Tensor values = output(sum.output);
    const int64_t count = values.elements() / values.shape()[0] * batch.valid;
    for (int64_t i = 0; i < count; ++i) sum.total += static_cast<double>(values.data_as<float>()[i]);
    sum.count += count;
  }
  if (collector_ == nullptr) return;
  std::map<std::string, Tensor> results;
  for (const std::string& name : results_) results.emplace(name, output(name));
  collector_->add(results, batch);
}

bool MetricSums::only_sums() const {
  const auto* counts = dynamic_cast<const CountCollector*>(collector_.get());
  return collector_ == nullptr || (counts != nullptr && counts->only_counts());
}

void MetricSums::add_others(const std::function<void(std::span<double>)>& sum) {
  GALLEY_ASSERT(only_sums());
  std::vector<double> numbers{static_cast<double>(samples_)};
  for (const Sum& own : sums_) numbers.insert(numbers.end(), {own.total, static_cast<double>(own.count)});
  const size_t own = numbers.size();
  auto* counts = dynamic_cast<CountCollector*>(collector_.get());
  if (counts != nullptr) {
    const std::vector<double> more = counts->counts();
    numbers.insert(numbers.end(), more.begin(), more.end());
  }
  sum(numbers);
  if (counts != nullptr) counts->set_counts(std::span(numbers).subspan(own));
  samples_ = std::llround(numbers[0]);
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].total = numbers[1 + 2 * i];
    sums_[i].count = std::llround(numbers[2 + 2 * i]);
  }
}

MetricValues MetricSums::values() const {
  if (samples_ == 0) fail(ErrorCode::kNumeric, "no sample was evaluated");
  MetricValues known;
  for (const Sum& sum : sums_) known.emplace_back(sum.metric, sum.total / static_cast<double>(sum.count));
  if (collector_ != nullptr) collector_->finish(known);
  MetricValues values;
  for (const std::string& name : names_) values.emplace_back(name, find_metric(known, name));
  return values;
}

}  // namespace galley
