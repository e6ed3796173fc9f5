// Language modeling: predicts a token at every position, the next one or a masked one.
#include "libcore/tasks/token_task.h"

namespace galley {
namespace {

constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "perplexity", .ranks = true},
    {.name = "bits_per_char"},
    {.name = "bits_per_byte", .by_default = false},
    {.name = "top1", .unit = "%", .larger_is_better = true, .by_default = false},
    {.name = "top5", .unit = "%", .larger_is_better = true, .by_default = false},
};

}  // namespace

std::unique_ptr<Task> LanguageModelingTask::make(const TaskModel& model) const {
  return make_token_task("language_modeling", kMetrics, model);
}
std::span<const MetricInfo> LanguageModelingTask::metrics() const { return kMetrics; }

}  // namespace galley
