// Multi-label classification: decides for each class whether the sample has it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/units.h"
#include "libcore/tasks/count_collector.h"
#include "libcore/tasks/elementwise.h"

namespace galley {
namespace {

constexpr MetricInfo kMetrics[] = {
    {.name = "loss", .ranks = true},
    {.name = "f1_micro", .unit = "%", .larger_is_better = true},
    {.name = "f1_macro", .unit = "%", .larger_is_better = true},
    {.name = "map", .unit = "%", .larger_is_better = true, .by_default = false},
    {.name = "exact_match", .unit = "%", .larger_is_better = true, .by_default = false},
};

/// The F1 score of counts; 0 where nothing was true or predicted.
double f1_of(double both, double truths, double predictions) { return truths + predictions > 0 ? 2 * both / (truths + predictions) : 0; }

/// A class of a sample: its score, and whether the sample has it.
struct Scored {
  float score;
  bool truth;
};
/// The mean of the precision at each true class, by descending scores; equal scores count together (scikit-learn's
/// average_precision_score).
double average_precision(std::vector<Scored> list) {
  std::sort(list.begin(), list.end(), [](const Scored& a, const Scored& b) { return a.score > b.score; });
  double sum = 0, found = 0, seen = 0;
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    double here = 0;
    for (; end < list.size() && list[end].score == list[begin].score; ++end) here += list[end].truth ? 1 : 0;
    seen += static_cast<double>(end - begin);
    found += here;
    sum += here * found / seen;
    begin = end;
  }
  return sum / found;
}

/// A class is predicted where its probability is above one half.
class LabelMetrics : public CountCollector {
 public:
  LabelMetrics(std::vector<std::string> names, int64_t classes) : names_(std::move(names)), counts_(static_cast<size_t>(classes)) {
    ranks_ = std::find(names_.begin(), names_.end(), "map") != names_.end();
    if (ranks_) lists_.resize(counts_.size());
  }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const float* scores = results.at("scores").data_as<float>();
    const float* target = batch.at(std::string(kTarget)).data_as<float>();
    for (int64_t n = 0; n < batch.valid; ++n) {
      bool same = true;
      for (size_t k = 0; k < counts_.size(); ++k, ++scores, ++target) {
        if (!std::isfinite(*scores))
          fail(ErrorCode::kNumeric, "sample ", batch.indices[static_cast<size_t>(n)], ": the output ", k, " is ", *scores);
        const bool truth = *target > 0.5f, predicted = *scores > 0;
        counts_[k].truths += truth ? 1 : 0;
        counts_[k].predictions += predicted ? 1 : 0;
        counts_[k].both += truth && predicted ? 1 : 0;
        same = same && truth == predicted;
        if (ranks_) lists_[k].push_back({*scores, truth});
      }
      exact_ += same ? 1 : 0;
      ++samples_;
    }
  }
  bool only_counts() const override { return !ranks_; }
  std::vector<double> counts() const override {
    std::vector<double> all{samples_, exact_};
    for (const Counts& count : counts_) all.insert(all.end(), {count.both, count.truths, count.predictions});
    return all;
  }
  void set_counts(std::span<const double> counts) override {
    samples_ = counts[0];
    exact_ = counts[1];
    for (size_t k = 0; k < counts_.size(); ++k) counts_[k] = {counts[3 * k + 2], counts[3 * k + 3], counts[3 * k + 4]};
  }
  void finish(MetricValues& values) const override {
    if (samples_ == 0) fail(ErrorCode::kNumeric, "no sample was evaluated");
    Counts all;
    double f1 = 0, precision = 0, occurring = 0;
    for (size_t k = 0; k < counts_.size(); ++k) {
      const Counts& count = counts_[k];
      all.both += count.both;
      all.truths += count.truths;
      all.predictions += count.predictions;
      f1 += f1_of(count.both, count.truths, count.predictions);
      if (!ranks_ || count.truths == 0) continue;
      precision += average_precision(lists_[k]);
      ++occurring;
    }
    for (const std::string& name : names_) {
      if (name == "f1_micro") values.emplace_back(name, 100 * f1_of(all.both, all.truths, all.predictions));
      if (name == "f1_macro") values.emplace_back(name, 100 * f1 / static_cast<double>(counts_.size()));
      if (name == "map") values.emplace_back(name, occurring > 0 ? 100 * precision / occurring : 0);
      if (name == "exact_match") values.emplace_back(name, 100 * exact_ / samples_);
    }
  }

 private:
  struct Counts {
    double both = 0, truths = 0, predictions = 0;
  };
  std::vector<std::string> names_;
  bool ranks_ = false;
  std::vector<Counts> counts_;              // of each class
  std::vector<std::vector<Scored>> lists_;  // of each class, for map
  double samples_ = 0, exact_ = 0;
};

/// Shows the labels of a sample, most probable first.
class Labels : public Presenter {
 public:
  explicit Labels(PresentContext context) : context_(std::move(context)) {}

  std::vector<std::string> columns() const override { return {"rank", "index", "label", "score"}; }

  Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas*) const override {
    const Tensor& logits = results.at("output");
    check_finite_output(logits, sample);
    std::vector<std::pair<double, int64_t>> labels;  // probability and class
    for (int64_t i = 0; i < logits.elements(); ++i) {
      const double score = 1 / (1 + std::exp(-static_cast<double>(logits.data_as<float>()[i])));
      if (score >= context_.threshold && score >= context_.min_score) labels.emplace_back(score, i);
    }
    std::stable_sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    Presentation shown;
    nlohmann::ordered_json json{{"labels", nlohmann::ordered_json::array()}};
    for (const auto& [score, index] : labels) {
      const std::string label = context_.label(index);
      json["labels"].push_back({{"index", index}, {"label", label}, {"score", score}});
      shown.rows.push_back({cat(shown.rows.size() + 1), cat(index), label, fixed(score, 4)});
      shown.lines.push_back(fixed(score, 4) + " " + label);
    }
    shown.json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return shown;
  }

 private:
  PresentContext context_;
};

class MultiLabel : public Elementwise {
 public:
  explicit MultiLabel(const TaskModel& model) : Elementwise("multi_label", model, "bce_with_logits") {}
  /// Classes at positions have a loss alone.
  std::span<const MetricInfo> metrics() const override {
    return std::span(kMetrics).first(output().shape.rank() == 2 ? std::size(kMetrics) : 1);
  }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    const bool only_loss = std::all_of(metrics.begin(), metrics.end(), [](const std::string& name) { return name == "loss"; });
    return only_loss ? nullptr : std::make_unique<LabelMetrics>(metrics, output().shape[1]);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext& context) const override {
    return output().shape.rank() == 2 ? std::make_unique<Labels>(context) : nullptr;
  }
};

}  // namespace

std::unique_ptr<Task> MultiLabelTask::make(const TaskModel& model) const { return std::make_unique<MultiLabel>(model); }
std::span<const MetricInfo> MultiLabelTask::metrics() const { return kMetrics; }

}  // namespace galley
