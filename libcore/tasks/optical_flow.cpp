// Optical flow: how far each pixel of the first of two images moves.
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/units.h"
#include "libcore/data/flow.h"
#include "libcore/nn/detection.h"
#include "libcore/nn/flow.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/tasks/kinds.h"

namespace galley {
namespace {

constexpr std::string_view kTarget = "flow", kLosses = "losses", kErrors = "errors", kPredicted = "predicted";
constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "epe", .ranks = true},
    {.name = "1px", .unit = "%", .larger_is_better = true},
    {.name = "3px", .unit = "%", .larger_is_better = true},
    {.name = "5px", .unit = "%", .larger_is_better = true},
};

/// Lengths of the differences between flows, of all pixels whose flow is known.
class FlowErrors : public Collector {
 public:
  explicit FlowErrors(std::vector<std::string> names) : names_(std::move(names)) {}

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const float *losses = results.at(std::string(kLosses)).data_as<float>(), *errors = results.at(std::string(kErrors)).data_as<float>();
    const Tensor& target = batch.at(std::string(kTarget));
    const int64_t pixels = target.elements() / (3 * target.shape()[0]);
    for (int64_t n = 0; n < batch.valid; ++n) {
      loss_ += static_cast<double>(losses[n]);
      ++samples_;
      const float* known = target.data_as<float>() + (3 * n + 2) * pixels;
      for (int64_t p = 0; p < pixels; ++p) {
        if (!(known[p] > 0)) continue;
        const auto error = static_cast<double>(errors[n * pixels + p]);
        sum_ += error;
        ++known_;
        for (size_t i = 0; i < std::size(kLimits); ++i) below_[i] += error < kLimits[i];
      }
    }
  }
  void finish(MetricValues& values) const override {
    if (known_ == 0) fail(ErrorCode::kNumeric, "no pixel with a known flow was evaluated");
    const auto pixels = static_cast<double>(known_);
    for (const std::string& name : names_) {
      if (name == "loss") values.emplace_back(name, loss_ / static_cast<double>(samples_));
      if (name == "epe") values.emplace_back(name, sum_ / pixels);
      for (size_t i = 0; i < std::size(kLimits); ++i)
        if (name == cat(kLimits[i], "px")) values.emplace_back(name, 100 * static_cast<double>(below_[i]) / pixels);
    }
  }

 private:
  static constexpr int kLimits[] = {1, 3, 5};
  std::vector<std::string> names_;
  double loss_ = 0, sum_ = 0;
  int64_t samples_ = 0, known_ = 0;
  std::array<int64_t, std::size(kLimits)> below_{};
};

/// A model's flow [1,2,h,w] as an image.
Image image_of(const Tensor& flow) {
  const int64_t pixels = flow.shape()[2] * flow.shape()[3];
  Image image(DType::kF32, flow.shape()[2], flow.shape()[3], 3);
  const float* from = flow.data_as<float>();
  for (int64_t p = 0; p < pixels; ++p) {
    float* to = image.as<float>() + 3 * p;
    to[0] = from[p];
    to[1] = from[pixels + p];
    to[2] = 1;
  }
  return image;
}

/// The flow on the pixels of the original image. The model's flow covers `seen`; other pixels are unknown.
Image place(const Image& flow, const Canvas& canvas) {
  if (!canvas.seen) {
    throw Error(ErrorCode::kRecipe,
                "an item of the pipeline (auto_augment) moves pixels, so the position of the flow in the image is unknown")
        .key("data.val.pipeline")
        .suggest("remove the item, or predict without --draw");
  }
  const PixelGrid& seen = *canvas.seen;
  // The original image in pixels of the model's.
  PixelGrid original(flow.height(), flow.width());
  original.height = canvas.image.height();
  original.width = canvas.image.width();
  original.step_y = 1 / seen.step_y;
  original.step_x = 1 / seen.step_x;
  original.top = -seen.top / seen.step_y;
  original.left = -seen.left / seen.step_x;
  Image placed = moved_flow(flow, original);
  for (int64_t y = 0; y < placed.height(); ++y) {
    for (int64_t x = 0; x < placed.width(); ++x) {
      if (seen.row_at(y) < 0 || seen.column_at(x) < 0) std::fill_n(placed.row<float>(y) + 3 * x, 3, 0.0f);
    }
  }
  return placed;
}

/// Shows the mean and the largest length of the flow; draws it in colors, and as a .flo file.
class FlowPresenter : public Presenter {
 public:
  std::vector<std::string> columns() const override { return {"mean", "largest"}; }

  Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas* canvas) const override {
    const Tensor& flow = results.at("output");
    check_finite_output(flow, sample);
    Image image = image_of(flow);
    if (canvas != nullptr) image = place(image, *canvas);
    double sum = 0, largest = 0;
    int64_t known = 0;
    for (int64_t i = 0; i < image.area(); ++i) {
      const float* at = image.as<float>() + 3 * i;
      if (!(at[2] > 0)) continue;
      const double length = std::hypot(static_cast<double>(at[0]), static_cast<double>(at[1]));
      sum += length;
      largest = std::max(largest, length);
      ++known;
    }
    const double mean = known == 0 ? 0 : sum / static_cast<double>(known);
    Presentation shown;
    shown.json = nlohmann::ordered_json{{"flow", nullptr}, {"mean", mean}, {"largest", largest}}.dump();
    shown.rows.push_back({fixed(mean, 2), fixed(largest, 2)});
    if (canvas == nullptr) return shown;
    shown.flow_file = encode_flo(image);
    shown.overlay = flow_colors(image);
    return shown;
  }
};

class OpticalFlow : public Task {
 public:
  OpticalFlow(const TaskModel& model, const OpticalFlowTask& options)
      : output_(model.output), gamma_(options.gamma), largest_(options.max_flow) {
    GALLEY_CHECK(model.info.output == ModelOutput::kFlow, "the task optical_flow needs a model of flows, e.g. raft_small");
    if (model.loss) {
      throw Error(ErrorCode::kRecipe, cat("the task optical_flow has its own loss, but the recipe has ", model.loss.type))
          .key("loss")
          .suggest("remove the key loss; task.gamma and task.max_flow are the options of this one");
    }
  }
  std::string_view name() const override { return "optical_flow"; }
  std::vector<FieldType> targets() const override {
    return {{.name = std::string(kTarget), .kind = FieldKind::kFlow, .sample = {3, output_.shape[2], output_.shape[3]}}};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    const NamedValues& results = capture.model();
    if (mode == TaskMode::kPredict) return capture.result(results.front().first, results.front().second);
    const Value field = capture.field(std::string(kTarget));
    const auto module = capture.builder().scope("loss");
    const Value target = slice(field, 1, 0, 2), known = slice(field, 1, 2, 3);
    const Value losses = sample_losses(results, target, known);
    if (mode == TaskMode::kTrain) return capture.loss("sequence", mean(losses, std::vector<int64_t>{}));
    capture.result(std::string(kLosses), losses);
    capture.result(std::string(kErrors), sqrt(sum(square(sub(results.front().second, target)), {1})));
    capture.result(std::string(kPredicted), results.front().second);
  }
  std::string_view compared() const override { return kPredicted; }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<FlowErrors>(metrics);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext&) const override { return std::make_unique<FlowPresenter>(); }

 private:
  /// The sum over the updates of the mean difference, where update i of n weighs gamma^(n-1-i): section 3.3 of the paper. [N]. Pixels whose
  /// flow is unknown or too large count as zeros.
  Value sample_losses(const NamedValues& results, Value target, Value known) const {
    const Value length = sum(square(target), {1}, true);
    const Value counts = where(less(length, constant_like(length, largest_ * largest_)), known, constant_like(known, 0));
    Value total;
    for (size_t i = 0; i < results.size(); ++i) {
      // The results are the last flow, then the first, the second and so on.
      const auto later = static_cast<double>(i == 0 ? 0 : results.size() - i);
      const Value part = affine(mean(mul(abs(sub(results[i].second, target)), counts), {1, 2, 3}), std::pow(gamma_, later));
      total = total ? add(total, part) : part;
    }
    return total;
  }

  TensorType output_;
  double gamma_, largest_;
};

}  // namespace

void OpticalFlowTask::options(OptionVisitor& visitor) {
  visitor.option({.name = "gamma", .doc = "Weight of an update's loss relative to the next one's", .min = 0, .max = 1}, gamma);
  visitor.option({.name = "max_flow", .doc = "Pixels that move further than this have no loss", .unit = "pixels", .min = 0}, max_flow);
}
std::unique_ptr<Task> OpticalFlowTask::make(const TaskModel& model) const { return std::make_unique<OpticalFlow>(model, *this); }
std::span<const MetricInfo> OpticalFlowTask::metrics() const { return kMetrics; }

}  // namespace galley
