// Sources of images with boxes: what they read, and what they refuse with its place.
#include <gtest/gtest.h>

#include "libcore/data/annotations.h"
#include "libcore/data/loader.h"
#include "libcore/data/objects.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"

namespace galley {
namespace {

std::string object_xml(const std::string& name, const std::string& box, const std::string& more = "") {
  const char* corners[] = {"xmin", "ymin", "xmax", "ymax"};
  std::string text = cat("  <object>\n    <name>", name, "</name>\n    ", more, "<bndbox>");
  size_t at = 0;
  for (const char* corner : corners) {
    const size_t end = std::min(box.find(' ', at), box.size());
    text += cat("<", corner, ">", box.substr(at, end - at), "</", corner, ">");
    at = end + 1;
  }
  return text + "</bndbox>\n  </object>\n";
}

std::string voc_xml(const std::string& objects, int width = 40, int height = 30, const std::string& file = "a.jpg") {
  return cat("<annotation>\n  <filename>", file, "</filename>\n  <size><width>", width, "</width><height>", height, "</height></size>\n",
             objects, "</annotation>\n");
}

/// A VOC folder of BMP images of 40 x 30 pixels, whose names end in .jpg, as the decoder looks at the contents.
void write_voc(const TestFolder& folder, const std::string& stem, const std::string& xml) {
  folder.write("Annotations/" + stem + ".xml", xml);
  folder.write("JPEGImages/" + stem + ".jpg", bmp_of(10, 20, 30, 40, 30));
}

std::unique_ptr<Source> open_voc(const TestFolder& folder, const Voc& options = {}) { return options.open({.root = folder.path()}); }

void expect_error(const std::function<void()>& work, const std::vector<std::string>& parts, int line = 0) {
  try {
    work();
    ADD_FAILURE() << parts.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    for (const std::string& part : parts) EXPECT_NE(error.text().find(part), std::string::npos) << part << " is not in: " << error.text();
    EXPECT_TRUE(line == 0 || error.place().line == line) << line << ": " << error.text();
    EXPECT_FALSE(error.place().file.empty()) << error.text();
  }
}

const ObjectImage& image_of(const Source& source, int64_t index) { return dynamic_cast<const ObjectSource&>(source).image(index); }

TEST(VocSource, TakesTheLabelsOfWeights) {
  const TestFolder folder;
  write_voc(folder, "a", voc_xml(object_xml("dog", "3 4 20 25") + object_xml("cat", "1 2 39 30")));
  Voc options;
  options.classes = {"cat", "dog"};
  const auto labels = [&](std::vector<std::string> learned, size_t names) {
    options.learned = std::move(learned);
    const auto source = open_voc(folder, options);
    EXPECT_EQ(source->categories().size(), names);
    const Sample sample = source->read(0);
    EXPECT_EQ(static_cast<double>(image_of(*source, 0).objects[1].label), std::get<Tensor>(*sample.find("labels")).to_doubles()[1]);
    return std::get<Tensor>(*sample.find("labels")).to_doubles();
  };
  EXPECT_EQ(labels({}, 3), (std::vector<double>{2, 1}));
  EXPECT_EQ(labels({"__background__", "person", "dog", "N/A", "cat"}, 5), (std::vector<double>{2, 4}));
  EXPECT_EQ(labels({"__background__", "dog", "horse", "N/A"}, 3), (std::vector<double>{2, 1})) << "cat is not among them";
}

TEST(VocSource, ReadsObjectsAsWritten) {
  const TestFolder folder;
  write_voc(folder, "a", voc_xml(object_xml("dog", "3 4 20 25", "<difficult>1</difficult>") + object_xml("aeroplane", "1.5 2 39 30")));
  write_voc(folder, "b", voc_xml(""));
  const auto source = open_voc(folder);
  ASSERT_EQ(source->size(), 2);
  const ObjectImage& image = image_of(*source, 0);
  ASSERT_EQ(image.objects.size(), 2u);
  EXPECT_EQ(image.objects[0].box, (std::array<double, 4>{3, 4, 17, 21}));
  EXPECT_EQ(image.objects[0].label, 12);
  EXPECT_EQ(image.objects[0].area, 17 * 21);
  EXPECT_TRUE(image.objects[0].difficult);
  EXPECT_EQ(image.objects[1].label, 1);
  EXPECT_EQ(source->categories().size(), 21u);
  EXPECT_EQ(source->categories()[0], "__background__");
  EXPECT_EQ(source->categories()[20], "tvmonitor");
  const Sample sample = source->read(0);
  const auto& boxes = std::get<Boxes>(*sample.find("boxes"));
  EXPECT_EQ(boxes.corners.shape(), (Shape{2, 4}));
  const float* box = boxes.corners.data_as<float>();
  EXPECT_EQ(std::vector<float>(box, box + 8), (std::vector<float>{3, 4, 20, 25, 1.5, 2, 39, 30}));
  EXPECT_EQ(std::get<Tensor>(*sample.find("labels")).data_as<int64_t>()[0], 12);
  EXPECT_EQ(std::get<Boxes>(*source->read(1).find("boxes")).corners.shape(), (Shape{0, 4}));
  const std::vector<FieldType> fields = source->fields();
  EXPECT_EQ(fields[1].capacity, 2);
  EXPECT_EQ(fields[2].classes, 21);
}

TEST(VocSource, OptionsChoose) {
  const TestFolder folder;
  write_voc(folder, "a", voc_xml(object_xml("cup", "3 4 20 25", "<difficult>1</difficult>") + object_xml("pen", "1 2 39 30")));
  write_voc(folder, "b", voc_xml(""));
  write_voc(folder, "c", voc_xml(object_xml("pen", "1 2 3 4")));
  folder.write("ImageSets/Main/some.txt", "c 1\n b -1\n\na\r\n");
  Voc options;
  options.classes = {"pen", "cup"};
  options.set = "some";
  options.empty = EmptyImages::kSkip;
  options.difficult = false;
  const auto source = open_voc(folder, options);
  ASSERT_EQ(source->size(), 2);
  EXPECT_TRUE(source->sample_name(0).ends_with("c.jpg"));
  EXPECT_EQ(image_of(*source, 1).objects.size(), 2u);  // metrics know difficult objects
  EXPECT_EQ(std::get<Boxes>(*source->read(1).find("boxes")).corners.shape()[0], 1);
  EXPECT_EQ(std::get<Tensor>(*source->read(1).find("labels")).data_as<int64_t>()[0], 1);
  EXPECT_NE(source->describe().find("1 image without objects skipped"), std::string::npos) << source->describe();
}

TEST(VocSource, AnAnnotationWithoutASizeTakesTheImages) {
  const TestFolder folder;
  write_voc(folder, "a", "<annotation>" + object_xml("cat", "3 4 20 25") + "</annotation>");
  const auto source = open_voc(folder);
  EXPECT_EQ(image_of(*source, 0).width, 40);
  EXPECT_EQ(image_of(*source, 0).height, 30);
}

TEST(VocSource, MistakesHaveTheirPlace) {
  const TestFolder folder;
  const auto with = [&](const std::string& xml) {
    write_voc(folder, "a", xml);
    return [&folder] { open_voc(folder); };
  };
  expect_error(with(voc_xml(object_xml("dgo", "1 2 3 4"))), {"a.xml:4", "'dgo' is not a class", "did you mean 'dog'?"}, 4);
  expect_error(with(voc_xml(object_xml("cat", "1 2 3 4") + object_xml("dog", "20 4 3 25"))),
               {"the box of 'dog' has no area: x 20 to 3, y 4 to 25"}, 8);
  expect_error(with(voc_xml(object_xml("dog", "3 4 3 25"))), {"has no area"}, 4);
  expect_error(with(voc_xml(object_xml("dog", "3 4 42 25"))), {"lies outside the image of 40 x 30 pixels"}, 4);
  expect_error(with(voc_xml(object_xml("dog", "3 4 x 25"))), {"<xmax> is 'x'; expected a number", "write it as 12"}, 6);
  expect_error(with(voc_xml("<object><name>dog</name></object>")), {"has no <xmin>", "complete it, or remove the object"}, 4);
  expect_error(with(voc_xml("<object></object>")), {"an <object> without <name>"}, 4);
  expect_error(with("<annotation>\n<object>\n</annotation>"), {"mismatched tag", "each <element> needs its </element>"}, 3);
  expect_error(with(""), {"no element found", "the file ends too early"}, 1);
  expect_error(with(voc_xml("<object><name>Tom & Jerry</name></object>")), {"not well-formed", "write & as &amp;"}, 4);
  expect_error(with("<html/>"), {"the root element is not <annotation>", "only annotations of Pascal VOC"});
  expect_error(with("<?xml version=\"1.0\"?>\n<!DOCTYPE a [<!ENTITY b \"bbbbbbbb\">]>\n<annotation>&b;</annotation>"),
               {"a document type declaration is not allowed", "remove it"}, 2);
  std::string deep = "<annotation>";
  for (int i = 0; i < 100000; ++i) deep += "<a>";
  expect_error(with(deep), {"more than 64 elements inside each other", "belongs into this folder"}, 1);
  expect_error(with(cat("<annotation><filename>", std::string(1 << 20, 'x'), "</filename></annotation>")),
               {"a text of more than 65536 bytes"}, 1);
  write_voc(folder, "a", voc_xml("", 41));
  expect_error([&] { open_voc(folder)->read(0); }, {"the image has 40 x 30 pixels, its annotation says 41 x 30"});
  std::filesystem::remove(folder.path() + "/JPEGImages/a.jpg");
  expect_error([&] { open_voc(folder); }, {"a.xml: no image", "a.jpg"});
}

TEST(VocSource, BadBoxesMayBeSkippedAndSlightlyOutsideAreClipped) {
  const TestFolder folder;
  write_voc(folder, "a", voc_xml(object_xml("dog", "20 4 3 25") + object_xml("dog", "3 4 90 25") + object_xml("cat", "-1 4 41 30")));
  Voc options;
  options.bad_boxes = BadBoxes::kSkip;
  const auto source = open_voc(folder, options);
  ASSERT_EQ(image_of(*source, 0).objects.size(), 1u);
  const Sample sample = source->read(0);
  const float* box = std::get<Boxes>(*sample.find("boxes")).corners.data_as<float>();
  EXPECT_EQ(std::vector<float>(box, box + 4), (std::vector<float>{0, 4, 40, 30}));
}

/// A COCO file of two images of 40 x 30 pixels, not in the order of their ids.
std::string coco_json(const std::string& annotations,
                      const std::string& categories = R"([{"id": 3, "name": "cat"}, {"id": 1, "name": "dog"}])") {
  return cat(R"({"info": {"x": [1, {"y": null}]},
"images": [{"id": 9, "file_name": "b.bmp", "width": 40, "height": 30},
  {"license": 1, "height": 30, "width": 40, "file_name": "\u00e4.bmp", "id": 2}],
"annotations": [
)",
             annotations, "],\n\"categories\": ", categories, "}\n");
}

struct CocoFolder {
  CocoFolder() {
    folder.write("images/b.bmp", bmp_of(1, 2, 3, 40, 30));
    folder.write("images/ä.bmp", bmp_of(1, 2, 3, 40, 30));
  }
  std::unique_ptr<Source> open(const std::string& json, Coco options = {}) const {
    folder.write("boxes.json", json);
    options.images = "images";
    options.annotations = "boxes.json";
    return options.open({.root = folder.path()});
  }
  TestFolder folder;
};

TEST(CocoSource, ReadsObjectsAsWritten) {
  const CocoFolder folder;
  const auto source = folder.open(
      coco_json(R"({"image_id": 2, "category_id": 3, "bbox": [1.5, 2, 3.25, 4], "area": 7.5, "iscrowd": 0, "segmentation": [[1, 2]]},
{"image_id": 2, "category_id": 1, "bbox": [0, 0, 40, 30], "iscrowd": 1, "id": 5})"));
  ASSERT_EQ(source->size(), 2);
  EXPECT_TRUE(source->sample_name(1).ends_with("ä.bmp"));
  const ObjectImage& image = image_of(*source, 1);
  EXPECT_EQ(image.id, 2);
  ASSERT_EQ(image.objects.size(), 2u);
  EXPECT_EQ(image.objects[0].box, (std::array<double, 4>{1.5, 2, 3.25, 4}));
  EXPECT_EQ(image.objects[0].area, 7.5);
  EXPECT_EQ(image.objects[0].label, 3);
  EXPECT_TRUE(image.objects[1].crowd);
  EXPECT_EQ(image.objects[1].area, 1200);
  EXPECT_EQ(source->categories(), (std::vector<std::string>{"__background__", "dog", "N/A", "cat"}));
  const Sample sample = source->read(1);  // a crowd is not trained on
  EXPECT_EQ(std::get<Boxes>(*sample.find("boxes")).corners.shape()[0], 1);
  Coco renumbered;
  renumbered.renumber = true;
  renumbered.empty = EmptyImages::kSkip;
  const auto other = folder.open(coco_json(R"({"image_id": 2, "category_id": 3, "bbox": [1, 2, 3, 4]})"), renumbered);
  ASSERT_EQ(other->size(), 1);
  EXPECT_EQ(image_of(*other, 0).objects[0].label, 2);
  EXPECT_EQ(other->categories(), (std::vector<std::string>{"__background__", "dog", "cat"}));
}

TEST(CocoSource, MistakesHaveTheirPlace) {
  const CocoFolder folder;
  const auto with = [&](const std::string& json) { return [&folder, json] { folder.open(json); }; };
  const auto one = [&](const std::string& annotation) {
    return with(coco_json("{\"image_id\": 2, \"category_id\": 1, \"bbox\": [1, 2, 3, 4]},\n" + annotation));
  };
  expect_error(one(R"({"image_id": 2, "category_id": 7, "bbox": [1, 2, 3, 4]})"),
               {"boxes.json:6", "the category 7, which 'categories' lacks"}, 6);
  expect_error(one(R"({"image_id": 5, "category_id": 1, "bbox": [1, 2, 3, 4]})"), {"the image 5, which 'images' lacks"}, 6);
  expect_error(one(R"({"image_id": 2, "category_id": 1, "bbox": [1, 2, 0, 4]})"), {"the box of 'dog' has no area"}, 6);
  expect_error(one(R"({"image_id": 2, "category_id": 1, "bbox": [20, 10, 38, 30]})"), {"lies outside", "looks like [x1, y1, x2, y2]"}, 6);
  expect_error(one(R"({"image_id": 2, "category_id": 1, "bbox": [1, 2, 3]})"), {"'bbox' has 3 numbers"}, 6);
  expect_error(one(R"({"image_id": 2, "bbox": [1, 2, 3, 4]})"), {"the annotation has no 'category_id'"}, 6);
  expect_error(one(R"({"image_id": 2, "category_id": 1.5, "bbox": [1, 2, 3, 4]})"), {"expected an integer, not 1.5"}, 6);
  expect_error(one(R"({"image_id": 2, "category_id": "1")"), {"expected a number"}, 6);
  expect_error(with(coco_json("") + "x"), {"the file goes on after its value"}, 7);
  expect_error(with("{\"images\": [\n"), {"the file ends where '{' should follow"});
  expect_error(with("{\"images\": [], \"annotations\": []}"), {"the file has no 'categories'"}, 1);
  expect_error(with(coco_json("", R"([{"id": 0, "name": "cat"}])")), {"'cat' has the id 0", "renumber: true"}, 6);
  expect_error(with(coco_json("", R"([{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}])")), {"two categories have the id 1"}, 6);
  expect_error(with(coco_json("", R"([{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}])")), {"two categories have the name 'cat'"}, 6);
  expect_error(with(coco_json("", "[]")), {"'categories' is empty"}, 1);
  std::filesystem::remove(folder.folder.path() + "/images/b.bmp");
  expect_error(with(coco_json("")), {"no image", "b.bmp"}, 2);
}

TEST(CocoSource, DeepAndBrokenTextsAreErrors) {
  for (const std::string& text :
       {std::string(100000, '['), std::string("{\"a\": ") + std::string(100000, '{'), std::string("{\"a\": \"\\ud800\"}"),
        std::string("{\"a\": \"\\q\"}"), std::string("{\"a\": 1e999}"), std::string("{\"a\": -}"), std::string("nul")})
    EXPECT_THROW(parse_coco(text, "x.json"), Error) << text.substr(0, 20);
}

TEST(CocoSource, AHundredThousandBoxesInAnImage) {
  const CocoFolder folder;
  std::string annotations;
  for (int i = 0; i < 100000; ++i)
    annotations += cat(i == 0 ? "" : ",", R"({"image_id": 2, "category_id": 1, "bbox": [)", i % 30, ", ", i % 20, ", 3, 4]}");
  const auto source = folder.open(coco_json(annotations));
  EXPECT_EQ(source->fields()[1].capacity, 100000);
  EXPECT_EQ(std::get<Boxes>(*source->read(1).find("boxes")).corners.shape()[0], 100000);
}

TEST(BoxBatches, AreJagged) {
  const CocoFolder folder;
  std::shared_ptr<const Source> source = folder.open(coco_json(R"({"image_id": 2, "category_id": 3, "bbox": [4, 6, 8, 3]},
{"image_id": 9, "category_id": 1, "bbox": [0, 0, 40, 30]}, {"image_id": 2, "category_id": 1, "bbox": [20, 9, 20, 21]})"));
  Component resize;
  resize.type = "resize";
  Resize params;
  params.size = {60, 20};
  resize.params = params.clone();
  LoaderOptions options;
  options.order.batch = 3;
  options.order.shuffle = false;
  options.order.last_batch = LastBatchRule::kKeep;
  options.passes = 1;
  DataLoader loader(source, Pipeline({resize}), {}, options);
  const Batch* batch = loader.next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->valid, 2);
  const int64_t* offsets = batch->at("boxes.offsets").data_as<int64_t>();
  EXPECT_EQ(std::vector<int64_t>(offsets, offsets + 4), (std::vector<int64_t>{0, 1, 3, 3}));
  const float* boxes = batch->at("boxes.values").data_as<float>();
  EXPECT_EQ(std::vector<float>(boxes, boxes + 12), (std::vector<float>{0, 0, 20, 60, 2, 12, 6, 18, 10, 18, 20, 60}));
  EXPECT_EQ(batch->at("boxes.values").shape(), (Shape{6, 4}));
  const int64_t* labels = batch->at("labels.values").data_as<int64_t>();
  EXPECT_EQ(std::vector<int64_t>(labels, labels + 6), (std::vector<int64_t>{1, 3, 1, 0, 0, 0}));
}

}  // namespace
}  // namespace galley
