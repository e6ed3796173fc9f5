// Laws: the objective of a detector is the sum over max(1, count) of each part; losses and average precision do not depend on how samples
// are batched; boxes of predictions are in pixels of the original image.
#include "libcore/nn/detection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "libcore/data/draw.h"
#include "libcore/data/objects.h"
#include "libcore/tasks/source_collector.h"
#include "libcore/tasks/task.h"

namespace galley {
namespace {

std::unique_ptr<Task> detection(const Component& loss = {}) {
  Component automatic;
  automatic.type = "auto";
  const Component model = default_model("ssdlite320_mobilenet_v3_large");
  return make_task(automatic, {.info = model_info(model), .output = {.shape = {1, 300, 4}}, .loss = loss});
}

TEST(Detection, TaskOfADetector) {
  const auto task = detection();
  ASSERT_NE(task, nullptr);
  EXPECT_EQ(task->name(), "detection");
  EXPECT_EQ(task->classes(), 91);
  EXPECT_TRUE(larger_is_better("map"));
  EXPECT_EQ(metric_text("map50", 12.5), "12.50 %");
  Component loss;
  loss.type = "cross_entropy";
  loss.params = default_model("ssdlite320_mobilenet_v3_large").params->clone();  // any options
  try {
    detection(loss);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("a detector has its own losses"), std::string::npos) << error.text();
  }
}

/// Three images of 100 x 200 pixels with one object each.
class ThreeImages : public ObjectSource {
 public:
  ThreeImages() {
    for (int64_t n = 0; n < 3; ++n) {
      const auto x = 10.0 * static_cast<double>(n);
      images_.push_back(
          {.file = "i", .id = n, .height = 100, .width = 200, .objects = {{.box = {x, 20, 40, 50}, .label = 1, .area = 2000}}});
    }
  }
  int64_t size() const override { return 3; }
  std::vector<FieldType> fields() const override { return {}; }
  Sample read(int64_t) const override { return {}; }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t) const override { return "i"; }
  std::string describe() const override { return "three images"; }
  const ObjectImage& image(int64_t index) const override { return images_[static_cast<size_t>(index)]; }
  const std::vector<std::string>& categories() const override {
    static const std::vector<std::string> names{"__background__", "dog"};
    return names;
  }

 private:
  std::vector<ObjectImage> images_;
};

/// Results of a detector for samples `first` .. `first + rows - 1`, whose one detection is the object, in an image resized to 50 x 50; rows
/// from `valid` on are rubbish.
std::map<std::string, Tensor> results_of(int64_t first, int64_t rows, int64_t valid) {
  std::map<std::string, Tensor> results;
  Tensor boxes(DType::kF32, {rows, 2, 4}), scores(DType::kF32, {rows, 2}), labels(DType::kI64, {rows, 2}), count(DType::kI64, {rows});
  Tensor sum(DType::kF32, {rows}), weight(DType::kF32, {rows});
  for (int64_t n = 0; n < rows; ++n) {
    const auto x = 10.0f * static_cast<float>(first + n);
    const float box[] = {x / 4, 10, (x + 40) / 4, 35};
    std::copy_n(box, 4, boxes.data_as<float>() + n * 8);
    scores.data_as<float>()[n * 2] = n < valid ? 0.9f : std::numeric_limits<float>::quiet_NaN();
    labels.data_as<int64_t>()[n * 2] = 1;
    count.data_as<int64_t>()[n] = 1;
    sum.data_as<float>()[n] = n < valid ? static_cast<float>(first + n + 1) : 1e9f;
    weight.data_as<float>()[n] = 2;
  }
  results.emplace("boxes", boxes);
  results.emplace("scores", scores);
  results.emplace("labels", labels);
  results.emplace("count", count);
  results.emplace("classification.sum", sum);
  results.emplace("classification.count", weight);
  return results;
}

MetricValues evaluated(const std::vector<std::pair<int64_t, int64_t>>& batches) {
  const ThreeImages source;
  const auto collector = detection()->collector({"loss", "map", "map_small", "map_medium", "voc_map"});
  auto& located = dynamic_cast<SourceCollector&>(*collector);
  located.begin(source);
  located.locate([](int64_t height, int64_t width, int64_t) {
    PixelGrid grid(height, width);
    grid.resize(50, 50);
    return std::optional(grid);
  });
  for (const auto& [first, valid] : batches) {
    Batch batch;
    batch.valid = valid;
    for (int64_t n = 0; n < valid; ++n) batch.indices.push_back(first + n);
    collector->add(results_of(first, valid + 1, valid), batch);
  }
  MetricValues values;
  collector->finish(values);
  EXPECT_EQ(collector->classes().size(), 1u);
  EXPECT_EQ(collector->classes()[0].label, "dog");
  EXPECT_EQ(collector->classes()[0].count, 3);
  return values;
}

TEST(Detection, MetricsDoNotDependOnBatches) {
  const MetricValues together = evaluated({{0, 3}}), apart = evaluated({{2, 1}, {0, 2}});
  ASSERT_EQ(together.size(), 5u);
  for (const auto& [name, value] : together) {
    if (name == "map_small") {
      EXPECT_TRUE(std::isnan(value)) << "there are no small objects";
      continue;
    }
    EXPECT_EQ(value, find_metric(apart, name)) << name;
  }
  EXPECT_NEAR(find_metric(together, "loss"), (1.0 + 2 + 3) / 6, 1e-12);
  EXPECT_NEAR(find_metric(together, "map"), 100, 1e-9) << "boxes are in pixels of the original";
  EXPECT_NEAR(find_metric(together, "map_medium"), 100, 1e-9);
}

TEST(Detection, PlansTheMemoryOfItsMetrics) {
  // 5000 images with 300 detections each of at least 100 bytes.
  const auto boxes = detection()->collector({"loss", "map"});
  const std::map<std::string, TensorType> results{{"scores", {.shape = {8, 300}}}};
  const int64_t planned = boxes->bytes(5000, results);
  EXPECT_GT(planned, 5000 * 300 * 100);
  EXPECT_LT(planned, 5000 * 300 * 400);
  EXPECT_EQ(boxes->bytes(10000, results), 2 * planned);
  EXPECT_GT(detection()->collector({"loss", "mask_map"})->bytes(5000, results), planned);
}

TEST(Detection, SourcesWithoutBoxesAreRefused) {
  class Plain : public ThreeImages {};
  const auto collector = detection()->collector({"loss"});
  const auto images = open_arrays({{"input", Tensor::of({1, 2}, {0, 2})}}, "arrays");
  try {
    dynamic_cast<SourceCollector&>(*collector).begin(*images);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("need a source with boxes"), std::string::npos) << error.text();
  }
}

TEST(Detection, PresentsBoxesInTheOriginal) {
  const auto presenter = detection()->presenter({.categories = {"__background__", "dog"}, .min_score = 0.5});
  EXPECT_TRUE(presenter->needs_image());
  Image image(DType::kU8, 100, 200, 3);
  std::fill_n(image.as<uint8_t>(), image.values(), uint8_t{7});
  PixelGrid grid(100, 200);
  grid.flip_horizontal();
  grid.resize(50, 50);
  const Canvas canvas{image, true, grid};
  const Presentation shown = presenter->present(results_of(0, 1, 1), "a", &canvas);
  const auto json = nlohmann::json::parse(shown.json);
  EXPECT_EQ(json["width"], 200);
  EXPECT_EQ(json["height"], 100);
  ASSERT_EQ(json["detections"].size(), 1u);
  EXPECT_EQ(json["detections"][0]["box"], nlohmann::json({160.0, 20.0, 200.0, 70.0}));
  EXPECT_EQ(json["detections"][0]["label"], "dog");
  EXPECT_EQ(json["detections"][0]["index"], 1);
  EXPECT_NEAR(json["detections"][0]["score"].get<double>(), 0.9, 1e-6);
  EXPECT_EQ(shown.rows.at(0).at(1), "dog");
  ASSERT_TRUE(shown.overlay);
  EXPECT_EQ(shown.overlay->row<uint8_t>(50)[160 * 3], 128) << "the border has the color of class 1 in VOC's palette";
  EXPECT_EQ(shown.overlay->row<uint8_t>(50)[180 * 3], 7) << "inside, the image stays";
  const Canvas unknown{image, false, std::nullopt};
  EXPECT_THROW(presenter->present(results_of(0, 1, 1), "a", &unknown), Error);
  const Canvas plain{image, false, grid};
  EXPECT_FALSE(presenter->present(results_of(0, 1, 1), "a", &plain).overlay);
  EXPECT_THROW(presenter->present(results_of(0, 1, 0), "a", &plain), Error) << "a score that is not a number";
}

TEST(Drawing, TextHasTheWidthThatItSays) {
  for (const std::string text : {"person 0.98", "Käse", "日", "a\xff", ""}) {
    Image image(DType::kU8, 40, 400, 3);
    std::fill_n(image.as<uint8_t>(), image.values(), uint8_t{0});
    draw_text(image, 50, 8, text, {255, 255, 255}, 20);
    int64_t left = image.width(), right = 0;
    for (int64_t y = 0; y < image.height(); ++y) {
      for (int64_t x = 0; x < image.width(); ++x) {
        if (image.row<uint8_t>(y)[3 * x] == 0) continue;
        left = std::min(left, x);
        right = std::max(right, x + 1);
        EXPECT_TRUE(y >= 8 && y < 28) << text << " row " << y;
      }
    }
    if (text.empty()) {
      EXPECT_EQ(right, 0);
      continue;
    }
    EXPECT_NEAR(static_cast<double>(left), 50, 3) << text;
    EXPECT_NEAR(static_cast<double>(right), 50 + static_cast<double>(text_width(text, 20)), 4) << text;
  }
  Image tiny(DType::kU8, 3, 3, 3);
  draw_text(tiny, -5, -5, "clipped on all sides", {1, 2, 3}, 12);
  draw_box(tiny, -10, -10, 10, 10, {1, 2, 3}, 2);
}

}  // namespace
}  // namespace galley
