// Regression: predicts numbers of the shape of the output.
#include <nlohmann/json.hpp>

#include "libcore/tasks/elementwise.h"

namespace galley {
namespace {

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
  std::unique_ptr<Presenter> presenter(const PresentContext&) const override {
    return output().shape.rank() == 2 ? std::make_unique<Numbers>() : nullptr;
  }
};

}  // namespace

std::unique_ptr<Task> RegressionTask::make(const TaskModel& model) const { return std::make_unique<Regression>(model); }
std::span<const MetricInfo> RegressionTask::metrics() const { return kElementwiseMetrics; }

}  // namespace galley
