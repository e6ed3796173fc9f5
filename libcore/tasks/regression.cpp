// Regression: numbers of the output's shape.
#include "libcore/tasks/elementwise.h"

namespace galley {

std::unique_ptr<Task> RegressionTask::make(const TaskModel& model) const {
  return std::make_unique<Elementwise>("regression", model, "mse");
}
std::span<const MetricInfo> RegressionTask::metrics() const { return kElementwiseMetrics; }

}  // namespace galley
