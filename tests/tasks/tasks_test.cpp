// Laws: the task of a model and a loss; objectives and metrics equal PyTorch's; fields bind by name, and errors name missing fields.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "libcore/backends/ref/ref.h"
#include "libcore/data/codec.h"
#include "libcore/nn/layer_spec.h"
#include "libcore/nn/loss.h"
#include "libcore/passes/differentiate.h"
#include "libcore/tasks/metric_sums.h"

namespace galley {
namespace {

Component automatic() {
  Component component;
  component.type = "auto";
  return component;
}

Component named_task(std::string_view type) {
  for (const ComponentKind& kind : tasks()) {
    if (kind.type != type) continue;
    Component component;
    component.type = kind.type;
    component.params = kind.make();
    return component;
  }
  return {};
}

TaskModel model_of(const std::string& loss, Shape output, ModelOutput kind = ModelOutput::kOther) {
  return {.info = {.family = "layers", .output = kind}, .output = {.shape = output}, .loss = loss.empty() ? Component() : make_loss(loss)};
}

std::string auto_name(const TaskModel& model) {
  const std::unique_ptr<Task> task = make_task(automatic(), model);
  return task == nullptr ? "" : std::string(task->name());
}

TEST(Tasks, AutoIsWhatTheModelAndTheLossSay) {
  EXPECT_EQ(auto_name(model_of("", {1, 10}, ModelOutput::kClasses)), "classification");
  EXPECT_EQ(auto_name(model_of("", {1, 5, 10}, ModelOutput::kTokens)), "language_modeling");
  EXPECT_EQ(auto_name(model_of("cross_entropy", {1, 5, 10}, ModelOutput::kTokens)), "language_modeling");
  EXPECT_EQ(auto_name(model_of("", {1, 5, 10}, ModelOutput::kMaskedTokens)), "language_modeling");
  EXPECT_EQ(auto_name(model_of("", {1, 5, 10}, ModelOutput::kTokenClasses)), "token_classification");
  EXPECT_EQ(auto_name(model_of("", {1, 5}, ModelOutput::kSpans)), "question_answering");
  EXPECT_EQ(auto_name(model_of("bce_with_logits", {1, 10}, ModelOutput::kClasses)), "multi_label");
  EXPECT_EQ(auto_name(model_of("mse", {1, 10})), "regression");
  EXPECT_EQ(auto_name(model_of("cross_entropy", {1, 10})), "classification");
  EXPECT_EQ(auto_name(model_of("cross_entropy", {1, 10, 4, 4})), "segmentation");
  TaskModel last = model_of("cross_entropy", {1, 5, 10});
  EXPECT_EQ(auto_name(last), "segmentation") << "classes in dimension 1: one class per position";
  last.loss = over_last_dimension(last.loss);
  EXPECT_EQ(auto_name(last), "language_modeling");
  EXPECT_EQ(auto_name(model_of("", {1, 10})), "") << "neither the model nor a loss says anything: tensors only";
  EXPECT_EQ(make_task(Component(), model_of("cross_entropy", {1, 10})), nullptr) << "task: null";
  EXPECT_EQ(make_task(named_task("classification"), model_of("", {1, 10}))->classes(), 10);
}

TEST(Tasks, WhatDoesNotFitIsRefused) {
  const auto error_of = [](std::string_view task, const TaskModel& model) {
    try {
      make_task(named_task(task), model);
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      return error.text();
    }
  };
  EXPECT_NE(error_of("classification", model_of("mse", {1, 10})).find("needs the loss cross_entropy, but the recipe has mse"),
            std::string::npos);
  EXPECT_NE(error_of("classification", model_of("", {1, 10, 4, 4})).find("outputs [N,classes]"), std::string::npos);
  EXPECT_NE(error_of("segmentation", model_of("", {1, 10})).find("outputs [N,classes,H,W]"), std::string::npos);
  EXPECT_NE(error_of("language_modeling", model_of("", {1, 10})).find("outputs [N,T,vocabulary]"), std::string::npos);
}

LayerSpec layer(const std::string& type, std::vector<std::string> inputs) {
  LayerSpec spec;
  spec.inputs = std::move(inputs);
  for (const ComponentKind& kind : layer_kinds()) {
    if (kind.type != type) continue;
    spec.layer.type = kind.type;
    spec.layer.params = kind.make();
  }
  return spec;
}

/// sum = left + right, twice = sum + sum.
Component two_inputs(std::vector<std::string> outputs) {
  LayersModel params;
  static_cast<InputSpec&>(params.inputs.add("left")).shape = {3};
  static_cast<InputSpec&>(params.inputs.add("right")).shape = {3};
  params.outputs = std::move(outputs);
  LayerSpec sum = layer("add", {"left", "right"}), twice = layer("add", {"sum", "sum"});
  sum.name = "sum";
  twice.name = "twice";
  params.layers.items.push_back(sum.clone());
  params.layers.items.push_back(twice.clone());
  Component model;
  model.type = "layers";
  model.params = params.clone();
  return model;
}

TEST(TaskCapture, FieldsBindToInputsByName) {
  const Component model = two_inputs({"twice", "sum"});
  const ModelInfo info = model_info(model);
  ASSERT_EQ(info.all_inputs().size(), 2u);
  const std::map<std::string, TensorType> fields{{"left", {.shape = {2, 3}}}, {"right", {.shape = {2, 3}}}, {"target", {.shape = {2, 3}}}};
  Graph graph;
  TaskCapture capture(graph, model, info, fields, {.mode = Mode::kEvaluation});
  capture_results(capture);
  EXPECT_EQ(capture.finish().results, (std::vector<std::string>{"twice", "sum"}));
  const auto values = interpret(graph, {{"left", {{2, 3}, {1, 2, 3, 4, 5, 6}}}, {"right", {{2, 3}, {10, 20, 30, 40, 50, 60}}}});
  EXPECT_EQ(values.at(graph.find_output("twice")).v, (std::vector<double>{22, 44, 66, 88, 110, 132}));
  EXPECT_EQ(graph.find_input("target"), kNoValue) << "a field that nothing asks for is not fed";
  Graph other;
  TaskCapture missing(other, model, info, {{"left", {.shape = {2, 3}}}}, {.mode = Mode::kEvaluation});
  try {
    missing.model();
    ADD_FAILURE();
  } catch (const Error& error) {
    for (const char* word : {"field `right`", "they have left", "rename"})
      EXPECT_NE(error.text().find(word), std::string::npos) << error.text();
  }
  Graph third;
  const Component unknown = two_inputs({"som"});
  TaskCapture outputs(third, unknown, info, fields, {.mode = Mode::kEvaluation});
  try {
    outputs.model();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("did you mean 'sum'"), std::string::npos) << error.text();
  }
}

TEST(TaskCapture, TheObjectiveIsTheWeightedSumOfItsParts) {
  const Component model = two_inputs({});
  const ModelInfo info = model_info(model);
  const std::map<std::string, TensorType> fields{{"left", {.shape = {2, 3}}}, {"right", {.shape = {2, 3}}}, {"a", {}}, {"b", {}}};
  Graph graph;
  TaskCapture capture(graph, model, info, fields, {});
  capture.loss("first", capture.field("a"));
  capture.loss("second", capture.field("b"), 0.3);
  EXPECT_EQ(capture.finish().losses, (std::vector<std::string>{"first", "second"}));
  const auto values = interpret(graph, {{"a", {{}, {2}}}, {"b", {{}, {5}}}});
  EXPECT_DOUBLE_EQ(values.at(graph.find_output("loss")).v[0], 3.5);
  EXPECT_DOUBLE_EQ(values.at(graph.find_output("loss.second")).v[0], 5) << "without its weight";
}

nlohmann::json golden_segmentation() {
  return nlohmann::json::parse(std::ifstream(GALLEY_SOURCE_DIR "/tests/golden/tasks/segmentation.json"));
}

/// A model whose output is its input.
Component identity(const Shape& sample) {
  LayersModel params;
  params.input.emplace().shape.assign(sample.begin(), sample.end());
  params.layers.items.push_back(layer("identity", {}).clone());
  Component model;
  model.type = "layers";
  model.params = params.clone();
  return model;
}

TEST(Segmentation, ObjectiveGradientAndMetricsEqualPyTorch) {
  const nlohmann::json want = golden_segmentation();
  const std::vector<int64_t> sizes = want["shape"];
  const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3]}, pixels{sizes[0], sizes[2], sizes[3]};
  const std::vector<double> logits = want["logits"], labels = want["labels"];
  const Component model = identity({sizes[1], sizes[2], sizes[3]});
  const ModelInfo info = model_info(model);
  const std::unique_ptr<Task> task =
      make_task(automatic(), {.info = info, .output = {.shape = {1, sizes[1], sizes[2], sizes[3]}}, .loss = make_loss("cross_entropy")});
  ASSERT_EQ(task->name(), "segmentation");
  EXPECT_EQ(task->targets(),
            (std::vector<FieldType>{
                {.name = "label", .kind = FieldKind::kMask, .dtype = DType::kI64, .sample = {sizes[2], sizes[3]}, .classes = sizes[1]}}));
  const std::map<std::string, TensorType> fields{{"input", {.shape = shape}}, {"label", {.dtype = DType::kI64, .shape = pixels}}};
  const std::map<std::string, RefArray> feeds{{"input", {shape, logits}}, {"label", {pixels, labels}}};

  Graph training;
  TaskCapture train(training, model, info, fields, {});
  task->capture(TaskMode::kTrain, train);
  train.finish();
  const ValueId loss = training.find_output("loss"), input = training.find_input("input");
  const ValueId gradient = differentiate(training, loss, std::vector<ValueId>{input}).at(input);
  const auto values = interpret(training, feeds);
  EXPECT_NEAR(values.at(loss).v[0], want["mean"].get<double>(), 1e-12);  // sums of 67 numbers in double
  const std::vector<double> slopes = want["gradient"];
  for (size_t i = 0; i < slopes.size(); ++i) ASSERT_NEAR(values.at(gradient).v[i], slopes[i], 1e-14) << i;

  // Batches of two; the second has one valid sample followed by arbitrary values.
  Graph evaluation;
  TaskCapture evaluate(evaluation, model, info, fields, {.mode = Mode::kEvaluation});
  task->capture(TaskMode::kEvaluate, evaluate);
  const CapturedResults results = evaluate.finish();
  const auto outputs = interpret(evaluation, feeds);
  MetricSums metrics(*task, metric_names(*task, {"auto"}), results);
  for (const auto& [first, valid] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 1}}) {
    const auto rows = [&, first = first](const RefArray& array, DType dtype) {
      Shape two = array.shape;
      two[0] = 2;
      Tensor tensor(dtype, two);
      const int64_t row = array.shape.elements() / array.shape[0];
      std::vector<double> part(static_cast<size_t>(2 * row), dtype == DType::kI64 ? 1.0 : 99.0);
      const int64_t there = std::min<int64_t>(2, array.shape[0] - first);
      std::copy_n(array.v.begin() + first * row, there * row, part.begin());
      tensor.from_doubles(part);
      return tensor;
    };
    Batch batch;
    batch.valid = valid;
    batch.fields.emplace("label", rows(feeds.at("label"), DType::kI64));
    metrics.add([&](const std::string& name) { return rows(outputs.at(evaluation.find_output(name)), DType::kF32); }, batch);
  }
  const MetricValues got = metrics.values();
  EXPECT_EQ(got.size(), 3u);
  EXPECT_NEAR(find_metric(got, "loss"), want["mean"].get<double>(), 1e-6);  // pixels' losses as f32
  EXPECT_NEAR(find_metric(got, "miou"), want["miou"].get<double>(), 1e-12);
  EXPECT_NEAR(find_metric(got, "pixel_accuracy"), want["pixel_accuracy"].get<double>(), 1e-12);
}

TEST(Segmentation, PresentsSharesMaskAndOverlay) {
  const std::unique_ptr<Task> task = make_task(automatic(), model_of("cross_entropy", {1, 3, 2, 2}));
  const std::unique_ptr<Presenter> presenter = task->presenter({.categories = {"sky", "road", "tree"}, .top = 2});
  // Classes 0 1 / 1 1.
  const std::map<std::string, Tensor> results{{"output", Tensor::of({1, 3, 2, 2}, {5, 0, 1, 2, 0, 5, 4, 5, 0, 0, 0, 0})}};
  const Presentation bare = presenter->present(results, "a.png", nullptr);
  EXPECT_EQ(
      nlohmann::json::parse(bare.json),
      nlohmann::json::parse(R"({"mask":null,"classes":[{"index":1,"label":"road","share":0.75},{"index":0,"label":"sky","share":0.25}]})"));
  EXPECT_EQ(bare.rows.at(0), (std::vector<std::string>{"1", "1", "road", "0.7500"}));
  EXPECT_TRUE(bare.mask_png.empty());
  Image image(DType::kU8, 4, 4, 3);
  std::fill_n(image.as<uint8_t>(), image.values(), uint8_t{100});
  const Canvas canvas{.image = image, .seen = PixelGrid(4, 4)};
  const Presentation drawn = presenter->present(results, "a.png", &canvas);
  const auto bytes = std::as_bytes(std::span(drawn.mask_png));
  const Image mask = decode_png_values(bytes, "mask");
  EXPECT_EQ(mask.str(), "u8 [1,4,4]");
  for (int64_t y = 0; y < 4; ++y)
    for (int64_t x = 0; x < 4; ++x) EXPECT_EQ(mask.row<uint8_t>(y)[x], y < 2 && x < 2 ? 0 : 1);
  const Image colors = decode_png(bytes, "mask", {});  // Pascal VOC's: black, dark red
  EXPECT_EQ(colors.row<uint8_t>(0)[0], 0);
  EXPECT_EQ((std::vector<int>{colors.row<uint8_t>(3)[9], colors.row<uint8_t>(3)[10], colors.row<uint8_t>(3)[11]}),
            (std::vector<int>{128, 0, 0}));
  EXPECT_EQ((std::vector<int>{drawn.overlay->row<uint8_t>(3)[9], drawn.overlay->row<uint8_t>(3)[10], drawn.overlay->row<uint8_t>(0)[0]}),
            (std::vector<int>{114, 50, 50}));
  // The model received the middle of an image; the rest has no class.
  Image wide(DType::kU8, 4, 8, 1);
  std::fill_n(wide.as<uint8_t>(), wide.values(), uint8_t{100});
  PixelGrid seen(4, 8);
  seen.crop({0, 2, 4, 4});
  const Canvas part{.image = wide, .seen = seen};
  const Presentation partly = presenter->present(results, "a.png", &part);
  const Image placed = decode_png_values(std::as_bytes(std::span(partly.mask_png)), "mask");
  for (int64_t y = 0; y < 4; ++y) {
    for (int64_t x = 0; x < 8; ++x) {
      const bool outside = x < 2 || x >= 6;
      EXPECT_EQ(placed.row<uint8_t>(y)[x], outside ? Mask::kNoClass : y < 2 && x < 4 ? 0 : 1) << y << "," << x;
      EXPECT_TRUE(!outside || partly.overlay->row<uint8_t>(y)[3 * x + 1] == 100) << y << "," << x;
    }
  }
  EXPECT_EQ(partly.rows.at(0), bare.rows.at(0)) << "shares are of the pixels that the model saw";
  const Canvas unknown{.image = wide, .seen = std::nullopt};
  EXPECT_THROW(presenter->present(results, "a.png", &unknown), Error);
  EXPECT_THROW(presenter->present({{"output", Tensor::of({1, 3, 2, 2}, {NAN, 0, 1, 2, 0, 5, 4, 5, 0, 0, 0, 0})}}, "a.png", nullptr), Error);
}

TEST(MultiLabel, PresentsTheLabelsFromTheThresholdOn) {
  const std::unique_ptr<Task> task = make_task(automatic(), model_of("bce_with_logits", {1, 4}));
  const std::map<std::string, Tensor> results{{"output", Tensor::of({1, 4}, {0, -2, 3, -0.5})}};
  const auto labels = [&](const PresentContext& context) {
    const Presentation shown = task->presenter(context)->present(results, "a.png", nullptr);
    std::vector<std::string> names;
    const auto json = nlohmann::json::parse(shown.json);
    for (const auto& item : json["labels"]) names.push_back(item["label"]);
    EXPECT_EQ(names.size(), shown.rows.size());
    return names;
  };
  EXPECT_EQ(labels({.categories = {"cat", "dog", "sun"}}), (std::vector<std::string>{"sun", "cat"})) << "0 is a probability of 0.5";
  EXPECT_EQ(labels({.top = 1, .threshold = 0.1}), (std::vector<std::string>{"2", "0", "3", "1"})) << "a sample has any number of them";
  EXPECT_EQ(labels({.min_score = 0.6}), (std::vector<std::string>{"2"}));
  EXPECT_EQ(labels({.threshold = 0.99}), std::vector<std::string>());
  const Presentation shown = task->presenter({})->present(results, "a.png", nullptr);
  EXPECT_EQ(shown.rows.at(0), (std::vector<std::string>{"1", "2", "2", "0.9526"}));  // 1 / (1 + e^-3)
  EXPECT_THROW(task->presenter({})->present({{"output", Tensor::of({1, 2}, {0, NAN})}}, "a.png", nullptr), Error);
}

TEST(Regression, PresentsItsNumbers) {
  const std::unique_ptr<Task> task = make_task(automatic(), model_of("mse", {1, 3}));
  const Presentation shown = task->presenter({})->present({{"output", Tensor::of({1, 3}, {0.5, -2, 1e6})}}, "a.png", nullptr);
  EXPECT_EQ(nlohmann::json::parse(shown.json), nlohmann::json::parse(R"({"values":[0.5,-2,1e6]})"));
  EXPECT_EQ(shown.rows.at(1), (std::vector<std::string>{"1", "-2"}));
  EXPECT_THROW(task->presenter({})->present({{"output", Tensor::of({1, 1}, {INFINITY})}}, "a.png", nullptr), Error);
  EXPECT_EQ(make_task(automatic(), model_of("mse", {1, 3, 4, 4}))->presenter({}), nullptr) << "arrays are written as tensors";
}

}  // namespace
}  // namespace galley
