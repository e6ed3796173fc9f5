#pragma once
// The options of the tasks, for the table of tasks, and functions that several tasks use.

#include "libcore/nn/loss.h"
#include "libcore/tasks/capture.h"
#include "libcore/tasks/task.h"

namespace galley {

/// Base of the options of a task that has no keys of its own: struct ClassificationTask : PlainTask<ClassificationTask> { ... };
template <class Self>
struct PlainTask : TaskOptions {
  void options(OptionVisitor&) override {}
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// One class per sample.
struct ClassificationTask : PlainTask<ClassificationTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// Numbers of the shape of the output.
struct RegressionTask : PlainTask<RegressionTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// Classification with any number of classes per sample.
struct MultiLabelTask : PlainTask<MultiLabelTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// The next token at each position.
struct LanguageModelingTask : PlainTask<LanguageModelingTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// One class per token.
struct TokenClassificationTask : PlainTask<TokenClassificationTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// The first and the last token of an answer.
struct QuestionAnsweringTask : TaskOptions {
  int64_t max_answer_length = 30;  ///< Tokens.
  bool no_answer = false;          ///< That a context has no answer is a possible result.
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<QuestionAnsweringTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// Masked tokens, and whether the second text of a pair follows the first.
struct PreTrainingTask : PlainTask<PreTrainingTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};
/// One class per pixel.
struct SegmentationTask : PlainTask<SegmentationTask> {
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};

/// Boxes around objects, with their classes.
struct DetectionTask : TaskOptions {
  std::vector<double> keypoint_sigmas;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<DetectionTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};

/// How far each pixel of the first of two images moves.
struct OpticalFlowTask : TaskOptions {
  double gamma = 0.8;
  double max_flow = 400;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<OpticalFlowTask>(*this); }
  std::unique_ptr<Task> make(const TaskModel& model) const override;
  std::span<const MetricInfo> metrics() const override;
};

/// The recipe's loss, or one of type `usual` if the recipe has none. Throws (exit 3) if the recipe's loss has another type.
Component task_loss(std::string_view task, const TaskModel& model, std::string_view usual);
/// Throws Error (kNumeric) with the sample and the element if a value of the output is not finite.
void check_finite_output(const Tensor& output, const std::string& sample);
/// Captures the objective: the loss of the main result plus the weighted losses of auxiliary heads.
void capture_losses(TaskCapture& capture, const Component& loss, const std::string& target);

}  // namespace galley
