// Token classification: a class at every position, such as the kind of a name.
#include "libcore/tasks/token_task.h"

namespace galley {
namespace {

constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "top1", .unit = "%", .larger_is_better = true, .ranks = true},
    {.name = "f1", .unit = "%", .larger_is_better = true},
    {.name = "mcc", .larger_is_better = true, .by_default = false},
};

}  // namespace

std::unique_ptr<Task> TokenClassificationTask::make(const TaskModel& model) const {
  return make_token_task("token_classification", kMetrics, model);
}
std::span<const MetricInfo> TokenClassificationTask::metrics() const { return kMetrics; }

}  // namespace galley
