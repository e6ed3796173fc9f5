// Multi-label classification: decides for each class whether the sample has it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/units.h"
#include "libcore/tasks/elementwise.h"

namespace galley {
namespace {

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
  std::unique_ptr<Presenter> presenter(const PresentContext& context) const override {
    return output().shape.rank() == 2 ? std::make_unique<Labels>(context) : nullptr;
  }
};

}  // namespace

std::unique_ptr<Task> MultiLabelTask::make(const TaskModel& model) const { return std::make_unique<MultiLabel>(model); }
std::span<const MetricInfo> MultiLabelTask::metrics() const { return kElementwiseMetrics; }

}  // namespace galley
