#pragma once
// Detectors at golden weights: their options, images and objects, as in tests/golden/models/make_detection.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "libcore/nn/detection.h"
#include "libcore/nn/instance_heads.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/apply_extents.h"
#include "tests/nn/golden_model.h"

namespace galley {

/// The objects of each image: x1, y1, x2, y2, label.
using ObjectRows = std::vector<std::vector<std::array<double, 5>>>;

/// A detector with golden results: the options, the images and the objects in make_detection.py.
struct GoldenDetector {
  std::string file, type;
  Shape input;
  std::vector<std::pair<std::string, double>> options;
  ObjectRows objects;
  double predictors = 1;  // factor of the last layers of the heads for detections

  Component component() const {
    Component model = default_model(type);
    for (const auto& [name, value] : options) {
      Setter setter(name, {value});
      model.params->options(setter);
      EXPECT_TRUE(setter.found) << name;
    }
    return model;
  }
};

inline const std::vector<GoldenDetector>& golden_detectors() {
  static const std::vector<GoldenDetector> all = [] {
    const ObjectRows three{{{3, 5, 41, 52, 2}, {50, 9, 91, 60, 4}, {30, 20, 60, 44, 1}}, {}, {{8.5, 10.25, 70, 58, 3}, {60, 2, 95, 30, 1}}};
    const ObjectRows two{{{2, 3, 33, 29, 2}, {20, 5, 61, 31, 4}}, {{8.5, 1.25, 40, 30, 3}, {30, 2, 62, 18, 1}, {1, 8, 13, 20, 2}}};
    const std::vector<std::pair<std::string, double>> pyramid{{"num_classes", 5}, {"topk_candidates", 30}, {"detections_per_img", 20}};
    const std::vector<std::pair<std::string, double>> regions{{"num_classes", 5},
                                                              {"rpn_pre_nms_top_n_train", 60},
                                                              {"rpn_pre_nms_top_n_test", 40},
                                                              {"rpn_post_nms_top_n_train", 50},
                                                              {"rpn_post_nms_top_n_test", 12},
                                                              {"rpn_batch_size_per_image", 32},
                                                              {"box_batch_size_per_image", 8},
                                                              {"box_score_thresh", 0.02},
                                                              {"box_detections_per_img", 25},
                                                              {"sampling", 1}};
    return std::vector<GoldenDetector>{
        {"ssdlite",
         "ssdlite320_mobilenet_v3_large",
         {3, 3, 64, 96},
         {{"num_classes", 5}, {"score_thresh", 0.1}, {"topk_candidates", 12}, {"detections_per_img", 40}},
         three},
        {"retinanet", "retinanet_resnet50_fpn", {2, 3, 32, 64}, pyramid, two, 1e-4},
        {"retinanet_v2", "retinanet_resnet50_fpn_v2", {2, 3, 32, 64}, pyramid, two},
        {"fcos", "fcos_resnet50_fpn", {2, 3, 32, 64}, pyramid, two},
        {"fasterrcnn", "fasterrcnn_resnet50_fpn", {2, 3, 32, 64}, regions, two, 2e-4},
        {"fasterrcnn_v2", "fasterrcnn_resnet50_fpn_v2", {2, 3, 32, 64}, regions, two, 2e-4},
        {"fasterrcnn_mobilenet", "fasterrcnn_mobilenet_v3_large_fpn", {2, 3, 96, 160}, regions, two, 4e-3},
    };
  }();
  return all;
}

/// Detectors of masks and of key points, with frozen norms.
inline GoldenDetector golden_instances(const std::string& file) {
  for (GoldenDetector detector : golden_detectors()) {
    if (detector.file != "fasterrcnn") continue;
    detector.file = file;
    detector.type = file + "_resnet50_fpn";
    for (auto& [name, value] : detector.options) {
      if (name == "box_batch_size_per_image") value = 16;
      if (name == "box_detections_per_img") value = 10;
    }
    detector.options.emplace_back("frozen_norm", 1);
    if (file == "keypointrcnn") detector.options.emplace_back("num_keypoints", 5);
    return detector;
  }
  return {};
}

inline constexpr int64_t kRoom = 4;  // objects that fit, of each image

/// Multiplies the last layers of the heads, as write_rcnn and write_pyramid do.
inline void scale_predictors(std::map<std::string, RefArray>& feeds, double factor) {
  if (factor == 1) return;
  constexpr std::array kLastLayers{"rpn.head.cls_logits",
                                   "rpn.head.bbox_pred",
                                   "box_predictor",
                                   "mask_fcn_logits",
                                   "kps_score_lowres",
                                   "head.classification_head.cls_logits",
                                   "head.regression_head.bbox_reg"};
  for (auto& feed : feeds) {
    const auto names = [&](const char* layer) { return feed.first.find(layer) != std::string::npos; };
    if (!std::any_of(kLastLayers.begin(), kLastLayers.end(), names)) continue;
    for (double& value : feed.second.v) value *= factor;
  }
}

/// Sets the masks and key points of objects as make_detection.py's instance_targets does.
inline void set_instances(std::map<std::string, RefArray>& feeds, const ObjectRows& objects, int64_t height, int64_t width) {
  RefArray &masks = feeds["masks"], &keypoints = feeds["keypoints"];
  size_t row = 0;
  for (const auto& image : objects) {
    for (size_t i = 0; i < image.size(); ++i, ++row) {
      const auto& [x1, y1, x2, y2, label] = image[i];
      const auto square = [](double v) { return v * v; };
      for (int64_t p = 0; p < height * width && !masks.v.empty(); ++p) {
        const double y = static_cast<double>(p / width) + 0.5, x = static_cast<double>(p % width) + 0.5;
        masks.v[row * static_cast<size_t>(height * width) + static_cast<size_t>(p)] =
            square((2 * x - x1 - x2) / (x2 - x1)) + square((2 * y - y1 - y2) / (y2 - y1)) <= 1;
      }
      for (size_t k = 0; k < 5 && !keypoints.v.empty(); ++k) {
        double* point = keypoints.v.data() + (row * 5 + k) * 3;
        point[0] = static_cast<float>(x1 + (x2 - x1) * static_cast<double>((3 * k + i) % 8) / 7);
        point[1] = static_cast<float>(y1 + (y2 - y1) * static_cast<double>((5 * k + 2 * i) % 9) / 8);
        point[2] = static_cast<double>((k + i) % 3);
      }
    }
  }
}

/// A captured detector, its objects among the inputs.
struct CapturedDetector {
  /// `sized`: images have sizes of their own, the input "sizes". `takes_objects`: the model has inputs for objects. `extents`: images are
  /// as if each were alone, the input "extents".
  CapturedDetector(const Component& model, Mode mode, const Shape& input, const ObjectRows& objects = {}, bool sized = false,
                   bool takes_objects = true, bool extents = false) {
    Builder b(graph, {.mode = mode});
    const int64_t capacity = input[0] * kRoom;
    NamedValues inputs{{"input", b.input("input", {.shape = input})}};
    if (takes_objects) {
      inputs.emplace_back(kObjectBoxes, b.input("boxes", {.shape = {capacity, 4}}));
      inputs.emplace_back(kObjectOffsets, b.input("offsets", {.dtype = DType::kI64, .shape = {input[0] + 1}}));
      inputs.emplace_back(kObjectLabels, b.input("labels", {.dtype = DType::kI64, .shape = {capacity}}));
    }
    if (sized) inputs.emplace_back(kImageSize, b.input("sizes", {.shape = {input[0], 2}}));
    for (const ModelInput& more : model_info(model).inputs) {
      Shape shape;
      if (more.name == kObjectMasks) shape = {capacity, input[2], input[3]};
      if (more.name == kObjectKeypoints) shape = {capacity, more.shape[0], 3};
      if (shape.rank() == 0 || !takes_objects) continue;
      const std::string name = more.name.substr(0, more.name.find('.'));
      inputs.emplace_back(more.name, b.input(name, {.dtype = more.dtype, .shape = shape}));
      feeds[name] = {shape, std::vector<double>(static_cast<size_t>(shape.elements()))};
    }
    if (extents) inputs.emplace_back(kImageExtents, b.input("extents", {.dtype = DType::kI64, .shape = {input[0], 2}}));
    for (const auto& [name, value] : build_model(b, model, inputs)) results.emplace(name, value);
    if (extents) apply_extents(graph, inputs.front().second, inputs.back().second, mode == Mode::kTraining);
    specs = b.take_parameters();
    if (objects.empty()) return;
    std::vector<double> boxes, labels, offsets{0};
    for (const auto& image : objects) {
      for (const auto& row : image) {
        boxes.insert(boxes.end(), row.begin(), row.begin() + 4);
        labels.push_back(row[4]);
      }
      offsets.push_back(static_cast<double>(labels.size()));
    }
    boxes.resize(static_cast<size_t>(capacity * 4));
    labels.resize(static_cast<size_t>(capacity));
    feeds.merge(golden_feeds(specs));
    set_instances(feeds, objects, input[2], input[3]);
    feeds["input"] = {input, golden_input("input", input)};
    feeds["boxes"] = {{capacity, 4}, boxes};
    feeds["labels"] = {{capacity}, labels};
    feeds["offsets"] = {{input[0] + 1}, offsets};
  }
  /// A part of the objective, as the task captures it.
  Value loss(const std::string& part) {
    const Value count = clamp(sum(results.at(part + ".count"), std::vector<int64_t>{}), 1, std::numeric_limits<double>::infinity());
    return div(sum(results.at(part + ".sum"), std::vector<int64_t>{}), count);
  }

  Graph graph;
  std::map<std::string, Value> results;
  std::vector<ParameterSpec> specs;
  std::map<std::string, RefArray> feeds;
};

}  // namespace galley
