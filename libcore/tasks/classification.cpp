// Classification: one class per sample.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/units.h"
#include "libcore/tasks/confusion.h"
#include "libcore/tasks/count_collector.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/ranks.h"
#include "libcore/tasks/top_classes.h"

namespace galley {
namespace {

constexpr std::string_view kLabel = "label";
constexpr int64_t kManyClasses = 5;  // top5 of at most five classes is always 100 %
constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "top1", .unit = "%", .larger_is_better = true, .ranks = true},
    {.name = "top5", .unit = "%", .larger_is_better = true},
    {.name = "f1", .unit = "%", .larger_is_better = true, .by_default = false},
    {.name = "mcc", .larger_is_better = true, .by_default = false},
};

class Accuracy : public CountCollector {
 public:
  explicit Accuracy(std::vector<std::string> names) : names_(std::move(names)) {
    for (const std::string& name : names_) confuses_ |= name == "f1" || name == "mcc";
  }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    samples_ += batch.valid;
    const Tensor& labels = batch.at(std::string(kLabel));
    if (labels.dtype() != DType::kI64) return;  // mixed labels have no single true class
    const Tensor& scores = results.at("scores");
    const int64_t classes = scores.shape()[1];
    if (confuses_) confusion_.resize(classes);
    for (int64_t n = 0; n < batch.valid; ++n) {
      const float* row = scores.data_as<float>() + n * classes;
      const int64_t label = labels.data_as<int64_t>()[n];
      counts_.add(row, classes, label);
      if (confuses_ && label >= 0 && label < classes) confusion_.add(label, std::max_element(row, row + classes) - row);
    }
  }
  bool only_counts() const override { return !confuses_; }
  std::vector<double> counts() const override {
    return {static_cast<double>(samples_), static_cast<double>(counts_.top1), static_cast<double>(counts_.top5)};
  }
  void set_counts(std::span<const double> counts) override {
    samples_ = std::llround(counts[0]);
    counts_.top1 = std::llround(counts[1]);
    counts_.top5 = std::llround(counts[2]);
  }
  void finish(MetricValues& values) const override {
    for (const std::string& name : names_) {
      if (name == "top1" || name == "top5")
        values.emplace_back(name,
                            100.0 * static_cast<double>(name == "top1" ? counts_.top1 : counts_.top5) / static_cast<double>(samples_));
      if (name == "f1") values.emplace_back(name, 100.0 * confusion_.f1());
      if (name == "mcc") values.emplace_back(name, confusion_.mcc());
    }
  }

 private:
  std::vector<std::string> names_;
  RankCounts counts_;
  bool confuses_ = false;
  Confusion confusion_;
  int64_t samples_ = 0;
};

/// Shows the classes with the highest softmax scores.
class TopClasses : public Presenter {
 public:
  explicit TopClasses(PresentContext context) : context_(std::move(context)) {}

  std::vector<std::string> columns() const override { return {"rank", "index", "label", "score"}; }

  Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas*) const override {
    const Tensor& logits = results.at("output");
    check_finite_output(logits, sample);
    Presentation shown;
    nlohmann::ordered_json json{{"top", nlohmann::ordered_json::array()}};
    std::vector<ScoredClass> top = top_classes(logits.data_as<float>(), logits.elements(), context_.top);
    std::erase_if(top, [&](const ScoredClass& item) { return item.score < context_.min_score; });
    for (size_t i = 0; i < top.size(); ++i) {
      const std::string label = context_.label(top[i].index);
      json["top"].push_back({{"index", top[i].index}, {"label", label}, {"score", top[i].score}});
      shown.rows.push_back({cat(i + 1), cat(top[i].index), label, fixed(top[i].score, 4)});
      shown.lines.push_back(fixed(top[i].score, 4) + " " + label);
    }
    shown.json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return shown;
  }

 private:
  PresentContext context_;
};

class Classification : public Task {
 public:
  explicit Classification(const TaskModel& model) : loss_(task_loss("classification", model, "cross_entropy")) {
    loss_target(loss_, model.output);  // throws if the output has no classes
    GALLEY_CHECK(model.output.shape.rank() == 2, "the task classification needs outputs [N,classes], not ", model.output,
                 "; for one class per position write task: segmentation or language_modeling");
    classes_ = model.output.shape[1];
    metrics_.assign(std::begin(kMetrics), std::end(kMetrics));
    for (MetricInfo& metric : metrics_)
      if (metric.name == "top5") metric.by_default = classes_ > kManyClasses;
  }
  std::string_view name() const override { return "classification"; }
  std::vector<FieldType> targets() const override {
    return {{.name = std::string(kLabel), .kind = FieldKind::kClass, .dtype = DType::kI64, .classes = classes_}};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    if (mode == TaskMode::kTrain) return capture_losses(capture, loss_, std::string(kLabel));
    const Value logits = capture.model().front().second;
    capture.sum("loss", build_sample_losses(capture.builder(), loss_, logits, capture.field(std::string(kLabel))));
    capture.result("scores", logits);
  }
  std::span<const MetricInfo> metrics() const override { return metrics_; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<Accuracy>(metrics);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext& context) const override { return std::make_unique<TopClasses>(context); }
  std::vector<int64_t> decisions(const Tensor& scores) const override {
    std::vector<int64_t> decided;
    for (int64_t n = 0; n < scores.shape()[0]; ++n) {
      const float* row = scores.data_as<float>() + n * classes_;
      decided.push_back(std::max_element(row, row + classes_) - row);
    }
    return decided;
  }

 private:
  Component loss_;
  int64_t classes_ = 0;
  std::vector<MetricInfo> metrics_;
};

}  // namespace

std::vector<ScoredClass> top_classes(const float* logits, int64_t classes, int64_t count) {
  double total = 0;
  const double highest = *std::max_element(logits, logits + classes);
  std::vector<ScoredClass> ranked;
  for (int64_t i = 0; i < classes; ++i) {
    ranked.push_back({i, std::exp(logits[i] - highest)});
    total += ranked.back().score;
  }
  for (ScoredClass& item : ranked) item.score /= total;
  const auto shown = std::min<size_t>(static_cast<size_t>(count), ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<int64_t>(shown), ranked.end(),
                    [](const ScoredClass& a, const ScoredClass& b) { return a.score != b.score ? a.score > b.score : a.index < b.index; });
  ranked.resize(shown);
  return ranked;
}

std::unique_ptr<Task> ClassificationTask::make(const TaskModel& model) const { return std::make_unique<Classification>(model); }
std::span<const MetricInfo> ClassificationTask::metrics() const { return kMetrics; }

}  // namespace galley
