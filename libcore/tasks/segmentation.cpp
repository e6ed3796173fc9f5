// Semantic segmentation: one class per pixel, or per position of any dense output.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/units.h"
#include "libcore/data/codec.h"
#include "libcore/data/draw.h"
#include "libcore/data/sample.h"
#include "libcore/tasks/kinds.h"

namespace galley {
namespace {

constexpr std::string_view kLabel = "label";
constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "miou", .unit = "%", .larger_is_better = true, .ranks = true},
    {.name = "pixel_accuracy", .unit = "%", .larger_is_better = true},
};

/// Strides of scores [N, a..., C, b...]: `outer` positions before the dimension of the classes, `inner` positions after it.
struct ClassLines {
  ClassLines(const Shape& scores, int axis) : classes(scores[axis]) {
    for (int i = 1; i < axis; ++i) outer *= scores[i];
    for (int i = axis + 1; i < scores.rank(); ++i) inner *= scores[i];
  }
  int64_t positions() const { return outer * inner; }
  /// The scores of position p of the sample at `sample`; the distance between classes is `inner`.
  const float* line(const float* sample, int64_t p) const { return sample + p / inner * classes * inner + p % inner; }
  /// The class with the highest score, the lowest index among equal ones; -1 if a score is NaN.
  int64_t best(const float* sample, int64_t p) const {
    const float* at = line(sample, p);
    int64_t winner = 0;
    for (int64_t c = 0; c < classes; ++c) {
      if (std::isnan(at[c * inner])) return -1;
      if (at[c * inner] > at[winner * inner]) winner = c;
    }
    return winner;
  }

  int64_t classes = 0, outer = 1, inner = 1;
};

/// The confusion matrix: counts of (true class, predicted class) over all pixels that have a class.
class Confusion : public Collector {
 public:
  Confusion(std::vector<std::string> names, int64_t classes, int axis, int64_t ignored)
      : names_(std::move(names)), classes_(classes), axis_(axis), ignored_(ignored), counts_(static_cast<size_t>(classes * classes), 0) {}

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const Tensor &losses = results.at("losses"), &scores = results.at("scores");
    const ClassLines lines(scores.shape(), axis_);
    const int64_t positions = lines.positions();
    const int64_t* labels = batch.at(std::string(kLabel)).data_as<int64_t>();
    for (int64_t n = 0; n < batch.valid; ++n) {
      const float* sample = scores.data_as<float>() + n * positions * classes_;
      for (int64_t p = 0; p < positions; ++p) {
        const int64_t label = labels[n * positions + p];
        if (label == ignored_ || label < 0 || label >= classes_) continue;
        loss_ += static_cast<double>(losses.data_as<float>()[n * positions + p]);
        ++pixels_;
        if (const int64_t predicted = lines.best(sample, p); predicted >= 0) ++counts_[static_cast<size_t>(label * classes_ + predicted)];
      }
    }
  }

  /// miou is the mean intersection over union of the classes that occur in labels or predictions.
  void finish(MetricValues& values) const override {
    if (pixels_ == 0) fail(ErrorCode::kNumeric, "no pixel with a class was evaluated");
    const auto count = [&](int64_t label, int64_t predicted) { return counts_[static_cast<size_t>(label * classes_ + predicted)]; };
    double sum = 0;
    int64_t present = 0, right = 0;
    for (int64_t c = 0; c < classes_; ++c) {
      int64_t either = -count(c, c);
      for (int64_t other = 0; other < classes_; ++other) either += count(c, other) + count(other, c);
      right += count(c, c);
      if (either == 0) continue;
      sum += static_cast<double>(count(c, c)) / static_cast<double>(either);
      ++present;
    }
    for (const std::string& name : names_) {
      if (name == "loss") values.emplace_back(name, loss_ / static_cast<double>(pixels_));
      if (name == "miou") values.emplace_back(name, present == 0 ? 0 : 100.0 * sum / static_cast<double>(present));
      if (name == "pixel_accuracy") values.emplace_back(name, 100.0 * static_cast<double>(right) / static_cast<double>(pixels_));
    }
  }

 private:
  std::vector<std::string> names_;
  int64_t classes_;
  int axis_;
  int64_t ignored_;
  std::vector<int64_t> counts_;
  double loss_ = 0;
  int64_t pixels_ = 0;
};

/// Resamples a mask to the canvas by nearest neighbors. The mask, of any size, covers the pixels that the model received; others become
/// Mask::kNoClass.
Image place(const Image& mask, const Canvas& canvas) {
  if (!canvas.seen) {
    throw Error(ErrorCode::kRecipe,
                "an item of the pipeline (auto_augment) moves pixels, so the position of the mask in the image is unknown")
        .key("data.val.pipeline")
        .suggest("remove the item, or predict without --draw");
  }
  PixelGrid grid = *canvas.seen;
  grid.resize(mask.height(), mask.width());
  Image out(DType::kU8, canvas.image.height(), canvas.image.width(), 1);
  std::fill_n(out.as<uint8_t>(), out.area(), Mask::kNoClass);
  std::vector<int64_t> columns;
  for (int64_t x = 0; x < out.width(); ++x) columns.push_back(grid.column_at(x));
  for (int64_t y = 0; y < out.height(); ++y) {
    const int64_t row = grid.row_at(y);
    for (int64_t x = 0; x < out.width() && row >= 0; ++x) {
      const int64_t column = columns[static_cast<size_t>(x)];
      if (column >= 0) out.row<uint8_t>(y)[x] = mask.row<uint8_t>(row)[column];
    }
  }
  return out;
}

/// Mixes the image and the colors of the classes in equal parts. Pixels without a class are unchanged.
Image blend(const Image& image, const Image& classes, const std::vector<Color>& palette) {
  Image out(DType::kU8, image.height(), image.width(), 3);
  for (int64_t i = 0; i < out.area(); ++i) {
    const uint8_t index = classes.as<uint8_t>()[i];
    for (int64_t c = 0; c < 3; ++c) {
      const int pixel = image.as<uint8_t>()[i * image.channels() + (image.channels() == 1 ? 0 : c)];
      const int color = index == Mask::kNoClass ? pixel : palette[index][static_cast<size_t>(c)];
      out.as<uint8_t>()[i * 3 + c] = static_cast<uint8_t>((pixel + color + 1) / 2);
    }
  }
  return out;
}

/// Shows a mask of the predicted classes and the share of pixels of each class.
class MaskPresenter : public Presenter {
 public:
  MaskPresenter(PresentContext context, int axis) : context_(std::move(context)), axis_(axis) {}

  std::vector<std::string> columns() const override { return {"rank", "index", "label", "share"}; }

  Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas* canvas) const override {
    const Tensor& scores = results.at("output");
    const ClassLines lines(scores.shape(), axis_);
    const int first = axis_ == 1 ? 2 : 1;
    Image mask(DType::kU8, scores.shape()[first], scores.shape()[first + 1], 1);
    std::vector<int64_t> pixels(static_cast<size_t>(lines.classes), 0);
    for (int64_t p = 0; p < lines.positions(); ++p) {
      const int64_t best = lines.best(scores.data_as<float>(), p);
      if (best < 0)
        throw Error(ErrorCode::kNumeric, cat(sample, ": the model's output for pixel ", p, " is nan"))
            .suggest("check the weights with galley-weights verify");
      mask.as<uint8_t>()[p] = static_cast<uint8_t>(best);
      ++pixels[static_cast<size_t>(best)];
    }
    Presentation shown = shares(pixels, mask.area());
    if (canvas == nullptr) return shown;
    const std::vector<Color> palette = voc_palette();
    const Image placed = place(mask, *canvas);
    shown.mask_png = encode_palette_png(placed, palette);
    shown.overlay = blend(canvas->image, placed, palette);
    return shown;
  }

 private:
  /// The classes by their share of pixels, largest first.
  Presentation shares(const std::vector<int64_t>& pixels, int64_t area) const {
    std::vector<int64_t> order;
    for (size_t c = 0; c < pixels.size(); ++c)
      if (pixels[c] > 0) order.push_back(static_cast<int64_t>(c));
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return pixels[static_cast<size_t>(a)] > pixels[static_cast<size_t>(b)]; });
    order.resize(std::min<size_t>(order.size(), static_cast<size_t>(context_.top)));
    Presentation shown;
    nlohmann::ordered_json json{{"mask", nullptr}, {"classes", nlohmann::ordered_json::array()}};
    for (const int64_t index : order) {
      const double share = static_cast<double>(pixels[static_cast<size_t>(index)]) / static_cast<double>(area);
      if (share < context_.min_score) continue;
      json["classes"].push_back({{"index", index}, {"label", context_.label(index)}, {"share", share}});
      shown.rows.push_back({cat(shown.rows.size() + 1), cat(index), context_.label(index), fixed(share, 4)});
      shown.lines.push_back(fixed(share, 4) + " " + context_.label(index));
    }
    shown.json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return shown;
  }

  PresentContext context_;
  int axis_;
};

class Segmentation : public Task {
 public:
  explicit Segmentation(const TaskModel& model) : loss_(task_loss("segmentation", model, "cross_entropy")), output_(model.output) {
    loss_target(loss_, output_);  // throws if the output has no classes
    axis_ = class_axis(loss_, output_);
    GALLEY_CHECK(output_.shape.rank() > 2, "the task segmentation needs outputs [N,classes,H,W], not ", output_,
                 "; for one class per sample write task: classification");
    classes_ = output_.shape[axis_];
  }
  std::string_view name() const override { return "segmentation"; }
  std::vector<FieldType> targets() const override {
    FieldType label{.name = std::string(kLabel),
                    .kind = output_.shape.rank() == 4 ? FieldKind::kMask : FieldKind::kClass,
                    .dtype = DType::kI64,
                    .classes = classes_};
    for (int axis = 1; axis < output_.shape.rank(); ++axis)
      if (axis != axis_) label.sample.push_back(output_.shape[axis]);
    return {label};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    if (mode == TaskMode::kTrain) return capture_losses(capture, loss_, std::string(kLabel));
    const Value scores = capture.model().front().second;
    capture.result("losses", build_element_losses(capture.builder(), loss_, scores, capture.field(std::string(kLabel))));
    capture.result("scores", scores);
  }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<Confusion>(metrics, classes_, axis_, loss_.as<CrossEntropyParams>()->ignore_index);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext& context) const override {
    return output_.shape.rank() == 4 && classes_ <= Mask::kNoClass ? std::make_unique<MaskPresenter>(context, axis_) : nullptr;
  }

 private:
  Component loss_;
  TensorType output_;
  int axis_ = 1;
  int64_t classes_ = 0;
};

}  // namespace

std::unique_ptr<Task> SegmentationTask::make(const TaskModel& model) const { return std::make_unique<Segmentation>(model); }
std::span<const MetricInfo> SegmentationTask::metrics() const { return kMetrics; }

}  // namespace galley
