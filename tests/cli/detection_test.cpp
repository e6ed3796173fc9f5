// Detection from files to boxes: a small detector is trained on VOC's and COCO's form of the same images, evaluated, and draws its boxes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

constexpr int kWidth = 96, kHeight = 64;

std::string number(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

using Box = std::array<int, 4>;  // left, top, right, bottom

/// A BMP of a gray image with a red or a blue rectangle.
std::string scene(const Box& box, bool red) {
  std::string rows;
  for (int y = kHeight - 1; y >= 0; --y) {
    for (int x = 0; x < kWidth; ++x) {
      const bool inside = x >= box[0] && x < box[2] && y >= box[1] && y < box[3];
      rows +=
          inside ? (red ? std::string{20, 20, static_cast<char>(230)} : std::string{static_cast<char>(230), 20, 20}) : std::string(3, 120);
    }
  }
  return "BM" + number(static_cast<uint32_t>(54 + rows.size()), 4) + number(0, 4) + number(54, 4) + number(40, 4) + number(kWidth, 4) +
         number(kHeight, 4) + number(1, 2) + number(24, 2) + std::string(24, '\0') + rows;
}

/// Images with one rectangle each, their annotations in both forms, and a recipe for each form.
class DetectionFiles {
 public:
  explicit DetectionFiles(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_ + "/JPEGImages");
    std::filesystem::create_directories(folder_ + "/Annotations");
    Json coco{{"images", Json::array()},
              {"annotations", Json::array()},
              {"categories", Json::parse(R"([{"id": 1, "name": "red", "keypoints": ["left", "right"]}, {"id": 2, "name": "blue"}])")}};
    for (int i = 0; i < 8; ++i) {
      const int left = 4 + 9 * i % 50, top = 3 + 13 * i % 30;
      const Box box{left, top, left + 30 + 4 * (i % 3), top + 26 - 3 * (i % 2)};
      const bool red = i % 2 == 0;
      const std::string name = "s" + std::to_string(i);
      write_text(folder_ + "/JPEGImages/" + name + ".jpg", scene(box, red));
      std::string xml = "<annotation><size><width>96</width><height>64</height></size>\n<object><name>" +
                        std::string(red ? "red" : "blue") + "</name><bndbox>";
      const char* corners[] = {"xmin", "ymin", "xmax", "ymax"};
      for (size_t c = 0; c < 4; ++c) xml += std::string("<") + corners[c] + ">" + std::to_string(box[c]) + "</" + corners[c] + ">";
      write_text(folder_ + "/Annotations/" + name + ".xml", xml + "</bndbox></object></annotation>\n");
      coco["images"].push_back({{"id", i}, {"file_name", name + ".jpg"}, {"width", kWidth}, {"height", kHeight}});
      coco["annotations"].push_back({{"id", i + 1},
                                     {"image_id", i},
                                     {"category_id", red ? 1 : 2},
                                     {"bbox", {box[0], box[1], box[2] - box[0], box[3] - box[1]}},
                                     {"segmentation", {{box[0], box[1], box[2], box[1], box[2], box[3], box[0], box[3]}}},
                                     {"keypoints", {box[0], box[1], red ? 2 : 0, box[2], box[3], red ? 1 : 0}}});
    }
    write_text(folder_ + "/boxes.json", coco.dump());
    write_text(voc(), recipe("{type: voc, classes: [red, blue]}"));
    write_text(this->coco(), recipe("{type: coco, images: JPEGImages, annotations: boxes.json}"));
    write_text(regions(), regions_recipe());
    write_text(instances("maskrcnn"), instances_recipe("maskrcnn", "masks", 3));
    write_text(instances("keypointrcnn"), instances_recipe("keypointrcnn", "keypoints", 3));
  }
  std::string voc() const { return folder_ + "/voc.yaml"; }
  std::string coco() const { return folder_ + "/coco.yaml"; }
  std::string regions() const { return folder_ + "/regions.yaml"; }
  /// A detector with a head for masks or key points.
  std::string instances(const std::string& model) const { return folder_ + "/" + model + ".yaml"; }
  const std::string& folder() const { return folder_; }

 private:
  std::string recipe(const std::string& source) const {
    return "recipe: 1\nname: boxes\nthreads: 2\nmodel: {type: ssdlite320_mobilenet_v3_large, num_classes: 3, detections_per_img: "
           "40}\ndata:\n  root: " +
           folder_ + "\n  train:\n    source: " + source +
           "\n    pipeline: [{type: random_horizontal_flip}, {type: resize, size: [64, 64]}, {type: normalize, mean: 0.5, std: 0.5}]\n  "
           "val:\n    source: " +
           source +
           "\n    pipeline: [{type: resize, size: [64, 64]}, {type: normalize, mean: 0.5, std: 0.5}]\n    batch: 3\n"
           "train: {duration: 300 steps, batch: 8, optimizer: {type: adamw, lr: 0.002}, validate: 300 steps,\n"
           // Small steps at the end let the running statistics of batch norms catch up.
           "  schedule: [{type: cosine, to: 0.001x, duration: 200 steps}, {type: linear, from: 0.001x, to: 0.001x}]}\n"
           "checkpoint: null\nlog: {tensorboard: false}\n";
  }
  /// Faster R-CNN on the images as they are, on a canvas.
  std::string regions_recipe() const {
    const std::string pipeline = "[{type: normalize, mean: 0.5, std: 0.5}, {type: pad_to, size: [64, 128]}]\n";
    return "recipe: 1\nname: regions\nthreads: 2\nmodel: {type: fasterrcnn_mobilenet_v3_large_320_fpn, num_classes: 3,\n"
           "  rpn_pre_nms_top_n_train: 100, rpn_post_nms_top_n_train: 60, box_batch_size_per_image: 16, box_detections_per_img: 20}\n"
           // Statistics of 6 pixels, inside, would need more steps than those of 8.
           "data:\n  padding: batch\n  root: " +
           folder_ + "\n  train:\n    source: {type: voc, classes: [red, blue]}\n    pipeline: " + pipeline +
           "  val:\n    source: {type: voc, classes: [red, blue]}\n    pipeline: " + pipeline +
           "    batch: 3\ntrain: {duration: 120 steps, batch: 4, optimizer: {type: adamw, lr: 0.001}, validate: 120 steps,\n"
           "  schedule: [{type: cosine, to: 0.001x, duration: 80 steps}, {type: linear, from: 0.001x, to: 0.001x}]}\n"
           "checkpoint: null\nlog: {tensorboard: false}\n";
  }
  /// Any score is a detection, as the model is hardly trained.
  std::string instances_recipe(const std::string& model, const std::string& field, int classes) const {
    const std::string source =
        "    source: {type: coco, images: JPEGImages, annotations: boxes.json, renumber: true, " + field + ": true}\n    pipeline: ";
    const std::string pipeline = "{type: normalize, mean: 0.5, std: 0.5}, {type: pad_to, size: [64, 96]}]\n";
    return "recipe: 1\nname: instances\nthreads: 2\nmodel: {type: " + model + "_resnet50_fpn, num_classes: " + std::to_string(classes) +
           ", rpn_pre_nms_top_n_train: 60, rpn_post_nms_top_n_train: 30, rpn_post_nms_top_n_test: 10,\n"
           "  box_batch_size_per_image: 8, box_detections_per_img: 5, box_score_thresh: 0" +
           (field == "keypoints" ? ", num_keypoints: 2" : "") + "}\ndata:\n  root: " + folder_ + "\n  train:\n" + source +
           "[{type: random_horizontal_flip}, " + pipeline + "  val:\n" + source + "[" + pipeline +
           "    batch: 4\ntrain: {duration: 2 steps, batch: 2, optimizer: {type: sgd, lr: 0.001}, validate: 2 steps}\n"
           "checkpoint: null\nlog: {tensorboard: false}\n";
  }
  std::string folder_;
};

Json lines_of(const std::string& text) {
  Json lines = Json::array();
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(Json::parse(text.substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

TEST(Detection, FromAnnotationsToBoxes) {
  const DetectionFiles files(scratch_folder());
  const std::string& folder = files.folder();
  const Outcome trained = run("galley-train", {files.voc(), "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(trained.out);
  EXPECT_TRUE(result["losses"].contains("bbox_regression") && result["losses"].contains("classification")) << result.dump();
  EXPECT_GT(result["metrics"]["map50"].get<double>(), 80) << result.dump() << ": colored rectangles are easy to find";

  // Both forms of the annotations say the same.
  const std::string weights = "weights=" + folder + "/run/weights.safetensors";
  const Outcome voc = run("galley-evaluate", {folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(voc.code, 0) << voc.err;
  const Outcome coco = run("galley-evaluate", {files.coco(), weights, "--format", "json", "-q", "data.val.batch=8"});
  ASSERT_EQ(coco.code, 0) << coco.err;
  const Json one = Json::parse(voc.out), other = Json::parse(coco.out);
  EXPECT_EQ(one["metrics"].size(), 13u) << one.dump();
  for (const auto& [name, value] : one["metrics"].items()) {
    if (name == "loss") {
      EXPECT_NEAR(value.get<double>(), other["metrics"][name].get<double>(), 1e-5) << "the batch does not matter";
    } else {
      EXPECT_EQ(value, other["metrics"][name]) << name;
    }
  }
  EXPECT_TRUE(one["metrics"]["map_large"].is_null()) << "no object is large";
  EXPECT_EQ(one["classes"].size(), 2u);
  EXPECT_EQ(one["classes"][0]["label"], "red");
  EXPECT_EQ(one["classes"][0]["count"], 4);

  const Outcome predicted =
      run("galley-predict", {folder + "/run", folder + "/JPEGImages", "--draw", folder + "/drawn", "--format", "json", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  const Json lines = lines_of(predicted.out);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0]["width"], kWidth);
  EXPECT_EQ(lines[0]["height"], kHeight);
  EXPECT_EQ(lines[1]["detections"][0]["label"], "blue") << lines[1].dump();
  EXPECT_TRUE(std::filesystem::exists(folder + "/drawn/s0.png"));
  // A JPEG is smaller, and can be read.
  const std::string jpeg = folder + "/jpeg/s0.jpg";
  const Outcome drawn =
      run("galley-predict", {folder + "/run", folder + "/JPEGImages", "--draw", folder + "/jpeg", "--draw-format", "jpeg", "-q"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(read_text(jpeg).substr(0, 3), "\xff\xd8\xff");
  EXPECT_EQ(run("galley-predict", {folder + "/run", jpeg, "-q"}).code, 0);
  EXPECT_EQ(run("galley-predict", {folder + "/run", jpeg, "--draw", folder + "/x", "--draw-format", "gif"}).code, 2);

  // Predicted boxes, taken as the truth, are found by the same model in full: predict and evaluate agree on coordinates.
  Json truth = Json::parse(R"({"images": [], "annotations": [], "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]})");
  for (size_t i = 0; i < lines.size(); ++i) {
    truth["images"].push_back({{"id", i}, {"file_name", "s" + std::to_string(i) + ".jpg"}, {"width", kWidth}, {"height", kHeight}});
    double before = 2;
    for (const Json& found : lines[i]["detections"]) {
      const std::vector<double> box = found["box"];
      EXPECT_LE(found["score"].get<double>(), before);
      before = found["score"];
      EXPECT_TRUE(box[0] >= 0 && box[1] >= 0 && box[2] <= kWidth && box[3] <= kHeight) << found.dump();
      truth["annotations"].push_back(
          {{"image_id", i}, {"category_id", found["index"]}, {"bbox", {box[0], box[1], box[2] - box[0], box[3] - box[1]}}});
    }
  }
  write_text(folder + "/found.json", truth.dump());
  const Outcome again = run("galley-evaluate", {files.coco(), weights, "data.val.source.annotations=found.json",
                                                "data.val.source.bad_boxes=skip", "--format", "json", "-q"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_GT(Json::parse(again.out)["metrics"]["map"].get<double>(), 99) << again.out;
}

/// Trains two steps, predicts, and takes the predictions as the truth: then the model finds all of it.
void find_instances(const std::string& model, const std::string& field, const std::string& figure, size_t figures) {
  const DetectionFiles files(scratch_folder());
  const std::string& folder = files.folder();
  const Outcome trained = run("galley-train", {files.instances(model), "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(trained.out);
  EXPECT_TRUE(result["losses"].contains(field == "masks" ? "loss_mask" : "loss_keypoint")) << result.dump();
  EXPECT_EQ(result["metrics"].size(), figures) << result["metrics"].dump();
  const Outcome predicted =
      run("galley-predict", {folder + "/run", folder + "/JPEGImages", "--draw", folder + "/drawn", "--format", "json", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_TRUE(std::filesystem::exists(folder + "/drawn/s0.png"));
  Json truth = Json::parse(R"({"images": [], "annotations": [], "categories": [{"id": 1, "name": "red", "keypoints": ["left", "right"]},
      {"id": 2, "name": "blue"}]})");
  const Json lines = lines_of(predicted.out);
  ASSERT_EQ(lines.size(), 8u);
  for (size_t i = 0; i < lines.size(); ++i) {
    truth["images"].push_back({{"id", i}, {"file_name", "s" + std::to_string(i) + ".jpg"}, {"width", kWidth}, {"height", kHeight}});
    EXPECT_GT(lines[i]["detections"].size(), 0u);
    for (const Json& found : lines[i]["detections"]) {
      const std::vector<double> box = found["box"];
      Json one{{"image_id", i}, {"category_id", found["index"]}, {"bbox", {box[0], box[1], box[2] - box[0], box[3] - box[1]}}};
      if (field == "masks") one["segmentation"] = found["mask"];
      for (const Json& point : found.value("keypoints", Json::array()))
        for (const Json& number : {point[0], point[1], Json(2)}) one["keypoints"].push_back(number);
      truth["annotations"].push_back(one);
    }
  }
  write_text(folder + "/found.json", truth.dump());
  const Outcome again = run("galley-evaluate", {folder + "/run", "data.val.source.annotations=found.json", "data.val.source.bad_boxes=skip",
                                                "--format", "json", "-q"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_GT(Json::parse(again.out)["metrics"][figure].get<double>(), 95) << again.out;
  if (field == "keypoints") return;
  const Outcome without = run("galley-evaluate", {folder + "/run", "data.val.source." + field + "=false", "-q"});
  EXPECT_EQ(without.code, 3) << without.err;
  EXPECT_NE(without.err.find(field + ": true"), std::string::npos) << without.err;
}

TEST(Detection, MasksFromAnnotationsToRunLengths) { find_instances("maskrcnn", "masks", "mask_map", 25); }
TEST(Detection, KeypointsFromAnnotationsToPoints) { find_instances("keypointrcnn", "keypoints", "keypoint_map", 23); }

TEST(Detection, MistakesNameTheirPlace) {
  const DetectionFiles files(scratch_folder());
  const std::string& folder = files.folder();
  const auto expect = [&](const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) {
    std::vector<std::string> all{files.voc(), "-o", folder + "/wrong", "-q"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run("galley-train", all);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " is not in " << outcome.err;
  };
  expect({"data.train.source.classes=red"}, 4, {"Annotations/s1.xml:2", "'blue' is not a class"});
  expect({"model.num_classes=2"}, 3, {"has 3 classes, but the model has 2"});
  expect({"loss=mse"}, 3, {"a detector has its own losses"});
  expect({"task=classification"}, 3, {"the task classification needs outputs"});
  expect({"data.train.pipeline=[{type: auto_augment}, {type: resize, size: [64, 64]}]"}, 3, {"cannot move the boxes"});
  expect({"data.train.batch_transforms=[{type: mixup}]"}, 3, {"batch transforms mix labels"});
  // In JSON, the file, or the command line where an override is wrong.
  const auto expect_place = [&](const std::string& word, const std::string& file, const std::string& key) {
    const Outcome outcome = run("galley-train", {files.voc(), word, "-o", folder + "/wrong", "--format", "json", "-q"});
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    const Json error = Json::parse(outcome.err)["error"];
    EXPECT_EQ(error["file"], file) << outcome.err;
    EXPECT_EQ(error["key"], key) << outcome.err;
  };
  expect_place("data.root=/nowhere", "command line", "data.root");
  expect_place("data.train.source={type: coco, images: JPEGImages, annotations: none.json}", "command line",
               "data.train.source.annotations");
  expect_place("data.val.source.set=missing", "command line", "data.val.source.set");
  write_text(folder + "/JPEGImages/s2.jpg", "BM cut off");
  expect_place("seed=1", folder + "/JPEGImages/s2.jpg", "");
  write_text(folder + "/Annotations/s3.xml", "<?xml version=\"1.0\"?>\n<!DOCTYPE a [<!ENTITY b \"bb\">]>\n<annotation>&b;</annotation>");
  expect({"seed=1"}, 4, {"Annotations/s3.xml:2", "document type declaration"});
}

TEST(Detection, RegionsOnACanvas) {
  const DetectionFiles files(scratch_folder());
  const std::string& folder = files.folder();
  const Outcome trained = run("galley-train", {files.regions(), "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(trained.out);
  for (const char* part : {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"})
    EXPECT_TRUE(result["losses"].contains(part)) << result.dump();
  EXPECT_GT(result["metrics"]["map50"].get<double>(), 80) << result.dump() << ": colored rectangles are easy to find";
  // The sampled anchors and proposals of an evaluation do not depend on the batch.
  const Outcome whole = run("galley-evaluate", {folder + "/run", "--format", "json", "-q", "data.val.batch=8"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Json other = Json::parse(whole.out);
  EXPECT_NEAR(result["metrics"]["loss"].get<double>(), other["metrics"]["loss"].get<double>(), 1e-3) << other.dump();
  EXPECT_NEAR(result["metrics"]["map50"].get<double>(), other["metrics"]["map50"].get<double>(), 0.1);
  // Boxes are in pixels of the file, without the canvas.
  const Outcome predicted = run("galley-predict", {folder + "/run", folder + "/JPEGImages/s0.jpg", "--format", "json", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  const Json line = Json::parse(predicted.out);
  EXPECT_EQ(line["width"], kWidth);
  EXPECT_EQ(line["height"], kHeight);
  ASSERT_FALSE(line["detections"].empty());
  const Json& best = line["detections"][0];
  EXPECT_EQ(best["label"], "red");
  const double want[] = {4, 3, 34, 29};
  // In pixels of the canvas, the right side would be a third, or 11 pixels, further.
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(best["box"][i].get<double>(), want[i], 8) << best.dump();
  for (const Json& found : line["detections"]) {
    EXPECT_LE(found["box"][2].get<double>(), kWidth);
    EXPECT_LE(found["box"][3].get<double>(), kHeight);
  }
  // The canvas does not matter, unless padding counts as pixels.
  const auto predict = [&](const std::string& canvas, const std::string& padding) {
    const Outcome outcome = run("galley-predict", {folder + "/run", folder + "/JPEGImages/s0.jpg", "--format", "json", "-q",
                                                   "data.val.pipeline.1=" + canvas, "data.padding=" + padding});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["detections"];
  };
  const Json inside = predict("{type: pad_to, size: [64, 128]}", "image");
  ASSERT_FALSE(inside.empty());
  for (const char* canvas : {"{type: pad_to, size: [128, 160]}", "{type: pad_to, size: 160, sizes: [64x96, 128x64]}"}) {
    const Json others = predict(canvas, "image");
    ASSERT_EQ(others.size(), inside.size()) << canvas;
    for (size_t d = 0; d < others.size(); ++d) {
      EXPECT_EQ(others[d]["label"], inside[d]["label"]);
      EXPECT_NEAR(others[d]["score"].get<double>(), inside[d]["score"].get<double>(), 1e-4);
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(others[d]["box"][i].get<double>(), inside[d]["box"][i].get<double>(), 0.01) << canvas;
    }
  }
  EXPECT_NE(predict("{type: pad_to, size: [128, 160]}", "batch"), inside);
  // Calibration sees predictions, without the objects of its samples.
  const Outcome quantized =
      run("galley-quantize", {folder + "/run", "-o", folder + "/int8.safetensors", "--evaluate", "--format", "json", "-q"});
  ASSERT_EQ(quantized.code, 0) << quantized.err;
  EXPECT_GT(Json::parse(quantized.out)["metrics"]["quantized"]["map50"].get<double>(), 60) << quantized.out;
  // Statistics inside images cannot be folded.
  const Outcome folded =
      run("galley-train", {files.regions(), "-o", folder + "/folded", "-q", "quantize.method=qat", "data.padding=image"});
  EXPECT_EQ(folded.code, 3) << folded.err;
  EXPECT_NE(folded.err.find("data.padding: batch; or frozen_norm: true"), std::string::npos) << folded.err;
  // A seed draws the same samples each time, and another seed others of the same images.
  const auto digest = [&](const std::string& seed) {
    const Outcome short_run = run("galley-train", {files.regions(), "-o", folder + "/short", "--force", "--format", "json", "-q",
                                                   "train.duration=2 steps", "train.schedule=null", "train.validate=null",
                                                   "data.train.shuffle=false", "weights=" + folder + "/run", "seed=" + seed});
    EXPECT_EQ(short_run.code, 0) << short_run.err;
    return Json::parse(short_run.out)["digest"].get<std::string>();
  };
  const std::string five = digest("5");
  EXPECT_EQ(digest("5"), five);
  EXPECT_NE(digest("6"), five);
}

}  // namespace
}  // namespace galley::testing_cli
