// Multi-label classification: for each class, whether the sample has it.
#include "libcore/tasks/elementwise.h"

namespace galley {

std::unique_ptr<Task> MultiLabelTask::make(const TaskModel& model) const {
  return std::make_unique<Elementwise>("multi_label", model, "bce_with_logits");
}
std::span<const MetricInfo> MultiLabelTask::metrics() const { return kElementwiseMetrics; }

}  // namespace galley
