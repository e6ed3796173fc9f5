// Law: average precision equals that of pycocotools and of Pascal VOC's rule. The worlds and figures are from
// tests/golden/tasks/make_detection.py.

#include "libcore/tasks/detection_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/file.h"

namespace galley {
namespace {

using Json = nlohmann::json;

std::array<double, 4> box_of(const Json& json) { return json.get<std::array<double, 4>>(); }

/// An undefined figure is null in the file, and NaN here.
void expect_figure(const std::string& what, double got, const Json& want) {
  if (want.is_null()) {
    EXPECT_TRUE(std::isnan(got)) << what << ": " << got;
  } else {
    EXPECT_NEAR(got, want.get<double>(), 1e-12) << what;
  }
}

TEST(DetectionMetrics, EqualPycocotools) {
  const Json worlds = Json::parse(read_file(GALLEY_SOURCE_DIR "/tests/golden/tasks/detection.json"));
  EXPECT_GE(worlds.size(), 16u);
  for (const auto& [name, world] : worlds.items()) {
    CocoEvaluation coco;
    VocEvaluation voc;
    std::vector<int64_t> ids = world.at("images");
    for (const int64_t id : ids) {
      std::vector<ObjectBox> objects;
      std::vector<DetectedBox> detections;
      for (const Json& object : world.at("objects")) {
        if (object.at("image") != id) continue;
        objects.push_back({.box = box_of(object.at("box")),
                           .label = object.at("label"),
                           .area = object.at("area"),
                           .crowd = object.at("crowd"),
                           .difficult = object.at("difficult")});
      }
      for (const Json& found : world.at("detections"))
        if (found.at("image") == id)
          detections.push_back({.box = box_of(found.at("box")), .score = found.at("score"), .label = found.at("label")});
      coco.add(id, objects, detections);
    }
    // VOC's rule leaves the order of equal scores open; the script takes images by ascending ids.
    std::sort(ids.begin(), ids.end());
    for (const int64_t id : ids) {
      std::vector<ObjectBox> objects;
      std::vector<DetectedBox> detections;
      for (const Json& object : world.at("objects"))
        if (object.at("image") == id)
          objects.push_back({.box = box_of(object.at("box")), .label = object.at("label"), .difficult = object.at("difficult")});
      for (const Json& found : world.at("detections"))
        if (found.at("image") == id)
          detections.push_back({.box = box_of(found.at("box")), .score = found.at("score"), .label = found.at("label")});
      voc.add(objects, detections);
    }
    const CocoFigures f = coco.figures();
    const double got[] = {f.map, f.map50, f.map75, f.map_small, f.map_medium, f.map_large,
                          f.ar1, f.ar10,  f.ar100, f.ar_small,  f.ar_medium,  f.ar_large};
    for (size_t i = 0; i < 12; ++i) expect_figure(cat(name, " figure ", i), got[i], world.at("coco").at(i));
    std::map<std::string, std::vector<double>> classes;
    for (const CocoEvaluation::OfClass& kind : coco.classes()) classes[std::to_string(kind.label)] = {kind.map, kind.map50};
    EXPECT_EQ(classes.size(), world.at("classes").size()) << name;
    for (const auto& [label, figures] : world.at("classes").items())
      for (size_t i = 0; i < 2; ++i) expect_figure(cat(name, " class ", label), classes.at(label).at(i), figures.at(i));
    expect_figure(name + " voc_map", voc.map(false), world.at("voc").at(0));
    expect_figure(name + " voc_map_2007", voc.map(true), world.at("voc").at(1));
  }
}

TEST(DetectionMetrics, TheOrderOfImagesDoesNotMatter) {
  const std::vector<ObjectBox> objects{{.box = {0, 0, 50, 50}, .label = 1, .area = 2500}};
  const std::vector<DetectedBox> right{{.box = {0, 0, 50, 50}, .score = 0.5, .label = 1}},
      wrong{{.box = {90, 90, 9, 9}, .score = 0.5, .label = 1}};
  CocoEvaluation forward, backward;
  forward.add(1, objects, right);
  forward.add(2, objects, wrong);
  backward.add(2, objects, wrong);
  backward.add(1, objects, right);
  EXPECT_EQ(forward.figures().map, backward.figures().map);
  EXPECT_NEAR(forward.figures().map, 51.0 / 101, 1e-12);  // precision 1 up to the recall of 0.5
}

}  // namespace
}  // namespace galley
