#pragma once
// Base of the tasks whose field `target` has the shape of the model's output.

#include "libcore/tasks/kinds.h"

namespace galley {

inline constexpr std::string_view kTarget = "target";

/// Compares the output with a target element by element. The loss needs no collector.
class Elementwise : public Task {
 public:
  Elementwise(std::string_view name, const TaskModel& model, std::string_view usual_loss)
      : name_(name), loss_(task_loss(name, model, usual_loss)), output_(model.output) {}
  std::string_view name() const override { return name_; }
  std::vector<FieldType> targets() const override {
    FieldType target{.name = std::string(kTarget), .dtype = output_.dtype};
    for (int axis = 1; axis < output_.shape.rank(); ++axis) target.sample.push_back(output_.shape[axis]);
    return {target};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    if (mode == TaskMode::kTrain) return capture_losses(capture, loss_, std::string(kTarget));
    const Value output = capture.model().front().second;
    capture.sum("loss", build_sample_losses(capture.builder(), loss_, output, capture.field(std::string(kTarget))));
    capture.result("scores", output);
  }

 protected:
  const TensorType& output() const { return output_; }

 private:
  std::string_view name_;
  Component loss_;
  TensorType output_;
};

}  // namespace galley
