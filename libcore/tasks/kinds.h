#pragma once
// The options of the tasks, for the table, and what their files share.

#include "libcore/nn/loss.h"
#include "libcore/tasks/capture.h"
#include "libcore/tasks/task.h"

namespace galley {

struct ClassificationTask : TaskOptions {
  void options(OptionVisitor&) override {}
  std::unique_ptr<Options> clone() const override { return std::make_unique<ClassificationTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
struct RegressionTask : TaskOptions {
  void options(OptionVisitor&) override {}
  std::unique_ptr<Options> clone() const override { return std::make_unique<RegressionTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
struct MultiLabelTask : TaskOptions {
  void options(OptionVisitor&) override {}
  std::unique_ptr<Options> clone() const override { return std::make_unique<MultiLabelTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
struct LanguageModelingTask : TaskOptions {
  void options(OptionVisitor&) override {}
  std::unique_ptr<Options> clone() const override { return std::make_unique<LanguageModelingTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
struct SegmentationTask : TaskOptions {
  void options(OptionVisitor&) override {}
  std::unique_ptr<Options> clone() const override { return std::make_unique<SegmentationTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};

/// The recipe's loss, or `usual` where it has none. Throws (exit 3) where the recipe's is of another type.
Component task_loss(std::string_view task, const TaskModel& model, std::string_view usual);
/// Throws Error (kNumeric), naming the sample and the element, where an output is not finite.
void check_finite_output(const Tensor& output, const std::string& sample);
/// The objective of all results: the main one's loss, and those of auxiliary heads by their weights.
void capture_losses(TaskCapture& capture, const Component& loss, const std::string& target);

}  // namespace galley
