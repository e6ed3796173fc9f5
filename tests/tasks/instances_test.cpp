// Laws: average precision of masks and key points equals that of pycocotools, and masks are pasted into images as torchvision does it. The
// worlds, figures and masks are from tests/golden/tasks/make_detection.py.

#include "libcore/tasks/instances.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/file.h"
#include "libcore/nn/detection.h"
#include "libcore/tasks/detection_metrics.h"
#include "libcore/tasks/source_collector.h"
#include "libcore/tasks/task.h"

namespace galley {
namespace {

using Json = nlohmann::json;

const Json& golden_instances() {
  static const Json file = Json::parse(read_file(GALLEY_SOURCE_DIR "/tests/golden/tasks/instances.json"));
  return file;
}

TEST(InstanceMetrics, EqualPycocotools) {
  for (size_t n = 0; n < golden_instances()["worlds"].size(); ++n) {
    const Json& world = golden_instances()["worlds"][n];
    const bool masks = world["kind"] == "segm";
    const int64_t height = world["size"][0], width = world["size"][1];
    CocoEvaluation coco(masks ? CocoSubject::kMasks : CocoSubject::kKeypoints);
    const auto mask_of = [&](const Json& item) {
      return masks ? RunLengths::of_text(item["segmentation"]["counts"].get<std::string>(), height, width) : RunLengths();
    };
    for (int64_t image = 1; image <= world["images"]; ++image) {
      std::vector<ObjectBox> objects;
      std::vector<DetectedBox> detections;
      for (const Json& object : world["objects"]) {
        if (object["image_id"] != image) continue;
        objects.push_back({.box = object["bbox"].get<std::array<double, 4>>(),
                           .label = object["category_id"],
                           .area = object["area"],
                           .crowd = object["iscrowd"] == 1,
                           .mask = mask_of(object),
                           .keypoints = object.value("keypoints", std::vector<float>())});
      }
      for (const Json& found : world["detections"]) {
        if (found["image_id"] != image) continue;
        DetectedBox box{.score = found["score"], .label = found["category_id"], .mask = mask_of(found)};
        const auto numbers = found.value("keypoints", std::vector<double>());
        for (size_t i = 0; i < numbers.size(); ++i)
          if (i % 3 < 2) box.keypoints.push_back(numbers[i]);
        detections.push_back(box);
      }
      coco.add(image, objects, detections);
    }
    const CocoFigures f = coco.figures();
    const std::vector<double> got =
        masks ? std::vector<double>{f.map, f.map50, f.map75, f.map_small, f.map_medium, f.map_large,
                                    f.ar1, f.ar10,  f.ar100, f.ar_small,  f.ar_medium,  f.ar_large}
              : std::vector<double>{f.map, f.map50, f.map75, f.map_medium, f.map_large, f.ar100, f.ar50, f.ar75, f.ar_medium, f.ar_large};
    ASSERT_EQ(got.size(), world["figures"].size());
    for (size_t i = 0; i < got.size(); ++i) {
      const Json& want = world["figures"][i];
      // Coordinates of objects are float32 here and double there.
      if (want.is_null()) {
        EXPECT_TRUE(std::isnan(got[i])) << n << " figure " << i;
      } else {
        EXPECT_NEAR(got[i], want.get<double>(), 1e-9) << n << " figure " << i;
      }
    }
  }
}

TEST(InstanceMetrics, SigmasOfKeyPointsCanBeGiven) {
  // Both points are 10 pixels off: exp(-10^2 / (2 (2 sigma)^2 100^2)) is 0.707 for a sigma of 0.06, above 5 of the 10 thresholds.
  const std::vector<ObjectBox> objects{{.box = {0, 0, 100, 100}, .label = 1, .area = 10000, .keypoints = {20, 20, 2, 60, 60, 2}}};
  const std::vector<DetectedBox> detections{{.box = {0, 0, 100, 100}, .score = 1, .label = 1, .keypoints = {30, 20, 60, 50}}};
  const auto map = [&](const std::vector<double>& sigmas) {
    CocoEvaluation coco(CocoSubject::kKeypoints, sigmas);
    coco.add(1, objects, detections);
    return coco.figures().map;
  };
  EXPECT_NEAR(map({0.06, 0.06}), 0.5, 1e-12);
  EXPECT_NEAR(map({}), 1, 1e-12) << "1 / 2 each";
  EXPECT_EQ(keypoint_sigmas(17)[1], 0.025);
}

TEST(Instances, MasksArePastedAsTorchvisionDoes) {
  const Json& pasted = golden_instances()["pasted"];
  EXPECT_GE(pasted["masks"].size(), 8u);
  for (const Json& mask : pasted["masks"]) {
    const auto cells = mask["cells"].get<std::vector<float>>();
    const RunLengths got =
        mask_in_image(cells.data(), mask["side"], mask["box"].get<std::array<double, 4>>(), pasted["size"][0], pasted["size"][1]);
    EXPECT_EQ(got.text(), mask["text"].get<std::string>()) << mask["box"];
  }
}

std::unique_ptr<Task> task_of(const char* model) {
  Component automatic;
  automatic.type = "auto";
  return make_task(automatic, {.info = model_info(default_model(model)), .output = {.shape = {1, 100, 4}}, .loss = {}});
}

TEST(Instances, MetricsAndTargetsFollowTheModel) {
  const auto has = [](const Task& task, std::string_view name) {
    const auto metrics = task.metrics();
    return std::any_of(metrics.begin(), metrics.end(), [&](const MetricInfo& metric) { return metric.name == name; });
  };
  const auto masks = task_of("maskrcnn_resnet50_fpn"), points = task_of("keypointrcnn_resnet50_fpn"),
             boxes = task_of("fasterrcnn_resnet50_fpn");
  EXPECT_TRUE(has(*masks, "mask_map_small") && !has(*masks, "keypoint_map"));
  EXPECT_TRUE(has(*points, "keypoint_ar75") && !has(*points, "mask_map"));
  EXPECT_TRUE(has(*boxes, "ar_large") && !has(*boxes, "mask_map") && !has(*boxes, "keypoint_map"));
  EXPECT_TRUE(larger_is_better("mask_map") && larger_is_better("keypoint_ar"));
  EXPECT_EQ(field_names(masks->targets()), "boxes, labels, masks");
  EXPECT_EQ(field_names(points->targets()), "boxes, labels, keypoints");
  EXPECT_EQ(find_field(points->targets(), "keypoints")->sample, (std::vector<int64_t>{17, 3}));
  // A source without masks.
  const auto images = open_arrays({{"input", Tensor::of({1, 2}, {0, 2})}}, "arrays");
  EXPECT_THROW(dynamic_cast<SourceCollector&>(*masks->collector({"mask_map"})).begin(*images), Error);
}

/// One detection of the left half of an image of 40 x 80 pixels, which the model saw mirrored and at half its size; with a mask whose
/// right half is set, and two key points.
std::map<std::string, Tensor> results() {
  std::map<std::string, Tensor> results;
  const auto put = [&](const std::string& name, const Shape& shape, const std::vector<double>& values, DType dtype = DType::kF32) {
    Tensor tensor(dtype, shape);
    tensor.from_doubles(values);
    results.emplace(name, std::move(tensor));
  };
  put("boxes", {1, 1, 4}, {20, 0, 40, 20});
  put("scores", {1, 1}, {0.75});
  put("labels", {1, 1}, {1}, DType::kI64);
  put("count", {1}, {1}, DType::kI64);
  std::vector<double> cells;
  for (int i = 0; i < 28 * 28; ++i) cells.push_back(i % 28 >= 14 ? 0.9 : 0.1);
  put("masks", {1, 1, 28, 28}, cells);
  put("keypoints", {1, 1, 2, 3}, {30, 10, 2.5, 35, 12.5, -1});
  return results;
}

TEST(Instances, ArePresentedInTheOriginal) {
  const auto presenter = task_of("maskrcnn_resnet50_fpn")->presenter({.categories = {"__background__", "dog"}});
  Image image(DType::kU8, 40, 80, 3);
  std::fill_n(image.as<uint8_t>(), image.values(), uint8_t{10});
  PixelGrid grid(40, 80);
  grid.flip_horizontal();
  grid.resize(20, 40);
  const Canvas canvas{image, true, grid};
  const Presentation shown = presenter->present(results(), "a", &canvas);
  const Json found = Json::parse(shown.json)["detections"].at(0);
  EXPECT_EQ(found["box"], Json({0.0, 0.0, 40.0, 40.0}));
  EXPECT_EQ(found["keypoints"], Json::parse("[[20.0, 20.0, 2.5], [10.0, 25.0, -1.0]]"));
  EXPECT_EQ(found["mask"]["size"], Json({40, 80}));
  const RunLengths mask = RunLengths::of_text(found["mask"]["counts"].get<std::string>(), 40, 80);
  // The mirrored half. 30 cells, of which the outer ones are 0, are 43 pixels from -1 on: the first pixel of the image is below 0.5.
  EXPECT_EQ(mask.box(), (std::array<double, 4>{1, 1, 19, 39}));
  EXPECT_EQ(mask.area(), 19 * 39);
  ASSERT_TRUE(shown.overlay);
  EXPECT_EQ(shown.overlay->row<uint8_t>(30)[3 * 10], (10 + 128) / 2) << "tinted with the color of class 1 in VOC's palette";
  EXPECT_EQ(shown.overlay->row<uint8_t>(30)[3 * 30], 10);
  EXPECT_EQ(shown.overlay->row<uint8_t>(20)[3 * 20], 128) << "a key point";
  EXPECT_EQ(shown.overlay->row<uint8_t>(25)[3 * 10], (10 + 128) / 2) << "a key point with a logit below 0 is not drawn";
}

TEST(Instances, SkeletonsAreDrawn) {
  const KeypointNames names = usual_keypoints(17);
  EXPECT_EQ(names.names.size(), 17u);
  EXPECT_EQ(names.skeleton.size(), 19u);
  EXPECT_EQ(names.mirrored(), (std::vector<int64_t>{0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15}));
  Image image(DType::kU8, 30, 60, 3);
  std::fill_n(image.as<uint8_t>(), image.values(), uint8_t{0});
  std::vector<double> points(34, 5);
  points[10] = points[11] = 10;  // shoulders 5 and 6
  points[12] = 50;
  points[13] = 20;
  std::vector<bool> shown(17, false);
  shown[5] = shown[6] = true;
  draw_keypoints(image, points, shown, names, {9, 8, 7}, 1);
  EXPECT_EQ(image.row<uint8_t>(15)[3 * 30 + 1], 8) << "between the shoulders";
  EXPECT_EQ(image.row<uint8_t>(5)[3 * 5], 0);
  draw_keypoints(image, {-1000, -1000, 2000, 10}, {true, true}, {{"a", "b"}, {{0, 1}}}, {1, 2, 3}, 2);  // clipped
}

}  // namespace
}  // namespace galley
