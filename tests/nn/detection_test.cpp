// Law: with equal weights, detectors have torchvision's names, detections, losses, gradients and running statistics. The numbers are from
// tests/golden/models/make_detection.py, in double; the reference interpreter also computes in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "libcore/passes/differentiate.h"
#include "tests/nn/golden_detector.h"
#include "tests/nn/golden_file.h"

namespace galley {
namespace {

class GoldenDetectors : public testing::TestWithParam<GoldenDetector> {};

TEST_P(GoldenDetectors, Detect) {
  const GoldenDetector& golden = GetParam();
  const GoldenFile want = read_golden(golden.file);
  CapturedDetector model(golden.component(), Mode::kEvaluation, golden.input, golden.objects);
  scale_predictors(model.feeds, golden.predictors);
  const auto values = interpret(model.graph, model.feeds);
  const auto result = [&](std::string_view name) -> const RefArray& { return values.at(model.results.at(std::string(name)).id()); };
  const int64_t most = result(kDetectedScores).shape[1];
  for (int64_t n = 0; n < golden.input[0]; ++n) {
    const auto count = static_cast<int64_t>(result(kDetectedCount)[n]);
    EXPECT_GT(count, 3);
    const auto rows = [&](std::string_view name, int64_t width) {
      const double* first = result(name).v.data() + n * most * width;
      return std::vector<double>(first, first + count * width);
    };
    expect_golden(cat("boxes", n), want.at(cat("boxes", n)), rows(kDetectedBoxes, 4), 1e-9);
    expect_golden(cat("scores", n), want.at(cat("scores", n)), rows(kDetectedScores, 1), 1e-9);
    expect_golden(cat("labels", n), want.at(cat("labels", n)), rows(kDetectedLabels, 1), 0);
    for (int64_t i = count; i < most; ++i) EXPECT_EQ(result(kDetectedScores)[n * most + i], 0);
  }
}

TEST(Detectors, ImagesOfDifferentSizesOnACanvas) {
  // The second image has 25 x 50 pixels; the rest of the canvas is 0.
  for (const std::string file : {"fcos", "fasterrcnn"}) {
    SCOPED_TRACE(file);
    const auto golden = std::find_if(golden_detectors().begin(), golden_detectors().end(), [&](const auto& d) { return d.file == file; });
    const GoldenFile want = read_golden(file + "_padded");
    CapturedDetector model(golden->component(), Mode::kEvaluation, golden->input, golden->objects, /*sized=*/true);
    model.feeds["sizes"] = {{2, 2}, {32, 64, 25, 50}};
    RefArray& images = model.feeds.at("input");
    for (int64_t i = 3 * 32 * 64; i < images.shape.elements(); ++i)
      if (i / 64 % 32 >= 25 || i % 64 >= 50) images[i] = 0;
    scale_predictors(model.feeds, golden->predictors);
    const auto values = interpret(model.graph, model.feeds);
    const auto result = [&](std::string_view name) -> const RefArray& { return values.at(model.results.at(std::string(name)).id()); };
    const int64_t most = result(kDetectedScores).shape[1];
    for (int64_t n = 0; n < 2; ++n) {
      const auto count = static_cast<int64_t>(result(kDetectedCount)[n]);
      const auto rows = [&](std::string_view name, int64_t width) {
        const double* first = result(name).v.data() + n * most * width;
        return std::vector<double>(first, first + count * width);
      };
      expect_golden(cat("boxes", n), want.at(cat("boxes", n)), rows(kDetectedBoxes, 4), 1e-9);
      expect_golden(cat("scores", n), want.at(cat("scores", n)), rows(kDetectedScores, 1), 1e-9);
      expect_golden(cat("labels", n), want.at(cat("labels", n)), rows(kDetectedLabels, 1), 0);
    }
  }
}

TEST_P(GoldenDetectors, Train) {
  const GoldenDetector& golden = GetParam();
  const GoldenFile want = read_golden(golden.file);
  CapturedDetector model(golden.component(), Mode::kTraining, golden.input, golden.objects);
  std::map<std::string, Value> parts;
  Value loss;
  for (const auto& [key, entry] : want) {
    if (!key.starts_with("loss:")) continue;
    const Value part = model.loss(key.substr(5));
    parts.emplace(key, part);
    loss = loss ? add(loss, part) : part;
  }
  EXPECT_EQ(parts.size() * 2, model.results.size());
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs)
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, loss.id(), wanted);
  const auto values = interpret(model.graph, model.feeds);
  for (const auto& [key, part] : parts) {
    // torchvision computes this loss with targets in float32.
    expect_golden(key, want.at(key), values.at(part.id()).v, key == "loss:loss_objectness" ? 3e-7 : 1e-9);
  }
  std::map<std::string, ValueId> after;
  for (const Node& node : model.graph.nodes()) {
    for (const InPlace& update : node.op->updates)
      after[model.graph.value(node.input(static_cast<size_t>(update.input))).name] = node.outputs[static_cast<size_t>(update.output)];
  }
  double largest = 0;
  for (const auto& [key, entry] : want)
    if (key.starts_with("grad:")) largest = std::max(largest, entry.rms());
  size_t compared = 0;
  // Batch statistics of few values amplify the rounding of 1e-16 (golden_test.cpp).
  for (const auto& [key, entry] : want) {
    const std::string name = key.substr(key.find(':') + 1);
    if (key.starts_with("grad:")) {
      expect_golden(key, entry, values.at(gradients.at(model.graph.find_input(name))).v, 1e-7, 1e-10 * largest);
      ++compared;
    } else if (key.starts_with("buffer:")) {
      expect_golden(key, entry, values.at(after.at(name)).v, 1e-8);
      ++compared;
    }
  }
  const auto counters = std::count_if(model.specs.begin(), model.specs.end(),
                                      [](const ParameterSpec& spec) { return spec.name.ends_with("num_batches_tracked"); });
  EXPECT_EQ(compared + static_cast<size_t>(counters), model.specs.size());
}

INSTANTIATE_TEST_SUITE_P(Zoo, GoldenDetectors, testing::ValuesIn(golden_detectors()), [](const auto& info) { return info.param.file; });

TEST(Detectors, ABatchWithoutObjectsHasNoLoss) {
  CapturedDetector model(golden_detectors()[0].component(), Mode::kTraining, {2, 3, 64, 64}, {{}, {}});
  const Value boxes = model.loss("bbox_regression"), classes = model.loss("classification");
  const auto values = interpret(model.graph, model.feeds);
  EXPECT_EQ(values.at(boxes.id())[0], 0);
  EXPECT_EQ(values.at(classes.id())[0], 0);
}

TEST(Detectors, RowsWithoutARegionAreFinite) {
  // Fewer proposals than rows, and an image without objects: no value is NaN or infinite, also in rows that do not count.
  Component component = default_model("fasterrcnn_mobilenet_v3_large_320_fpn");
  for (const auto& [name, value] :
       {std::pair{"num_classes", 3}, {"rpn_post_nms_top_n_train", 6}, {"rpn_post_nms_top_n_test", 6}, {"box_batch_size_per_image", 16}}) {
    Setter setter(name, {static_cast<double>(value)});
    component.params->options(setter);
    ASSERT_TRUE(setter.found) << name;
  }
  for (const Mode mode : {Mode::kTraining, Mode::kEvaluation}) {
    CapturedDetector model(component, mode, {2, 3, 64, 64}, {{}, {{2, 3, 33, 29, 1}}});
    model.feeds["rng"] = {{3}, {1, 2, 0}};
    const auto values = interpret(model.graph, model.feeds);
    for (const Node& node : model.graph.nodes()) {
      for (const ValueId output : node.outputs) {
        const std::vector<double>& v = values.at(output).v;
        EXPECT_TRUE(std::all_of(v.begin(), v.end(), [](double x) { return std::isfinite(x); })) << node.path << " " << node.op->name;
      }
    }
    // Without objects only background counts: no loss of boxes.
    EXPECT_EQ(values.at(model.results.at("loss_box_reg.sum").id())[0], 0);
    EXPECT_EQ(values.at(model.results.at("loss_rpn_box_reg.sum").id())[0], 0);
    EXPECT_GT(values.at(model.results.at("loss_classifier.sum").id())[0], 0);
  }
}

TEST(Detectors, NamesAreTorchvisions) {
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/models/detectors.txt");
  ASSERT_TRUE(file);
  std::vector<ParameterSpec> specs;
  std::map<std::string, const ParameterSpec*> by_name;
  std::string line, model, before;
  size_t next = 0, models = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, name, shape;
    size_t shared = 0;
    words >> kind;
    if (kind != "model") words >> shared;
    words >> name >> shape;
    name = before = before.substr(0, shared) + name;
    if (kind == "model") {
      EXPECT_EQ(next, specs.size()) << model << " has parameters that torchvision has not";
      before.clear();
      model = name;
      next = 0;
      ++models;
      const Component component = default_model(name);
      const std::vector<int64_t>& size = model_info(component).input_shape;
      const bool pyramid = size[1] > 400;  // smaller images are enough
      specs = CapturedDetector(component, Mode::kTraining, {2, size[0], pyramid ? 64 : size[1], pyramid ? 64 : size[2]}).specs;
      by_name.clear();
      for (const ParameterSpec& spec : specs) by_name[spec.name] = &spec;
      EXPECT_EQ(std::to_string(parameter_count(specs)), shape) << model;
      continue;
    }
    ++next;
    ASSERT_TRUE(by_name.contains(name)) << model << " lacks " << name;
    const ParameterSpec& spec = *by_name.at(name);
    std::string sizes;
    for (const int64_t size : spec.type.shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    EXPECT_EQ(sizes.empty() ? "-" : sizes, shape) << name;
    EXPECT_EQ(spec.role == ValueRole::kParameter ? "p" : "b", kind) << name;
  }
  EXPECT_EQ(next, specs.size());
  EXPECT_EQ(models, 12u);
}

TEST(Detectors, FrozenNormsAreBuffers) {
  // The norms of ResNet-50 have 26,560 channels. Their weights and biases are constants, and they have no counters.
  Component model = default_model("retinanet_resnet50_fpn");
  const std::vector<ParameterSpec> free = CapturedDetector(model, Mode::kTraining, {2, 3, 64, 64}).specs;
  Setter frozen("frozen_norm", {1});
  model.params->options(frozen);
  ASSERT_TRUE(frozen.found);
  CapturedDetector captured(model, Mode::kTraining, {2, 3, 64, 64}, {{}, {}});
  EXPECT_EQ(parameter_count(free) - parameter_count(captured.specs), 2 * 26'560);
  for (const ParameterSpec& spec : captured.specs) EXPECT_FALSE(spec.name.ends_with("num_batches_tracked")) << spec.name;
  for (const Node& node : captured.graph.nodes()) EXPECT_TRUE(node.op->updates.empty()) << node.path;
}

TEST(Detectors, HaveThePublishedNumberOfParameters) {
  // num_params of torchvision's weights.
  struct Row {
    const char* type;
    bool frozen;
    int64_t parameters;
  };
  for (const Row& row : {Row{"fasterrcnn_resnet50_fpn", true, 41'755'286},
                         {"fasterrcnn_resnet50_fpn_v2", false, 43'712'278},
                         {"fasterrcnn_mobilenet_v3_large_fpn", true, 19'386'354},
                         {"fasterrcnn_mobilenet_v3_large_320_fpn", true, 19'386'354},
                         {"retinanet_resnet50_fpn", true, 34'014'999},
                         {"retinanet_resnet50_fpn_v2", false, 38'198'935},
                         {"fcos_resnet50_fpn", true, 32'269'600},
                         {"ssdlite320_mobilenet_v3_large", false, 3'440'060},
                         {"maskrcnn_resnet50_fpn", true, 44'401'393},
                         {"maskrcnn_resnet50_fpn_v2", false, 46'359'409},
                         {"keypointrcnn_resnet50_fpn", true, 59'137'258}}) {
    Component model = default_model(row.type);
    Setter setter("frozen_norm", {1});
    if (row.frozen) model.params->options(setter);
    EXPECT_EQ(parameter_count(CapturedDetector(model, Mode::kEvaluation, {1, 3, 64, 64}).specs), row.parameters) << row.type;
  }
}

TEST(Detectors, TrainableBackboneLayersCountFromTheLast) {
  // The first frozen and the last trained part of the backbone, as torchvision's _resnet_fpn_extractor and _mobilenet_extractor choose
  // them.
  const auto trained = [](std::string_view type, std::vector<std::pair<std::string, double>> options) {
    Component model = default_model(type);
    for (const auto& [name, value] : options) {
      Setter setter(name, {value});
      model.params->options(setter);
      EXPECT_TRUE(setter.found) << name;
    }
    std::set<std::string> modules;  // "conv1", "layer2", "4"
    const std::string body = "backbone.body.";
    for (const ParameterSpec& spec : CapturedDetector(model, Mode::kTraining, {2, 3, 64, 64}).specs) {
      if (spec.trainable && spec.name.starts_with(body))
        modules.insert(spec.name.substr(body.size(), spec.name.find('.', body.size()) - body.size()));
      EXPECT_TRUE(spec.trainable || spec.role == ValueRole::kBuffer || spec.name.starts_with(body)) << spec.name;
    }
    return modules;
  };
  using Set = std::set<std::string>;
  const std::string resnet = "fasterrcnn_resnet50_fpn", mobile = "fasterrcnn_mobilenet_v3_large_320_fpn",
                    layers = "trainable_backbone_layers";
  EXPECT_EQ(trained(resnet, {}), (Set{"bn1", "conv1", "layer1", "layer2", "layer3", "layer4"}));
  EXPECT_EQ(trained(resnet, {{"frozen_norm", 1}}), (Set{"layer2", "layer3", "layer4"}));
  EXPECT_EQ(trained(resnet, {{layers, 4}}), (Set{"layer1", "layer2", "layer3", "layer4"}));
  EXPECT_EQ(trained("retinanet_resnet50_fpn", {{layers, 1}}), Set{"layer4"});
  EXPECT_EQ(trained("fcos_resnet50_fpn", {{layers, 0}}), Set{});
  EXPECT_EQ(trained(mobile, {{layers, 6}}).size(), 17u);
  EXPECT_EQ(trained(mobile, {{"frozen_norm", 1}}), (Set{"7", "8", "9", "10", "11", "12", "13", "14", "15", "16"}));
  EXPECT_EQ(trained(mobile, {{layers, 1}}), Set{"16"});
  EXPECT_EQ(trained(mobile, {{layers, 0}}), Set{});
}

TEST(Detectors, TrainingNeedsObjects) {
  Graph graph;
  Builder b(graph);
  try {
    build_model(b, golden_detectors()[0].component(), NamedValues{{"input", b.input("input", {.shape = {2, 3, 64, 64}})}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.text().find("`boxes` and `labels`"), std::string::npos) << error.text();
    EXPECT_NE(error.suggestion().find("voc or coco"), std::string::npos);
  }
}

TEST(Detectors, SizesGrowAtMostBy1000Over16) {
  Graph graph;
  Builder b(graph);
  const Value codes = b.input("codes", {.shape = {1, 2, 4}}), anchors = b.input("anchors", {.shape = {2, 4}});
  const Value boxes = clip_boxes(BoxCoder{.xy = 10, .wh = 5}.decode(codes, anchors), {1000, 2000});
  const auto values =
      interpret(graph, {{"codes", {{1, 2, 4}, {0, 0, 60, -60, 5, -10, 0, 5}}}, {"anchors", {{2, 4}, {600, 400, 620, 420, 0, 0, 40, 40}}}});
  const double half = 10 * 1000.0 / 16, small = 10 * std::exp(-12.0), tall = 20 * std::exp(1.0);
  const std::vector<double> want{std::max(610 - half, 0.0), 410 - small, 610 + half, 410 + small, 20, 0, 60, std::max(0.0, -20 + tall)};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values.at(boxes.id()).v[i], want[i], 1e-9) << i;
}

}  // namespace
}  // namespace galley
