// Detection: boxes around objects, with their classes, and masks or key points where the model finds them.
#include "libcore/nn/detection.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/units.h"
#include "libcore/data/draw.h"
#include "libcore/nn/instance_heads.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/tasks/detection_metrics.h"
#include "libcore/tasks/instances.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/source_collector.h"

namespace galley {
namespace {

constexpr int64_t kUsualObjects = 16;  // objects of an image where there are no data: benchmarks

/// A figure of COCO's evaluation; the names of those of masks and key points have the prefixes mask_ and keypoint_.
struct Figure {
  std::string_view name;
  double CocoFigures::* value;
};
constexpr Figure kBoxFigures[] = {{"map", &CocoFigures::map},
                                  {"map50", &CocoFigures::map50},
                                  {"map75", &CocoFigures::map75},
                                  {"map_small", &CocoFigures::map_small},
                                  {"map_medium", &CocoFigures::map_medium},
                                  {"map_large", &CocoFigures::map_large},
                                  {"ar1", &CocoFigures::ar1},
                                  {"ar10", &CocoFigures::ar10},
                                  {"ar100", &CocoFigures::ar100},
                                  {"ar_small", &CocoFigures::ar_small},
                                  {"ar_medium", &CocoFigures::ar_medium},
                                  {"ar_large", &CocoFigures::ar_large}};
constexpr Figure kMaskFigures[] = {{"mask_map", &CocoFigures::map},
                                   {"mask_map50", &CocoFigures::map50},
                                   {"mask_map75", &CocoFigures::map75},
                                   {"mask_map_small", &CocoFigures::map_small},
                                   {"mask_map_medium", &CocoFigures::map_medium},
                                   {"mask_map_large", &CocoFigures::map_large},
                                   {"mask_ar1", &CocoFigures::ar1},
                                   {"mask_ar10", &CocoFigures::ar10},
                                   {"mask_ar100", &CocoFigures::ar100},
                                   {"mask_ar_small", &CocoFigures::ar_small},
                                   {"mask_ar_medium", &CocoFigures::ar_medium},
                                   {"mask_ar_large", &CocoFigures::ar_large}};
constexpr Figure kKeypointFigures[] = {{"keypoint_map", &CocoFigures::map},
                                       {"keypoint_map50", &CocoFigures::map50},
                                       {"keypoint_map75", &CocoFigures::map75},
                                       {"keypoint_map_medium", &CocoFigures::map_medium},
                                       {"keypoint_map_large", &CocoFigures::map_large},
                                       {"keypoint_ar", &CocoFigures::ar100},
                                       {"keypoint_ar50", &CocoFigures::ar50},
                                       {"keypoint_ar75", &CocoFigures::ar75},
                                       {"keypoint_ar_medium", &CocoFigures::ar_medium},
                                       {"keypoint_ar_large", &CocoFigures::ar_large}};

/// What a detector finds besides boxes.
struct Parts {
  explicit Parts(const ModelInfo& info) {
    for (const ModelInput& input : info.inputs) {
      if (input.name == kObjectMasks) masks = true;
      if (input.name == kObjectKeypoints) keypoints = input.shape[0];
    }
  }
  Parts(bool with_masks, int64_t points) : masks(with_masks), keypoints(points) {}
  bool masks = false;
  int64_t keypoints = 0;  // of an object
};

std::vector<MetricInfo> metrics_of(const Parts& parts) {
  std::vector<MetricInfo> list{{.name = "loss"}};
  const auto add = [&](std::span<const Figure> figures) {
    for (const Figure& figure : figures)
      list.push_back({.name = figure.name, .unit = "%", .larger_is_better = true, .ranks = figure.name == "map"});
  };
  add(kBoxFigures);
  if (parts.masks) add(kMaskFigures);
  if (parts.keypoints > 0) add(kKeypointFigures);
  for (const std::string_view name : {"voc_map", "voc_map_2007"})
    list.push_back({.name = name, .unit = "%", .larger_is_better = true, .by_default = false});
  return list;
}

/// The names of the parts of the objective, from the results of a model.
std::vector<std::string> parts_of(const NamedValues& results) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : results)
    if (name.ends_with(kLossSum)) parts.push_back(name.substr(0, name.size() - kLossSum.size()));
  return parts;
}

Value result_of(const NamedValues& results, const std::string& name) {
  const Value found = value_of(results, name);
  GALLEY_ASSERT(found, "the detector has no result ", name);
  return found;
}

/// A detected object of a sample, in pixels of the original image.
struct Detection {
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0, score = 0;
  int64_t label = 0;
  std::optional<RunLengths> mask = {};
  std::vector<double> points = {}, point_scores = {};  // x and y of each key point

  DetectedBox for_metrics() const {
    return {.box = {x1, y1, x2 - x1, y2 - y1}, .score = score, .label = label, .mask = mask.value_or(RunLengths()), .keypoints = points};
  }
};

/// Mirrors cells [side,side].
std::vector<float> mirrored(const float* cells, int64_t side, bool across, bool down) {
  std::vector<float> to;
  for (int64_t y = 0; y < side; ++y)
    for (int64_t x = 0; x < side; ++x) to.push_back(cells[(down ? side - 1 - y : y) * side + (across ? side - 1 - x : x)]);
  return to;
}

/// Adds the mask and the key points of row `row` of the results to a detection.
void add_instance(const std::map<std::string, Tensor>& results, int64_t row, const PixelGrid& grid, int64_t height, int64_t width,
                  Detection& found) {
  if (const auto masks = results.find(std::string(kDetectedMasks)); masks != results.end()) {
    const int64_t side = masks->second.shape()[3];
    const std::vector<float> cells = mirrored(masks->second.data_as<float>() + row * side * side, side, grid.step_x < 0, grid.step_y < 0);
    found.mask = mask_in_image(cells.data(), side, {found.x1, found.y1, found.x2, found.y2}, height, width);
  }
  const auto keypoints = results.find(std::string(kDetectedKeypoints));
  if (keypoints == results.end()) return;
  const int64_t count = keypoints->second.shape()[2];
  const std::vector<int64_t> other = usual_keypoints(static_cast<size_t>(count)).mirrored();
  const bool mirrors = (grid.step_x < 0) != (grid.step_y < 0);
  for (int64_t k = 0; k < count; ++k) {
    const float* point = keypoints->second.data_as<float>() + (row * count + (mirrors ? other[static_cast<size_t>(k)] : k)) * 3;
    found.points.push_back(grid.left + grid.step_x * static_cast<double>(point[0]));
    found.points.push_back(grid.top + grid.step_y * static_cast<double>(point[1]));
    found.point_scores.push_back(static_cast<double>(point[2]));
  }
}

/// The detections in row n of the results, best first. `grid`: the pixels that the model received, in the original image. `instances`: with
/// their masks and key points.
std::vector<Detection> detections_of(const std::map<std::string, Tensor>& results, int64_t n, const PixelGrid& grid, int64_t height,
                                     int64_t width, bool instances) {
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
    if (instances) add_instance(results, d, grid, height, width, list.back());
  }
  return list;
}

/// The caller knows the pipeline, and names its key.
[[noreturn]] void fail_unknown_place() {
  throw Error(ErrorCode::kRecipe, "an item of the pipeline moves pixels at random, so the position of boxes in the image is unknown")
      .suggest("remove auto_augment, mosaic and random_iou_crop from it, or use a split without them");
}

/// Losses, and average precision in pixels of the original images.
class AveragePrecision : public SourceCollector {
 public:
  AveragePrecision(std::vector<std::string> names, const std::vector<double>& sigmas)
      : names_(std::move(names)), keypoints_(CocoSubject::kKeypoints, sigmas) {}

  void begin(const Source& source) override {
    source_ = dynamic_cast<const ObjectSource*>(&source);
    if (source_ == nullptr) {
      throw Error(ErrorCode::kRecipe, cat("metrics of detections need a source with boxes, not ", source.describe()))
          .key("data.val.source")
          .suggest("voc or coco");
    }
    if (wants("mask_") && !source_->has_masks()) fail_without("masks", "mask_map");
    if (wants("keypoint_") && source_->keypoints() == nullptr) fail_without("keypoints", "keypoint_map");
  }
  void locate(Locator locator) override { locator_ = std::move(locator); }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    GALLEY_ASSERT(source_ != nullptr);
    const bool instances = wants("mask_") || wants("keypoint_");
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
      if (!seen_.insert(index).second) continue;  // it also stands in for a damaged sample
      std::vector<DetectedBox> boxes;
      for (const Detection& found : detections_of(results, n, *grid, image.height, image.width, instances))
        boxes.push_back(found.for_metrics());
      voc_.add(image.objects, boxes);
      if (wants("mask_")) masks_.add(image.id, image.objects, boxes);
      if (wants("keypoint_")) keypoints_.add(image.id, image.objects, boxes);
      coco_.add(image.id, image.objects, std::move(boxes));
    }
  }

  void finish(MetricValues& values) const override {
    if (seen_.empty()) fail(ErrorCode::kNumeric, "no image was evaluated");
    double loss = 0;
    for (const auto& [name, sum] : sums_) loss += sum / std::max(1.0, counts_.at(name));
    std::map<std::string_view, double> figures;
    const auto add = [&](const CocoFigures& from, std::span<const Figure> list) {
      for (const Figure& figure : list) figures[figure.name] = from.*figure.value;
    };
    add(coco_.figures(), kBoxFigures);
    if (wants("mask_")) add(masks_.figures(), kMaskFigures);
    if (wants("keypoint_")) add(keypoints_.figures(), kKeypointFigures);
    for (const std::string& name : names_) {
      if (name == "loss") values.emplace_back(name, loss);
      if (name == "voc_map") values.emplace_back(name, 100 * voc_.map(false));
      if (name == "voc_map_2007") values.emplace_back(name, 100 * voc_.map(true));
      if (const auto found = figures.find(name); found != figures.end()) values.emplace_back(name, 100 * found->second);
    }
  }

  /// Of as many detections as an image can have.
  int64_t bytes(int64_t samples, const std::map<std::string, TensorType>& results) const override {
    constexpr int64_t kMatching = 128;  // of a detection: places by class, matches in four ranges of areas, a curve; VOC's list
    constexpr int64_t kRuns = 256;      // of a mask, about twice the width of its box
    const auto of = [&](std::string_view name) {
      const auto found = results.find(std::string(name));
      return found == results.end() ? Shape() : found->second.shape;
    };
    const Shape scores = of(kDetectedScores), points = of(kDetectedKeypoints);
    const auto box = static_cast<int64_t>(sizeof(DetectedBox));
    int64_t each = box + kMatching;
    if (wants("mask_")) each += box + kRuns * static_cast<int64_t>(sizeof(uint32_t));
    if (wants("keypoint_") && points.rank() == 4) each += box + points[2] * 2 * static_cast<int64_t>(sizeof(double));
    return scores.rank() == 2 ? samples * scores[1] * each : 0;
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
  bool wants(std::string_view prefix) const {
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) { return name.starts_with(prefix); });
  }
  [[noreturn]] void fail_without(const char* field, const char* metric) const {
    throw Error(ErrorCode::kRecipe, cat("the metric ", metric, " needs ", field, ", which the source does not read: ", source_->describe()))
        .key("data.val.source")
        .suggest(cat("a coco source with ", field, ": true, or `metrics` without those of ", field));
  }

  std::vector<std::string> names_;
  const ObjectSource* source_ = nullptr;
  Locator locator_;
  CocoEvaluation coco_, masks_{CocoSubject::kMasks}, keypoints_;
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
    for (const Detection& found : detections_of(results, 0, *canvas->seen, image.height(), image.width(), true)) {
      if (found.score < context_.min_score) continue;
      const std::string label = context_.label(found.label);
      json["detections"].push_back(
          {{"box", {found.x1, found.y1, found.x2, found.y2}}, {"index", found.label}, {"label", label}, {"score", found.score}});
      add_instance_json(json["detections"].back(), found);
      shown.rows.push_back({std::to_string(found.label), label, fixed(found.score, 4), fixed(found.x1, 1), fixed(found.y1, 1),
                            fixed(found.x2, 1), fixed(found.y2, 1)});
      if (found.score >= context_.threshold) drawn.push_back(found);
    }
    shown.json = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (canvas->draws) shown.overlay = draw(image, drawn);
    return shown;
  }

 private:
  static void add_instance_json(nlohmann::ordered_json& json, const Detection& found) {
    if (found.mask) json["mask"] = {{"size", {found.mask->height, found.mask->width}}, {"counts", found.mask->text()}};
    for (size_t k = 0; k < found.point_scores.size(); ++k)
      json["keypoints"].push_back({found.points[2 * k], found.points[2 * k + 1], found.point_scores[k]});
  }

  Image draw(const Image& image, const std::vector<Detection>& boxes) const {
    const std::vector<Color> palette = voc_palette();
    Image out = image.with_channels(3);
    for (auto box = boxes.rbegin(); box != boxes.rend(); ++box)
      if (box->mask) draw_mask(out, *box->mask, palette[static_cast<size_t>(box->label) % palette.size()]);
    const int64_t shorter = std::min(out.width(), out.height());
    const int64_t thickness = std::max<int64_t>(1, shorter / 200), height = std::max<int64_t>(12, shorter / 25);
    for (auto box = boxes.rbegin(); box != boxes.rend(); ++box) {  // the best last, on top
      const Color color = palette[static_cast<size_t>(box->label) % palette.size()];
      draw_box(out, box->x1, box->y1, box->x2, box->y2, color, thickness);
      std::vector<bool> shown;  // logits above 0
      for (const double score : box->point_scores) shown.push_back(score > 0);
      draw_keypoints(out, box->points, shown, usual_keypoints(shown.size()), color, thickness);
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
  Detector(const TaskModel& model, const DetectionTask& options)
      : classes_(model.info.classes),
        parts_(model.info),
        sigmas_(options.keypoint_sigmas),
        metrics_(metrics_of(parts_)),
        image_(model.info.input_shape) {
    GALLEY_CHECK(model.info.output == ModelOutput::kDetections, "the task detection needs a detector, e.g. ssdlite320_mobilenet_v3_large");
    if (model.loss) {
      throw Error(ErrorCode::kRecipe, cat("a detector has its own losses, but the recipe has ", model.loss.type))
          .key("loss")
          .suggest("remove the key loss");
    }
    if (!sigmas_.empty() && std::ssize(sigmas_) != parts_.keypoints) {
      throw Error(ErrorCode::kRecipe,
                  cat("`keypoint_sigmas` has ", sigmas_.size(), " numbers, but the model has ", parts_.keypoints, " key points"))
          .key("task.keypoint_sigmas");
    }
  }
  std::string_view name() const override { return "detection"; }
  std::vector<FieldType> targets() const override {
    std::vector<FieldType> fields{
        {.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = kUsualObjects},
        {.name = "labels",
         .kind = FieldKind::kClass,
         .layout = FieldLayout::kJagged,
         .dtype = DType::kI64,
         .sample = {},
         .capacity = kUsualObjects,
         .classes = classes_}};
    if (parts_.masks) {
      fields.push_back({.name = "masks",
                        .kind = FieldKind::kMask,
                        .layout = FieldLayout::kJagged,
                        .dtype = DType::kU8,
                        .sample = {image_[1], image_[2]},
                        .capacity = kUsualObjects});
    }
    if (parts_.keypoints > 0) {
      fields.push_back({.name = "keypoints",
                        .kind = FieldKind::kKeypoints,
                        .layout = FieldLayout::kJagged,
                        .sample = {parts_.keypoints, 3},
                        .capacity = kUsualObjects});
    }
    return fields;
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
  std::span<const MetricInfo> metrics() const override { return metrics_; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<AveragePrecision>(metrics, sigmas_);
  }
  std::unique_ptr<Presenter> presenter(const PresentContext& context) const override { return std::make_unique<BoxPresenter>(context); }

 private:
  int64_t classes_;
  Parts parts_;
  std::vector<double> sigmas_;
  std::vector<MetricInfo> metrics_;
  std::vector<int64_t> image_;
};

}  // namespace

void DetectionTask::options(OptionVisitor& visitor) {
  visitor.option({.name = "keypoint_sigmas",
                  .doc = "of each key point, how far labels of it lie apart relative to the object's size (pycocotools' sigmas), for "
                         "metrics; empty: COCO's for 17 key points, else 1 / their number",
                  .min = 1e-6},
                 keypoint_sigmas);
}
std::unique_ptr<Task> DetectionTask::make(const TaskModel& model) const { return std::make_unique<Detector>(model, *this); }
std::span<const MetricInfo> DetectionTask::metrics() const {
  static const std::vector<MetricInfo> all = metrics_of({true, 1});
  return all;
}

}  // namespace galley
