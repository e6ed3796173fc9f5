// Law: with equal weights, detectors have torchvision's names, detections, losses, gradients and running statistics. The numbers are from
// tests/golden/models/make_detection.py, in double; the reference interpreter also computes in double.

#include "libcore/nn/detection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/differentiate.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/golden_model.h"

namespace galley {
namespace {

struct Objects3 {
  std::vector<double> boxes, labels, offsets{0};
};

/// The objects in make_detection.py, of the first images.
Objects3 golden_objects(size_t images) {
  const std::vector<std::vector<std::array<double, 5>>> all{
      {{3, 5, 41, 52, 2}, {50, 9, 91, 60, 4}, {30, 20, 60, 44, 1}}, {}, {{8.5, 10.25, 70, 58, 3}, {60, 2, 95, 30, 1}}};
  Objects3 objects;
  for (size_t n = 0; n < images; ++n) {
    for (const auto& row : all[n]) {
      objects.boxes.insert(objects.boxes.end(), row.begin(), row.begin() + 4);
      objects.labels.push_back(row[4]);
    }
    objects.offsets.push_back(static_cast<double>(objects.labels.size()));
  }
  objects.labels.resize(images * 4);  // room for four in each image
  objects.boxes.resize(objects.labels.size() * 4);
  return objects;
}

/// A captured detector, its objects among the inputs.
struct CapturedDetector {
  CapturedDetector(const Component& model, Mode mode, const Shape& input) {
    Builder b(graph, {.mode = mode});
    const int64_t capacity = input[0] * 4;
    const NamedValues inputs{{"input", b.input("input", {.shape = input})},
                             {std::string(kObjectBoxes), b.input("boxes", {.shape = {capacity, 4}})},
                             {std::string(kObjectOffsets), b.input("offsets", {.dtype = DType::kI64, .shape = {input[0] + 1}})},
                             {std::string(kObjectLabels), b.input("labels", {.dtype = DType::kI64, .shape = {capacity}})}};
    for (const auto& [name, value] : build_model(b, model, inputs)) results.emplace(name, value);
    specs = b.take_parameters();
    const Objects3 objects = golden_objects(static_cast<size_t>(input[0]));
    feeds = golden_feeds(specs);
    feeds["input"] = {input, golden_input("input", input)};
    feeds["boxes"] = {{capacity, 4}, objects.boxes};
    feeds["labels"] = {{capacity}, objects.labels};
    feeds["offsets"] = {{input[0] + 1}, objects.offsets};
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

Component ssdlite() {
  Component model = default_model("ssdlite320_mobilenet_v3_large");
  const std::pair<std::string, double> options[] = {
      {"num_classes", 5}, {"score_thresh", 0.1}, {"topk_candidates", 12}, {"detections_per_img", 40}};
  for (const auto& [name, value] : options) {
    Setter setter(name, {value});
    model.params->options(setter);
    EXPECT_TRUE(setter.found) << name;
  }
  return model;
}

TEST(Detectors, SsdliteDetectsAsTorchvision) {
  const GoldenFile want = read_golden("ssdlite");
  CapturedDetector model(ssdlite(), Mode::kEvaluation, {3, 3, 64, 96});
  const auto values = interpret(model.graph, model.feeds);
  const auto result = [&](std::string_view name) -> const RefArray& { return values.at(model.results.at(std::string(name)).id()); };
  const int64_t most = result(kDetectedScores).shape[1];
  for (int64_t n = 0; n < 3; ++n) {
    const auto count = static_cast<int64_t>(result(kDetectedCount)[n]);
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

TEST(Detectors, SsdliteTrainsAsTorchvision) {
  const GoldenFile want = read_golden("ssdlite");
  CapturedDetector model(ssdlite(), Mode::kTraining, {3, 3, 64, 96});
  const Value boxes = model.loss("bbox_regression"), classes = model.loss("classification"), loss = add(boxes, classes);
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs)
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, loss.id(), wanted);
  const auto values = interpret(model.graph, model.feeds);
  expect_golden("bbox_regression", want.at("loss:bbox_regression"), values.at(boxes.id()).v, 1e-9);
  expect_golden("classification", want.at("loss:classification"), values.at(classes.id()).v, 1e-9);
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

TEST(Detectors, ABatchWithoutObjectsHasNoLoss) {
  CapturedDetector model(ssdlite(), Mode::kTraining, {2, 3, 64, 64});
  model.feeds["offsets"].v = {0, 0, 0};
  const Value boxes = model.loss("bbox_regression"), classes = model.loss("classification");
  const auto values = interpret(model.graph, model.feeds);
  EXPECT_EQ(values.at(boxes.id())[0], 0);
  EXPECT_EQ(values.at(classes.id())[0], 0);
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
      specs = CapturedDetector(component, Mode::kTraining, {2, size[0], size[1], size[2]}).specs;
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
  EXPECT_EQ(models, 2u);
}

TEST(Detectors, TrainingNeedsObjects) {
  Graph graph;
  Builder b(graph);
  try {
    build_model(b, ssdlite(), NamedValues{{"input", b.input("input", {.shape = {2, 3, 64, 64}})}});
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
  const Value boxes = BoxCoder{.xy = 10, .wh = 5}.decode(codes, anchors, 1000, 2000);
  const auto values =
      interpret(graph, {{"codes", {{1, 2, 4}, {0, 0, 60, -60, 5, -10, 0, 5}}}, {"anchors", {{2, 4}, {600, 400, 620, 420, 0, 0, 40, 40}}}});
  const double half = 10 * 1000.0 / 16, small = 10 * std::exp(-12.0), tall = 20 * std::exp(1.0);
  const std::vector<double> want{std::max(610 - half, 0.0), 410 - small, 610 + half, 410 + small, 20, 0, 60, std::max(0.0, -20 + tall)};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values.at(boxes.id()).v[i], want[i], 1e-9) << i;
}

}  // namespace
}  // namespace galley
