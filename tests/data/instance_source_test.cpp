// Masks and key points of objects: what the coco source reads, equal to pycocotools, and what it refuses with its place.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "libcore/base/file.h"
#include "libcore/data/loader.h"
#include "libcore/data/objects.h"
#include "libcore/data/run_lengths.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"

namespace galley {
namespace {

using Json = nlohmann::json;

TEST(RunLengths, EqualPycocotools) {
  const Json entries = Json::parse(read_file(GALLEY_SOURCE_DIR "/tests/golden/data/masks.json"));
  EXPECT_GE(entries.size(), 60u);
  RunLengths before;
  for (size_t n = 0; n < entries.size(); ++n) {
    SCOPED_TRACE(n);
    const Json& entry = entries[n];
    const int64_t height = entry["size"][0], width = entry["size"][1];
    RunLengths mask;
    std::vector<uint8_t> pixels(static_cast<size_t>(height * width));
    if (entry.contains("polygons")) {
      std::vector<RunLengths> parts;
      for (const Json& polygon : entry["polygons"])
        parts.push_back(RunLengths::of_polygon(polygon.get<std::vector<double>>(), height, width));
      mask = united(parts);
    } else {
      for (size_t i = 0; i < pixels.size(); ++i)
        pixels[i] = entry["pixels"][i / static_cast<size_t>(width)].get<std::string>()[i % static_cast<size_t>(width)] == '1';
      mask = RunLengths::of(pixels.data(), height, width);
    }
    const std::string text = entry["text"];
    EXPECT_EQ(mask.text(), text);
    EXPECT_EQ(RunLengths::of_text(text, height, width), mask);
    EXPECT_EQ(mask.area(), entry["area"]);
    EXPECT_EQ(mask.box(), (entry["box"].get<std::array<double, 4>>()));
    std::vector<uint8_t> drawn(pixels.size(), 7);
    mask.draw(drawn.data());
    EXPECT_EQ(RunLengths::of(drawn.data(), height, width).text(), text);
    if (entry.contains("pixels")) {
      EXPECT_EQ(drawn, pixels);
    }
    if (entry.contains("common")) {
      EXPECT_EQ(common_area(mask, before), entry["common"]);
      EXPECT_EQ(common_area(before, mask), entry["common"]);
    }
    before = mask;
  }
}

/// A COCO file of two images of 12 x 8 pixels.
std::string instances_json(const std::string& annotations, const std::string& category = R"({"id": 1, "name": "cat"})") {
  return cat(
      R"({"images": [{"id": 1, "file_name": "a.bmp", "width": 12, "height": 8}, {"id": 2, "file_name": "a.bmp", "width": 12, "height": 8}],
"categories": [)",
      category, "],\n\"annotations\": [\n", annotations, "]}\n");
}

std::string object(const std::string& more, int image = 1) {
  return cat(R"({"image_id": )", image, R"(, "category_id": 1, "bbox": [1, 1, 6, 5])", more.empty() ? "" : ", ", more, "}");
}

std::unique_ptr<Source> open(const TestFolder& folder, const std::string& json, const Coco& given) {
  folder.write("images/a.bmp", bmp_of(1, 2, 3, 12, 8));
  folder.write("objects.json", json);
  Coco options = given;
  options.images = "images";
  options.annotations = "objects.json";
  return options.open({.root = folder.path()});
}

Coco with(bool masks, bool keypoints) {
  Coco options;
  options.masks = masks;
  options.keypoints = keypoints;
  return options;
}

TEST(CocoMasks, AllThreeFormsAreRead) {
  const TestFolder folder;
  const std::string polygon = R"("segmentation": [[1, 1, 7, 1, 7, 6, 1, 6]])";
  const RunLengths rectangle = RunLengths::of_polygon(std::vector<double>{1, 1, 7, 1, 7, 6, 1, 6}, 8, 12);
  std::string numbers;
  for (const uint32_t count : rectangle.counts) numbers += cat(numbers.empty() ? "" : ", ", count);
  const auto source =
      open(folder,
           instances_json(cat(object(polygon), ",\n", object(cat(R"("segmentation": {"size": [8, 12], "counts": [)", numbers, "]}")), ",\n",
                              object(cat(R"("segmentation": {"counts": ")", rectangle.text(), R"(", "size": [8, 12]}, "area": 29.5)"), 2))),
           with(true, false));
  const auto& objects = dynamic_cast<const ObjectSource&>(*source);
  EXPECT_TRUE(objects.has_masks());
  EXPECT_EQ(objects.keypoints(), nullptr);
  for (const ObjectBox& one : {objects.image(0).objects[0], objects.image(0).objects[1], objects.image(1).objects[0]})
    EXPECT_EQ(one.mask, rectangle);
  EXPECT_EQ(objects.image(0).objects[0].area, 30) << "that of the mask";
  EXPECT_EQ(objects.image(1).objects[0].area, 29.5);
  EXPECT_FALSE(dynamic_cast<const ObjectSource&>(*open(folder, instances_json(object(polygon)), {})).has_masks());
}

TEST(CocoMasks, BatchesHaveThemInRowsOfObjects) {
  const TestFolder folder;
  const std::string one = R"("segmentation": [[1, 1, 7, 1, 7, 6, 1, 6]], "keypoints": [3, 4, 2, 0, 0, 0])";
  const std::string other = R"("segmentation": [[0, 0, 2, 0, 2, 8, 0, 8]])";
  std::shared_ptr<const Source> source = open(folder,
                                              instances_json(cat(object(one), ",", object(other), ",", object(one, 2)),
                                                             R"({"id": 1, "name": "cat", "keypoints": ["eye", "tail"]})"),
                                              with(true, true));
  Component resize;
  resize.type = "resize";
  Resize params;
  params.size = {4, 6};
  resize.params = params.clone();
  LoaderOptions options;
  options.order.batch = 2;
  options.order.shuffle = false;
  options.passes = 1;
  DataLoader loader(source, Pipeline({resize}), {}, options);
  const Batch* batch = loader.next();
  ASSERT_NE(batch, nullptr);
  const Tensor &masks = batch->at("masks.values"), &points = batch->at("keypoints.values");
  EXPECT_EQ(masks.shape(), (Shape{4, 4, 6}));
  EXPECT_EQ(masks.dtype(), DType::kU8);
  EXPECT_EQ(batch->at("masks.offsets").to_doubles(), (std::vector<double>{0, 2, 3}));
  // Every second pixel of both axes; the fourth row is empty.
  std::vector<double> want(96, 0);
  for (const size_t row : {0, 2})
    for (size_t i = 0; i < 24; ++i) want[row * 24 + i] = i / 6 >= 1 && i / 6 < 3 && i % 6 >= 1 && i % 6 < 4;
  for (size_t i = 0; i < 24; ++i) want[24 + i] = i % 6 < 1;
  EXPECT_EQ(masks.to_doubles(), want);
  EXPECT_EQ(points.to_doubles(), (std::vector<double>{1.5, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.5, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(CocoKeypoints, NamesAndSkeleton) {
  const TestFolder folder;
  const std::string category = R"({"id": 1, "name": "cat", "keypoints": ["nose", "left_ear", "right_ear"], "skeleton": [[1, 2], [3, 1]]})";
  const auto source = open(folder, instances_json(object(R"("keypoints": [1, 2, 2, 3, 4, 1, 0, 0, 0])"), category), with(false, true));
  const auto& objects = dynamic_cast<const ObjectSource&>(*source);
  ASSERT_NE(objects.keypoints(), nullptr);
  EXPECT_EQ(objects.keypoints()->names, (std::vector<std::string>{"nose", "left_ear", "right_ear"}));
  EXPECT_EQ(objects.keypoints()->skeleton, (std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {2, 0}}));
  EXPECT_EQ(objects.keypoints()->mirrored(), (std::vector<int64_t>{0, 2, 1}));
  EXPECT_EQ(objects.image(0).objects[0].keypoints, (std::vector<float>{1, 2, 2, 3, 4, 1, 0, 0, 0}));
}

void expect_instance_error(const Coco& options, const std::string& annotation, const std::string& part, int line = 4,
                           const std::string& category = R"({"id": 1, "name": "cat", "keypoints": ["eye", "tail"]})") {
  const TestFolder folder;
  try {
    open(folder, instances_json(annotation, category), options);
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.text().find(part), std::string::npos) << part << " is not in: " << error.text();
    EXPECT_EQ(error.place().line, line) << error.text();
  }
}

TEST(CocoMasks, MistakesHaveTheirPlace) {
  const Coco masks = with(true, false);
  const auto given = [&](const std::string& segmentation) { return object(cat(R"("segmentation":)", "\n", segmentation)); };
  const auto broken = [&](const std::string& segmentation, const std::string& part) {
    expect_instance_error(masks, given(segmentation), part, 5);
  };
  expect_instance_error(masks, object(""), "has no 'segmentation', but the source has masks: true");
  broken("[[1, 2, 3, 4]]", "has 4 numbers; expected x and y of at least 3 points");
  broken("[[1, 2, 3, 4, 5, 6, 7]]", "has 7 numbers");
  broken("[]", "has no polygon");
  broken("7", "neither a list of polygons nor");
  broken("[[1, 2, 3, 4, 50, 6]]", "point 3 of a polygon has x 50; the image has 12 x 8 pixels");
  broken("[[1, 2, 3, 4, 5, -6]]", "point 3 of a polygon has y -6");
  broken(R"({"size": [12, 8], "counts": [96]})", "the run lengths are of 8 x 12 pixels, but the image has 12 x 8");
  broken(R"({"size": [8, 12], "counts": [90, 5]})", "the run lengths are of 95 pixels; 12 x 8 are 96");
  broken(R"({"size": [8, 12], "counts": [90, -5]})", "the run length -5 is not in 0..");
  broken(R"({"size": [8, 12]})", "'segmentation' has no 'counts'");
  broken(R"({"size": [8], "counts": []})", "'size' of run lengths must be [height, width]");
  broken(R"({"size": [8, 12], "counts": "85200000"})", "12 x 8 are 96");
  broken(R"({"size": [8, 12], "counts": "P"})", "end inside a number");
  broken(R"({"size": [8, 12], "counts": "8 "})", "the character 2 of the run lengths is not in COCO's alphabet");
  broken(R"({"size": [8, 12], "counts": "PPPPPPPP1"})", "damaged");
  broken(R"({"size": [8, 12], "counts": "i5"})", "more pixels than 12 x 8");
}

TEST(CocoKeypoints, MistakesHaveTheirPlace) {
  const Coco keypoints = with(false, true);
  expect_instance_error(keypoints, object(R"("keypoints": [1, 2])"), "'keypoints' has 2 numbers; expected x, y and visibility of each");
  expect_instance_error(keypoints, object(R"("keypoints": [1, 2, 5, 1, 2, 0])"), "the visibility of a key point is 5");
  expect_instance_error(keypoints, object(R"("keypoints": [1, 2, 1])"), "'keypoints' has 1 points; the category lists 2");
  expect_instance_error(keypoints, object(""), "no category has a list 'keypoints'", 1, R"({"id": 1, "name": "cat"})");
  expect_instance_error(keypoints, object(""), "connects key points 1 and 3; they are numbered from 1 to 2", 2,
                        R"({"id": 1, "name": "cat", "keypoints": ["eye", "tail"], "skeleton": [[1, 3]]})");
  expect_instance_error(keypoints, object(""), "has 1 key points, another one 2", 2,
                        R"({"id": 1, "name": "cat", "keypoints": ["a", "b"]}, {"id": 2, "name": "dog", "keypoints": ["a"]})");
}

}  // namespace
}  // namespace galley
