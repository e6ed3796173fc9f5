// Law: the objective of optical flow is the paper's, and the metrics are torchvision's: distances of all known pixels.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/backends/ref/ref.h"
#include "libcore/data/flow.h"
#include "libcore/nn/loss.h"
#include "libcore/tasks/capture.h"
#include "libcore/tasks/task.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/golden_model.h"

namespace galley {
namespace {

std::unique_ptr<Task> flow_task(const Shape& output, Component loss = {}) {
  const ModelInfo info = model_info(default_model("raft_small"));
  Component automatic;
  automatic.type = "auto";
  return make_task(automatic, {.info = info, .output = {.shape = output}, .loss = std::move(loss)});
}

// The golden file has torchvision's flows for these weights, and the loss of its formula (tests/golden/models/make_flow.py).
TEST(OpticalFlow, TheObjectiveIsThePapers) {
  Component model = default_model("raft_small");
  const std::vector<std::pair<std::string, std::vector<double>>> options{{"num_flow_updates", {3}},
                                                                         {"feature_encoder_layers", {8, 8, 12, 16, 20}},
                                                                         {"context_encoder_layers", {8, 8, 12, 16, 24}},
                                                                         {"corr_block_num_levels", {2}},
                                                                         {"corr_block_radius", {2}},
                                                                         {"motion_encoder_corr_layers", {12}},
                                                                         {"motion_encoder_flow_layers", {8, 6}},
                                                                         {"motion_encoder_out_channels", {11}},
                                                                         {"recurrent_block_hidden_state_size", {10}},
                                                                         {"flow_head_hidden_size", {9}}};
  for (const auto& [name, values] : options) {
    Setter setter(name, values);
    model.params->options(setter);
  }
  const int64_t pixels = 32 * 40;
  const std::unique_ptr<Task> task = flow_task({1, 2, 32, 40});
  ASSERT_EQ(task->name(), "optical_flow");
  EXPECT_EQ(task->targets().at(0).sample, (std::vector<int64_t>{3, 32, 40}));
  const ModelInfo info = model_info(model);
  const TensorType image{.shape = {2, 3, 32, 40}};
  for (const TaskMode mode : {TaskMode::kTrain, TaskMode::kEvaluate}) {
    Graph graph;
    TaskCapture capture(graph, model, info, {{"image1", image}, {"image2", image}, {"flow", image}},
                        {.mode = mode == TaskMode::kTrain ? Mode::kTraining : Mode::kEvaluation});
    task->capture(mode, capture);
    capture.finish();
    std::map<std::string, RefArray> feeds = golden_feeds(capture.take_parameters());
    for (const char* name : {"image1", "image2"}) feeds[name] = {image.shape, golden_values(name, image.shape.elements())};
    const std::vector<double> target = golden_values("target", 4 * pixels, 5), valid = golden_values("valid", 2 * pixels);
    RefArray flow{image.shape, {}};
    for (int64_t n = 0; n < 2; ++n) {
      flow.v.insert(flow.v.end(), target.begin() + n * 2 * pixels, target.begin() + (n + 1) * 2 * pixels);
      for (int64_t p = n * pixels; p < (n + 1) * pixels; ++p) flow.v.push_back(valid[static_cast<size_t>(p)] > -0.5 ? 1 : 0);
    }
    feeds["flow"] = flow;
    const auto values = interpret(graph, feeds);
    // Instance norms and no batch norms: training and evaluation give the same flows.
    const double want = read_golden("raft_small").at("loss").values.at(0);
    if (mode == TaskMode::kTrain) {
      EXPECT_NEAR(values.at(graph.find_output("loss")).v[0], want, 1e-8 * want);
    } else {
      const std::vector<double>& losses = values.at(graph.find_output("losses")).v;
      EXPECT_NEAR((losses.at(0) + losses.at(1)) / 2, want, 1e-8 * want);
      EXPECT_EQ(values.at(graph.find_output("errors")).shape, (Shape{2, 32, 40}));
    }
  }
}

TEST(OpticalFlow, MetricsAreOfKnownPixels) {
  const std::unique_ptr<Task> task = flow_task({1, 2, 1, 4});
  const auto collector = task->collector({"loss", "epe", "1px", "3px", "5px"});
  Batch batch;
  batch.valid = 2;
  // The third row is not valid, the fourth pixel of the first is unknown.
  batch.fields.emplace("flow", Tensor::of({3, 3, 1, 4}, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0,
                                                         0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  collector->add({{"losses", Tensor::of({3}, {2, 4, 100})}, {"errors", Tensor::of({3, 1, 4}, {0.5, 1, 2, 99, 3, 4.5, 5, 0, 9, 9, 9, 9})}},
                 batch);
  MetricValues values;
  collector->finish(values);
  EXPECT_EQ(find_metric(values, "loss"), 3);
  EXPECT_NEAR(find_metric(values, "epe"), (0.5 + 1 + 2 + 3 + 4.5 + 5 + 0) / 7, 1e-12);
  EXPECT_NEAR(find_metric(values, "1px"), 100 * 2.0 / 7, 1e-12);  // below, not at most
  EXPECT_NEAR(find_metric(values, "3px"), 100 * 4.0 / 7, 1e-12);
  EXPECT_NEAR(find_metric(values, "5px"), 100 * 6.0 / 7, 1e-12);
  EXPECT_FALSE(larger_is_better("epe"));
  EXPECT_TRUE(larger_is_better("3px"));
}

// An image of 4 x 2 pixels that the model saw at twice the width, without its first row.
TEST(OpticalFlow, TheFlowIsPlacedOnTheImage) {
  const std::unique_ptr<Presenter> presenter = flow_task({1, 2, 1, 8})->presenter({});
  const Image image(DType::kU8, 2, 4, 3);
  PixelGrid seen(2, 4);
  seen.crop({.top = 1, .left = 0, .height = 1, .width = 4});
  seen.resize(1, 8);
  Canvas canvas{image, true, seen};
  const Tensor flow = Tensor::of({1, 2, 1, 8}, {6, 6, 6, 6, 6, 6, 6, 6, 4, 4, 4, 4, 4, 4, 4, 4});
  const Presentation shown = presenter->present({{"output", flow}}, "a", &canvas);
  const Image placed = parse_flo(std::as_bytes(std::span(shown.flow_file)), "a.flo");
  ASSERT_EQ(placed.str(), "f32 [3,2,4]");
  for (int64_t x = 0; x < 4; ++x) {
    EXPECT_EQ(placed.row<float>(0)[3 * x + 2], 0);
    EXPECT_EQ(placed.row<float>(1)[3 * x], 3);  // half as many pixels
    EXPECT_EQ(placed.row<float>(1)[3 * x + 1], 4);
    EXPECT_EQ(placed.row<float>(1)[3 * x + 2], 1);
  }
  EXPECT_EQ(nlohmann::json::parse(shown.json)["mean"].get<double>(), 5);
  EXPECT_EQ(shown.overlay->str(), "u8 [3,2,4]");
  EXPECT_THROW(presenter->present({{"output", Tensor::of({1, 2, 1, 1}, {NAN, 0})}}, "a", nullptr), Error);
}

TEST(OpticalFlow, ALossOfTheRecipeIsRefused) {
  try {
    flow_task({1, 2, 8, 8}, make_loss("mse"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
  }
}

}  // namespace
}  // namespace galley
