#pragma once
// The tasks that predict one of several classes at every position of a sequence, where the label is not negative.

#include <memory>
#include <span>
#include <string_view>

#include "libcore/tasks/kinds.h"

namespace galley {

/// A task with outputs [N,T,classes] and the field `label` [N,T]. `name`: the task's; `metrics`: those that it has, of loss, perplexity,
/// bits_per_char, bits_per_byte, top1, top5, f1 and mcc. Both must outlive the task. Throws Error if the output has another rank.
std::unique_ptr<Task> make_token_task(std::string_view name, std::span<const MetricInfo> metrics, const TaskModel& model);

}  // namespace galley
