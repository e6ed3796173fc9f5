// Detection: boxes around objects, with their classes.
#include "libcore/nn/detection.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/units.h"
#include "libcore/data/draw.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/tasks/detection_metrics.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/source_collector.h"

namespace galley {
namespace {

constexpr int64_t kUsualObjects = 16;  // objects of an image where there are no data: benchmarks
constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "map", .unit = "%", .larger_is_better = true, .ranks = true},
    {.name = "map50", .unit = "%", .larger_is_better = true},
    {.name = "map75", .unit = "%", .larger_is_better = true},
    {.name = "map_small", .unit = "%", .larger_is_better = true},
    {.name = "map_medium", .unit = "%", .larger_is_better = true},
    {.name = "map_large", .unit = "%", .larger_is_better = true},
    {.name = "ar1", .unit = "%", .larger_is_better = true},
    {.name = "ar10", .unit = "%", .larger_is_better = true},
    {.name = "ar100", .unit = "%", .larger_is_better = true},
    {.name = "ar_small", .unit = "%", .larger_is_better = true},
    {.name = "ar_medium", .unit = "%", .larger_is_better = true},
    {.name = "ar_large", .unit = "%", .larger_is_better = true},
    {.name = "voc_map", .unit = "%", .larger_is_better = true, .by_default = false},
    {.name = "voc_map_2007", .unit = "%", .larger_is_better = true, .by_default = false},
};

/// The names of the parts of the objective, from the results of a model.
std::vector<std::string> parts_of(const NamedValues& results) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : results)
    if (name.ends_with(kLossSum)) parts.push_back(name.substr(0, name.size() - kLossSum.size()));
  return parts;
}

Value result_of(const NamedValues& results, const std::string& name) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const auto& item) { return item.first == name; });
  GALLEY_ASSERT(found != results.end(), "the detector has no result ", name);
  return found->second;
}

/// A detected object of a sample, in pixels of the original image.
struct Detection {
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0, score = 0;
  int64_t label = 0;
};

/// The detections in row n of the results, best first. `grid`: the pixels that the model received, in the original image.
std::vector<Detection> detections_of(const std::map<std::string, Tensor>& results, int64_t n, const PixelGrid& grid, int64_t height,
                                     int64_t width) {
  const Tensor &boxes = results.at(std::string(kDetectedBoxes)), &scores = results.at(std::string(kDetectedScores));
  const int64_t most = scores.shape()[1], count = results.at(std::string(kDetectedCount)).data_as<int64_t>()[n];
  std::vector<Detection> list;
  const auto along = [](float at, double start, double step, int64_t size) {
    return std::clamp(start + step * static_cast<double>(at), 0.0, static_cast<double>(size));
  };
  for (int64_t d = n * most; d < n * most + count; ++d) {
    const float* box = boxes.data_as<float>() + d * 4;
    const double x1 = along(box[0], grid.left, grid.step_x, width), x2 = along(box[2], grid.left, grid.step_x, width);
    const double y1 = along(box[1], grid.top, grid.step_y, height), y2 = along(box[3], grid.top, grid.step_y, height);
    list.push_back({.x1 = std::min(x1, x2),
                    .y1 = std::min(y1, y2),
                    .x2 = std::max(x1, x2),
                    .y2 = std::max(y1, y2),
                    .score = static_cast<double>(scores.data_as<float>()[d]),
                    .label = results.at(std::string(kDetectedLabels)).data_as<int64_t>()[d]});
  }
  return list;
}

[[noreturn]] void fail_unknown_place() {
  throw Error(ErrorCode::kRecipe, "an item of the pipeline moves pixels at random, so the position of boxes in the image is unknown")
      .key("data.val.pipeline")
      .suggest("remove auto_augment and random_iou_crop from it");
}

/// Losses, and average precision in pixels of the original images.
class AveragePrecision : public SourceCollector {
 public:
  explicit AveragePrecision(std::vector<std::string> names) : names_(std::move(names)) {}

  void begin(const Source& source) override {
    source_ = dynamic_cast<const ObjectSource*>(&source);
    if (source_ != nullptr) return;
    throw Error(ErrorCode::kRecipe, cat("metrics of detections need a source with boxes, not ", source.describe()))
        .key("data.val.source")
        .suggest("voc or coco");
  }
  void locate(Locator locator) override { locator_ = std::move(locator); }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    GALLEY_ASSERT(source_ != nullptr);
    for (int64_t n = 0; n < batch.valid; ++n) {
      for (const auto& [name, tensor] : results) {
        if (name.ends_with(kLossSum))
          sums_[name.substr(0, name.size() - kLossSum.size())] += static_cast<double>(tensor.data_as<float>()[n]);
        if (name.ends_with(kLossCount))
          counts_[name.substr(0, name.size() - kLossCount.size())] += static_cast<double>(tensor.data_as<float>()[n]);
      }
      const int64_t index = batch.indices[static_cast<size_t>(n)];
      const ObjectImage& image = source_->image(index);
      const std::optional<PixelGrid> grid =
          locator_ ? locator_(image.height, image.width, index) : std::optional(PixelGrid(image.height, image.width));
      if (!grid) fail_unknown_place();
      std::vector<DetectedBox> boxes;
      for (const Detection& found : detections_of(results, n, *grid, image.height, image.width))
        boxes.push_back(
            {.box = {found.x1, found.y1, found.x2 - found.x1, found.y2 - found.y1}, .score = found.score, .label = found.label});
      if (!seen_.insert(index).second) continue;  // it also stands in for a damaged sample
      voc_.add(image.objects, boxes);
      coco_.add(image.id, image.objects, std::move(boxes));
    }
  }

  void finish(MetricValues& values) const override {
    if (seen_.empty()) fail(ErrorCode::kNumeric, "no image was evaluated");
    const CocoFigures coco = coco_.figures();
    double loss = 0;
    for (const auto& [name, sum] : sums_) loss += sum / std::max(1.0, counts_.at(name));
    const std::pair<std::string_view, double> figures[] = {{"map", coco.map},
                                                           {"map50", coco.map50},
                                                           {"map75", coco.map75},
                                                           {"map_small", coco.map_small},
                                                           {"map_medium", coco.map_medium},
                                                           {"map_large", coco.map_large},
                                                           {"ar1", coco.ar1},
                                                           {"ar10", coco.ar10},
                                                           {"ar100", coco.ar100},
                                                           {"ar_small", coco.ar_small},
                                                           {"ar_medium", coco.ar_medium},
                                                           {"ar_large", coco.ar_large}};
    for (const std::string& name : names_) {
      if (name == "loss") values.emplace_back(name, loss);
      if (name == "voc_map") values.emplace_back(name, 100 * voc_.map(false));
      if (name == "voc_map_2007") values.emplace_back(name, 100 * voc_.map(true));
      for (const auto& [figure, value] : figures)
        if (name == figure) values.emplace_back(name, 100 * value);
    }
  }

  std::vector<ClassMetrics> classes() const override {
    std::vector<ClassMetrics> list;
    for (const CocoEvaluation::OfClass& kind : coco_.classes()) {
      const std::vector<std::string>& names = source_->categories();
      const auto index = static_cast<size_t>(kind.label);
      list.push_back({.index = kind.label,
                      .label = index < names.size() ? names[index] : std::to_string(kind.label),
                      .count = kind.objects,
                      .values = {{"map", 100 * kind.map}, {"map50", 100 * kind.map50}}});
    }
    return list;
  }

 private:
  std::vector<std::string> names_;
  const ObjectSource* source_ = nullptr;
  Locator locator_;
  CocoEvaluation coco_;
  VocEvaluation voc_;
  std::set<int64_t> seen_;
  std::map<std::string, double> sums_, counts_;
};

/// Boxes with their labels and scores.
class BoxPresenter : public Presenter {
 public:
  explicit BoxPresenter(PresentContext context) : context_(std::move(context)) {}

  std::vector<std::string> columns() const override { return {"index", "label", "score", "x1", "y1", "x2", "y2"}; }
  bool needs_image() const override { return true; }

  Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas* canvas) const override {
    GALLEY_ASSERT(canvas != nullptr);
    check_finite_output(results.at(std::string(kDetectedScores)), sample);
    if (!canvas->seen) fail_unknown_place();
    const Image& image = canvas->image;
    Presentation shown;
    nlohmann::ordered_json json{{"width", image.width()}, {"height", image.height()}, {"detections", nlohmann::ordered_json::array()}};
    std::vector<Detection> drawn;
    for (const Detection& found : detections_of(results, 0, *canvas->seen, image.height(), image.width())) {
      if (found.score < context_.min_score) continue;
      const std::string label = context_.label(found.label);
      json["detections"].push_back(
          {{"box", {found.x1, found.y1, found.x2, found.y2}}, {"index", found.label}, {"label", label}, {"score", found.score}});
      shown.rows.push_back({std::to_string(found.label), label, fixed(found.score, 4), fixed(found.x1, 1), fixed(found.y1, 1),
                            fixed(found.x2, 1), fixed(found.y2, 1)});
      if (found.score >= context_.threshold) drawn.push_back(found);
    }
    shown.json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (canvas->draws) shown.overlay = draw(image, drawn);
    return shown;
  }

 private:
  Image draw(const Image& image, const std::vector<Detection>& boxes) const {
    const std::vector<Color> palette = voc_palette();
    Image out = image.with_channels(3);
    const int64_t shorter = std::min(out.width(), out.height());
    const int64_t thickness = std::max<int64_t>(1, shorter / 200), height = std::max<int64_t>(12, shorter / 25);
    for (auto box = boxes.rbegin(); box != boxes.rend(); ++box) {  // the best last, on top
      const Color color = palette[static_cast<size_t>(box->label) % palette.size()];
      draw_box(out, box->x1, box->y1, box->x2, box->y2, color, thickness);
    }
    for (auto box = boxes.rbegin(); box != boxes.rend(); ++box) {
      const Color color = palette[static_cast<size_t>(box->label) % palette.size()];
      const std::string text = cat(context_.label(box->label), " ", fixed(box->score, 2));
      const int64_t left = std::clamp<int64_t>(std::lround(box->x1), 0, std::max<int64_t>(0, out.width() - text_width(text, height)));
      const int64_t top = std::max<int64_t>(0, std::lround(box->y1) - height);
      fill_box(out, left, top, text_width(text, height) + 2, height, color);
      const int brightness = 299 * color[0] + 587 * color[1] + 114 * color[2];
      draw_text(out, left + 1, top, text, brightness > 128000 ? Color{0, 0, 0} : Color{255, 255, 255}, height);
    }
    return out;
  }

  PresentContext context_;
};

class Detector : public Task {
 public:
  explicit Detector(const TaskModel& model) : classes_(model.info.classes) {
    GALLEY_CHECK(model.info.output == ModelOutput::kDetections, "the task detection needs a detector, e.g. ssdlite320_mobilenet_v3_large");
    if (model.loss) {
      throw Error(ErrorCode::kRecipe, cat("a detector has its own losses, but the recipe has ", model.loss.type))
          .key("loss")
          .suggest("remove the key loss");
    }
  }
  std::string_view name() const override { return "detection"; }
  std::vector<FieldType> targets() const override {
    return {{.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = kUsualObjects},
            {.name = "labels",
             .kind = FieldKind::kClass,
             .layout = FieldLayout::kJagged,
             .dtype = DType::kI64,
             .sample = {},
             .capacity = kUsualObjects,
             .classes = classes_}};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    const NamedValues& results = capture.model();
    if (mode == TaskMode::kEvaluate) {
      for (const auto& [name, value] : results) capture.result(name, value);
      return;
    }
    for (const std::string& part : parts_of(results)) {
      const auto module = capture.builder().scope("loss");
      const Value total = sum(result_of(results, part + std::string(kLossSum)), std::vector<int64_t>{});
      const Value count = sum(result_of(results, part + std::string(kLossCount)), std::vector<int64_t>{});
      capture.loss(part, div(total, clamp(count, 1, std::numeric_limits<double>::infinity())));
    }
  }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<AveragePrecision>(metrics);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext& context) const override { return std::make_unique<BoxPresenter>(context); }

 private:
  int64_t classes_;
};

}  // namespace

std::unique_ptr<Task> DetectionTask::make(const TaskModel& model) const { return std::make_unique<Detector>(model); }
std::span<const MetricInfo> DetectionTask::metrics() const { return kMetrics; }

}  // namespace galley
