// Boxes follow the pixels of their image.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "libcore/data/box_transforms.h"
#include "libcore/data/mosaic.h"
#include "libcore/data/objects.h"
#include "libcore/data/pipeline.h"
#include "libcore/data/source.h"
#include "tests/data/item.h"

namespace galley {
namespace {

constexpr int64_t kHeight = 40, kWidth = 60;

std::vector<FieldType> types() {
  return {image_field(1, kHeight, kWidth),
          {.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = 5},
          {.name = "labels", .kind = FieldKind::kClass, .layout = FieldLayout::kJagged, .dtype = DType::kI64, .sample = {}, .capacity = 5}};
}

/// Rectangles that do not touch, each of its own value, with their boxes; the label is the value.
Sample rectangles() {
  constexpr float kBoxes[][4] = {{4, 3, 20, 14}, {30, 2, 56, 10}, {10, 20, 22, 38}, {28, 16, 34, 36}, {40, 14, 58, 33}};
  Image image(DType::kU8, kHeight, kWidth, 1);
  std::fill_n(image.as<uint8_t>(), image.area(), uint8_t{1});
  Tensor corners(DType::kF32, {5, 4}), labels(DType::kI64, {5}), points(DType::kF32, {5, 2, 3});
  ObjectMasks masks{.height = kHeight, .width = kWidth, .masks = {}};
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t y = static_cast<int64_t>(kBoxes[i][1]); y < static_cast<int64_t>(kBoxes[i][3]); ++y)
      for (int64_t x = static_cast<int64_t>(kBoxes[i][0]); x < static_cast<int64_t>(kBoxes[i][2]); ++x)
        image.row<uint8_t>(y)[x] = static_cast<uint8_t>(50 * (i + 1));
    std::copy_n(kBoxes[i], 4, corners.data_as<float>() + i * 4);
    labels.data_as<int64_t>()[i] = 50 * (i + 1);
    masks.masks.emplace_back(DType::kU8, kHeight, kWidth, 1);
    for (int64_t p = 0; p < image.area(); ++p) masks.masks.back().as<uint8_t>()[p] = image.as<uint8_t>()[p] == 50 * (i + 1);
    // The middle, and the middle of the left half: the right half's in a mirrored image.
    float* point = points.data_as<float>() + 6 * i;
    point[0] = 0.5f * (kBoxes[i][0] + kBoxes[i][2]);
    point[3] = 0.75f * kBoxes[i][0] + 0.25f * kBoxes[i][2];
    point[1] = point[4] = 0.5f * (kBoxes[i][1] + kBoxes[i][3]);
    point[2] = point[5] = 2;
  }
  Sample sample;
  sample.set("input", std::move(image));
  sample.set("boxes", Boxes{std::move(corners), {"labels", "masks", "keypoints"}});
  sample.set("labels", std::move(labels));
  sample.set("masks", std::move(masks));
  sample.set("keypoints", Keypoints{std::move(points), {0, 1}});
  return sample;
}

/// The masks of objects are the pixels with their values, and the middle of a box that is all inside is its key point.
void expect_instances(const Sample& sample, const std::string& where) {
  const auto& masks = std::get<ObjectMasks>(*sample.find("masks"));
  const auto& labels = std::get<Tensor>(*sample.find("labels"));
  const Image& image = *sample.image();
  ASSERT_EQ(std::ssize(masks.masks), labels.shape()[0]) << where;
  EXPECT_EQ(masks.height, image.height()) << where;
  EXPECT_EQ(masks.width, image.width()) << where;
  const Tensor& points = std::get<Keypoints>(*sample.find("keypoints")).points;
  ASSERT_EQ(points.shape(), (Shape{labels.shape()[0], 2, 3})) << where;
  for (int64_t i = 0; i < labels.shape()[0]; ++i) {
    const Image& mask = masks.masks[static_cast<size_t>(i)];
    ASSERT_EQ(mask.area(), image.area()) << where;
    int64_t wrong = 0;
    for (int64_t p = 0; p < image.area(); ++p) wrong += mask.as<uint8_t>()[p] != (image.as<uint8_t>()[p] == labels.data_as<int64_t>()[i]);
    EXPECT_EQ(wrong, 0) << where << ": pixels of the mask " << i;
    const float* point = points.data_as<float>() + 6 * i;
    if (point[2] == 0) {
      EXPECT_EQ(point[0] + point[1], 0) << where;
      continue;
    }
    EXPECT_EQ(point[2], 2) << where;
    const auto x = static_cast<int64_t>(point[0]), y = static_cast<int64_t>(point[1]);
    ASSERT_TRUE(x >= 0 && y >= 0 && x <= image.width() && y <= image.height()) << where;
    if (x == image.width() || y == image.height()) continue;
    EXPECT_EQ(image.row<uint8_t>(y)[x], labels.data_as<int64_t>()[i]) << where << ": the middle of object " << i << " is elsewhere";
  }
}

/// The smallest box around the pixels of a value; empty where it does not occur.
std::array<double, 4> around(const Image& image, int64_t value) {
  std::array<double, 4> box{1e9, 1e9, -1, -1};
  for (int64_t y = 0; y < image.height(); ++y) {
    for (int64_t x = 0; x < image.width(); ++x) {
      if (image.row<uint8_t>(y)[x] != value) continue;
      box = {std::min(box[0], static_cast<double>(x)), std::min(box[1], static_cast<double>(y)),
             std::max(box[2], static_cast<double>(x + 1)), std::max(box[3], static_cast<double>(y + 1))};
    }
  }
  return box;
}

/// All boxes lie around their pixels, `off` pixels off at most; boxes are missing only where `drops` or where they have no pixel.
void expect_follow(const std::vector<Component>& items, double off, bool drops = false) {
  const Pipeline pipeline(items);
  ASSERT_NO_THROW(pipeline.fields(types()));
  for (int64_t index = 0; index < 30; ++index) {
    Sample sample = rectangles();
    pipeline.apply(sample, {7, 1, index});
    const Image& image = *sample.image();
    const Tensor& corners = sample.boxes()->corners;
    const auto& labels = std::get<Tensor>(*sample.find("labels"));
    ASSERT_EQ(corners.shape()[0], labels.shape()[0]);
    expect_instances(sample, cat(items.front().type, " ", index));
    std::set<int64_t> seen;
    for (int64_t i = 0; i < labels.shape()[0]; ++i) {
      const int64_t value = labels.data_as<int64_t>()[i];
      const std::array<double, 4> want = around(image, value);
      const float* box = corners.data_as<float>() + i * 4;
      seen.insert(value);
      EXPECT_GT(box[2], box[0]);
      EXPECT_GT(box[3], box[1]);
      EXPECT_GE(std::min(box[0], box[1]), 0);
      EXPECT_LE(box[2], static_cast<float>(image.width()));
      EXPECT_LE(box[3], static_cast<float>(image.height()));
      if (want[2] < 0) continue;  // less than a pixel
      for (size_t c = 0; c < 4; ++c)
        EXPECT_NEAR(box[c], want[c], off) << items.front().type << " " << index << ": corner " << c << " of " << value;
    }
    for (int64_t value = 50; value <= 250 && !drops; value += 50)
      EXPECT_TRUE(seen.contains(value) || around(image, value)[2] < 0) << items.front().type << " " << index << " lost " << value;
  }
}

TEST(Boxes, FollowTheirImage) {
  Resize larger, smaller;
  larger.size = {90, 75};
  larger.interpolation = smaller.interpolation = Interpolation::kNearest;
  smaller.size = {25};
  CenterCrop center;
  center.size = {30, 44};
  Pad pad;
  pad.padding = {3, 2, 1, 4};
  RandomCrop crop;
  crop.size = {31, 37};
  crop.padding = {6};
  RandomResizedCrop part;
  part.size = {36, 48};
  part.interpolation = Interpolation::kNearest;
  RandomZoomOut zoom;
  ScaleJitter jitter;
  jitter.target_size = {50, 50};
  jitter.scale_range = {0.5, 2};
  jitter.interpolation = Interpolation::kNearest;
  expect_follow({item("random_horizontal_flip", RandomHorizontalFlip())}, 0);
  expect_follow({item("random_vertical_flip", RandomVerticalFlip())}, 0);
  expect_follow({item("center_crop", center)}, 0);
  expect_follow({item("pad", pad)}, 0);
  expect_follow({item("random_crop", crop)}, 0);
  expect_follow({item("random_zoom_out", zoom)}, 0);
  // A resized edge lies between two pixels, so that the pixel next to it may have either value.
  expect_follow({item("resize", larger)}, 1);
  expect_follow({item("resize", smaller)}, 1);
  expect_follow({item("random_resized_crop", part)}, 2);  // of parts that are enlarged up to twice
  expect_follow({item("scale_jitter", jitter)}, 1);
  expect_follow({item("random_iou_crop", RandomIouCrop())}, 0, true);
  expect_follow(
      {item("random_zoom_out", zoom), item("random_iou_crop", RandomIouCrop()), item("random_horizontal_flip", RandomHorizontalFlip())}, 0,
      true);
}

TEST(Keypoints, AMirroredImageExchangesLeftAndRight) {
  const KeypointNames names{{"nose", "left_eye", "right_eye", "tail"}, {}};
  EXPECT_EQ(names.mirrored(), (std::vector<int64_t>{0, 2, 1, 3}));
  for (const bool across : {true, false}) {
    RandomHorizontalFlip left_right;
    RandomVerticalFlip top_bottom;
    left_right.p = top_bottom.p = 1;
    const Component flip = across ? item("random_horizontal_flip", left_right) : item("random_vertical_flip", top_bottom);
    const auto flipped = [&](const std::vector<Component>& items) {
      Tensor points(DType::kF32, {1, 4, 3}), corners(DType::kF32, {1, 4});
      points.from_doubles({30, 20, 2, 20, 10, 1, 42, 12, 2, 7, 8, 0});
      corners.from_doubles({10, 5, 50, 30});
      Sample sample;
      sample.set("input", Image(DType::kU8, kHeight, kWidth, 1));
      sample.set("boxes", Boxes{std::move(corners), {"keypoints"}});
      sample.set("keypoints", Keypoints{std::move(points), names.mirrored()});
      Pipeline(items).apply(sample, {});
      return std::get<Keypoints>(*sample.find("keypoints")).points.to_doubles();
    };
    // The left eye is where the right eye was; a point that is not labeled stays so.
    EXPECT_EQ(flipped({flip}), across ? (std::vector<double>{30, 20, 2, 18, 12, 2, 40, 10, 1, 0, 0, 0})
                                      : (std::vector<double>{30, 20, 2, 42, 28, 2, 20, 30, 1, 0, 0, 0}));
    EXPECT_EQ(flipped({flip, flip}), (std::vector<double>{30, 20, 2, 20, 10, 1, 42, 12, 2, 0, 0, 0}));
    CenterCrop center;  // rows 10 to 30, columns 15 to 45
    center.size = {20, 30};
    EXPECT_EQ(flipped({item("center_crop", center)}), (std::vector<double>{15, 10, 2, 5, 0, 1, 27, 2, 2, 0, 0, 0}));
  }
}

TEST(Boxes, ResizeIsTorchvisions) {
  // tv_tensors.BoundingBoxes(..., canvas_size=(40, 60)), resized to (90, 75): float32 products with the ratios 2.25 and 1.25.
  Resize resize;
  resize.size = {90, 75};
  Sample sample = rectangles();
  Pipeline({item("resize", resize)}).apply(sample, {});
  const float* box = sample.boxes()->corners.data_as<float>();
  EXPECT_EQ(std::vector<float>(box, box + 8), (std::vector<float>{5, 6.75, 25, 31.5, 37.5, 4.5, 70, 22.5}));
}

TEST(RandomIouCrop, KeepsItsPromises) {
  RandomIouCrop crop;
  crop.sampler_options = {0.3, 1.0};
  Sample sample = rectangles();
  const Tensor boxes = sample.boxes()->corners;
  int64_t stays = 0, crops = 0;
  for (uint64_t index = 0; index < 300; ++index) {
    RandomStream random(3, "crop", index);
    Region part;
    std::vector<bool> inside;
    if (!crop.draw(boxes, kHeight, kWidth, random, part, inside)) {
      ++stays;
      continue;
    }
    ++crops;
    const double ratio = static_cast<double>(part.width) / static_cast<double>(part.height);
    EXPECT_TRUE(ratio >= 0.5 && ratio <= 2) << ratio;
    EXPECT_TRUE(part.left >= 0 && part.top >= 0 && part.left + part.width <= kWidth && part.top + part.height <= kHeight);
    EXPECT_GE(part.width, kWidth * 3 / 10);
    EXPECT_GE(part.height, kHeight * 3 / 10);
    double most = 0;
    for (size_t i = 0; i < 5; ++i) {
      const float* box = boxes.data_as<float>() + 4 * i;
      const double x = (box[0] + box[2]) / 2, y = (box[1] + box[3]) / 2;
      const auto left = static_cast<double>(part.left), top = static_cast<double>(part.top);
      const double right = left + static_cast<double>(part.width), bottom = top + static_cast<double>(part.height);
      EXPECT_EQ(inside[i], x > left && x < right && y > top && y < bottom);
      if (!inside[i]) continue;
      const double both = (std::min<double>(box[2], right) - std::max<double>(box[0], left)) *
                          (std::min<double>(box[3], bottom) - std::max<double>(box[1], top));
      most = std::max(most, both / ((box[2] - box[0]) * (box[3] - box[1]) + (right - left) * (bottom - top) - both));
    }
    EXPECT_GE(most, 0.3 - 1e-6);
  }
  // Both options are drawn; a drawn 0.3 that finds no part is drawn again.
  EXPECT_GT(stays, 100);
  EXPECT_GT(crops, 50);
}

TEST(RandomIouCrop, AnImageWithoutBoxesStays) {
  Sample sample = rectangles();
  sample.boxes()->corners = Tensor(DType::kF32, {0, 4});
  *sample.find("labels") = Tensor(DType::kI64, {0});
  std::get<ObjectMasks>(*sample.find("masks")).masks.clear();
  std::get<Keypoints>(*sample.find("keypoints")).points = Tensor(DType::kF32, {0, 2, 3});
  Pipeline({item("random_iou_crop", RandomIouCrop())}).apply(sample, {1, 2, 3});
  EXPECT_EQ(sample.image()->height(), kHeight);
  EXPECT_EQ(sample.image()->width(), kWidth);
}

TEST(SanitizeBoundingBoxes, DropsSmallBoxesWithTheirLabels) {
  SanitizeBoundingBoxes sanitize;
  sanitize.min_size = 8;
  sanitize.min_area = 200;
  Sample sample = rectangles();  // 16 x 11, 26 x 8, 12 x 18, 6 x 20, 18 x 19
  Pipeline({item("sanitize_bounding_boxes", sanitize)}).apply(sample, {});
  const auto& labels = std::get<Tensor>(*sample.find("labels"));
  const int64_t* label = labels.data_as<int64_t>();
  EXPECT_EQ(std::vector<int64_t>(label, label + labels.elements()), (std::vector<int64_t>{100, 150, 250}));
  EXPECT_EQ(sample.boxes()->corners.shape(), (Shape{3, 4}));
  EXPECT_EQ(sample.boxes()->corners.data_as<float>()[4], 10);
}

TEST(RandomPhotometricDistort, ChangesColorsAndNoPlaces) {
  RandomPhotometricDistort distort;
  const Pipeline pipeline({item("random_photometric_distort", distort)});
  int64_t same = 0, permuted = 0;
  for (int64_t index = 0; index < 200; ++index) {
    Image image(DType::kU8, 2, 2, 3);
    const std::array<uint8_t, 3> color{200, 100, 50};
    for (int64_t i = 0; i < 12; ++i) image.as<uint8_t>()[i] = color[static_cast<size_t>(i % 3)];
    Sample sample;
    sample.set("input", std::move(image));
    pipeline.apply(sample, {5, 0, index});
    const uint8_t* pixel = sample.image()->as<uint8_t>();
    for (int64_t i = 3; i < 12; ++i) EXPECT_EQ(pixel[i], pixel[i % 3]);  // a plain image stays plain
    same += std::equal(color.begin(), color.end(), pixel);
    permuted += !(pixel[0] >= pixel[1] && pixel[1] >= pixel[2]);
  }
  // Nothing is drawn in 1 of 32 images; in half of them channels are permuted, in 5 of 6 of these visibly.
  EXPECT_GT(same, 0);
  EXPECT_LT(same, 25);
  EXPECT_NEAR(static_cast<double>(permuted), 200 * 5.0 / 12, 30);
}

TEST(Boxes, ImagesOfDifferentSizesShareACanvas) {
  PadTo pad;
  pad.size = {50, 70};
  expect_follow({item("pad_to", pad)}, 0);
  const Pipeline pipeline({item("pad_to", pad)});
  const std::vector<FieldType> fields = pipeline.fields({image_field(3)});  // of any size
  EXPECT_EQ(fields.at(0).sample, (std::vector<int64_t>{3, 50, 70}));
  EXPECT_EQ(fields.at(1), (FieldType{.name = "image_size", .kind = FieldKind::kValues, .sample = {2}}));
  Sample sample = rectangles();
  pipeline.apply(sample, {});
  const auto& size = std::get<Tensor>(*sample.find("image_size"));
  EXPECT_EQ(size.to_doubles(), (std::vector<double>{kHeight, kWidth}));
  const auto& extents = std::get<Tensor>(*sample.find("image_extents"));
  EXPECT_EQ(extents.to_doubles(), (std::vector<double>{50, 64})) << "multiples of 32, as far as the canvas goes";
  EXPECT_EQ(sample.image()->row<uint8_t>(kHeight - 1)[kWidth - 1], 1);
  EXPECT_EQ(sample.image()->row<uint8_t>(kHeight - 1)[kWidth], 0);
  EXPECT_EQ(sample.image()->row<uint8_t>(kHeight)[0], 0);
  pad.size = {50, 50};
  try {
    Sample wide = rectangles();
    Pipeline({item("pad_to", pad)}).apply(wide, {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.text().find("40 x 60 pixels does not fit into 50 x 50"), std::string::npos) << error.text();
  }
}

TEST(Boxes, DetectorsResizeAsTorchvisionDoes) {
  // height, width, shorter side, longer side, and the size that GeneralizedRCNNTransform of torchvision 0.29 gives.
  constexpr int64_t kRows[][6] = {{375, 500, 800, 1333, 800, 1066}, {427, 640, 800, 1333, 800, 1199}, {281, 500, 800, 1333, 749, 1333},
                                  {480, 640, 320, 640, 320, 426},   {200, 1000, 320, 640, 128, 640},  {640, 427, 800, 1333, 1199, 800},
                                  {500, 500, 800, 1333, 800, 800},  {335, 500, 800, 1333, 799, 1194}, {500, 334, 800, 1333, 1197, 799},
                                  {333, 500, 320, 448, 298, 448},   {375, 500, 320, 448, 320, 426}};
  for (const auto& row : kRows) {
    Resize resize;
    resize.size = {row[2]};
    resize.max_size = row[3];
    resize.rule = ResizeRule::kScale;
    EXPECT_EQ(resize.target(row[0], row[1]), std::pair(row[4], row[5])) << row[0] << " x " << row[1];
  }
}

TEST(Boxes, RenamedLabelsAreDroppedWithTheirBoxes) {
  Rename rename;
  rename.from = "labels";
  rename.to = "kinds";
  CenterCrop center;
  center.size = {10, 20};
  Sample sample = rectangles();
  Pipeline({item("rename", rename), item("center_crop", center)}).apply(sample, {});
  EXPECT_EQ(sample.boxes()->corners.shape()[0], std::get<Tensor>(*sample.find("kinds")).shape()[0]);
  EXPECT_LT(sample.boxes()->corners.shape()[0], 5);
}

TEST(Boxes, PredictionLeavesOutItemsThatNeedThem) {
  const std::vector<Component> items{item("random_iou_crop", RandomIouCrop()), item("sanitize_bounding_boxes", SanitizeBoundingBoxes()),
                                     item("random_horizontal_flip", RandomHorizontalFlip())};
  EXPECT_EQ(items_for(items, {image_field(3)}).size(), 1u);
  EXPECT_EQ(items_for(items, types()).size(), 3u);
}

/// The pixels of image number `added` have values of their own, and classes in a mask.
Sample numbered(int64_t added) {
  Sample sample = rectangles();
  uint8_t* pixels = sample.image()->as<uint8_t>();
  for (int64_t i = 0; i < sample.image()->area(); ++i) pixels[i] = static_cast<uint8_t>(pixels[i] + added);
  int64_t* labels = std::get<Tensor>(*sample.find("labels")).data_as<int64_t>();
  for (int64_t i = 0; i < 5; ++i) labels[i] += added;
  sample.set("classes", Mask{*sample.image()});
  return sample;
}

/// The sample that mosaics of these images give at an index, each after `before`.
Sample mosaic_of(const Mosaic& mosaic, int64_t index, const std::vector<Component>& before = {}) {
  std::vector<Component> items = before;
  items.push_back(item("mosaic", mosaic));
  int64_t reads = 0;
  const OtherSamples others{100, [&](int64_t, int64_t&) { return numbered(++reads); }};
  Sample sample = numbered(0);
  Pipeline(items).apply(sample, {9, 2, index}, &others);
  return sample;
}

// The rule in its own words: the four images touch a center in the middle half of a canvas of twice the size, and are cut at its edges.
TEST(Mosaic, FourImagesTouchAtARandomCenter) {
  Mosaic mosaic;
  mosaic.size = {kHeight, kWidth};  // that of the images, so that no pixel changes
  mosaic.fill = {255};
  std::set<std::pair<double, double>> centers;
  for (int64_t index = 0; index < 40; ++index) {
    const Sample sample = mosaic_of(mosaic, index);
    const Image& image = *sample.image();
    ASSERT_EQ(image.height(), 2 * kHeight);
    ASSERT_EQ(image.width(), 2 * kWidth);
    const std::array<double, 4> first = around(image, 1);
    const double x = first[2], y = first[3];
    centers.insert({x, y});
    EXPECT_TRUE(x >= 0.5 * kWidth && x < 1.5 * kWidth && y >= 0.5 * kHeight && y < 1.5 * kHeight) << x << " " << y;
    const double left = std::max(0.0, x - kWidth), top = std::max(0.0, y - kHeight);
    const double right = std::min(2.0 * kWidth, x + kWidth), bottom = std::min(2.0 * kHeight, y + kHeight);
    EXPECT_EQ(first, (std::array{left, top, x, y}));
    EXPECT_EQ(around(image, 2), (std::array{x, top, right, y}));
    EXPECT_EQ(around(image, 3), (std::array{left, y, x, bottom}));
    EXPECT_EQ(around(image, 4), (std::array{x, y, right, bottom}));
    expect_instances(sample, cat("mosaic ", index));
    const Image& classes = std::get<Mask>(*sample.find("classes")).classes;
    ASSERT_EQ(classes.area(), image.area());
    EXPECT_TRUE(std::equal(image.as<uint8_t>(), image.as<uint8_t>() + image.area(), classes.as<uint8_t>())) << "no pixel is ignored";
    const auto& labels = std::get<Tensor>(*sample.find("labels"));
    const float* box = const_cast<Sample&>(sample).boxes()->corners.data_as<float>();
    std::set<int64_t> seen;
    for (int64_t i = 0; i < labels.shape()[0]; ++i, box += 4) {
      const int64_t value = labels.data_as<int64_t>()[i];
      EXPECT_EQ(around(image, value), (std::array<double, 4>{box[0], box[1], box[2], box[3]})) << index << ": box of " << value;
      seen.insert(value);
    }
    for (int64_t value = 50; value < 255; ++value) EXPECT_EQ(seen.contains(value), around(image, value)[2] >= 0) << index << " " << value;
  }
  EXPECT_GT(centers.size(), 30u);
}

TEST(Mosaic, ImagesAreResizedToFit) {
  Mosaic mosaic;
  mosaic.size = {20, 40};  // of images of 40 x 60 pixels: 20 x 30
  mosaic.fill = {255};
  const Sample sample = mosaic_of(mosaic, 3);
  const Image& image = *sample.image();
  int64_t bare = 0, no_class = 0;
  const Image& classes = std::get<Mask>(*sample.find("classes")).classes;
  for (int64_t i = 0; i < image.area(); ++i) {
    bare += image.as<uint8_t>()[i] == 255;
    no_class += classes.as<uint8_t>()[i] == Mask::kNoClass;
  }
  const std::array<double, 4> first = around(image, 1);  // an image has its background at its borders
  const double width = std::min(30.0, first[2]) + std::min(30.0, 80 - first[2]),
               height = std::min(20.0, first[3]) + std::min(20.0, 40 - first[3]);
  EXPECT_EQ(bare, 40 * 80 - static_cast<int64_t>(width * height));
  EXPECT_EQ(no_class, bare);
  const float* box = const_cast<Sample&>(sample).boxes()->corners.data_as<float>();  // 4 3 20 14 of the first image, halved
  EXPECT_EQ(box[2], first[2] - 30 + 10);
  EXPECT_EQ(box[3], first[3] - 20 + 7);
}

TEST(Mosaic, ItemsBeforeItChangeEachImage) {
  Mosaic mosaic;
  mosaic.size = {kHeight, kWidth};
  CenterCrop center;
  center.size = {10, 10};  // enlarged to 40 x 40
  const Sample sample = mosaic_of(mosaic, 5, {item("center_crop", center), item("random_horizontal_flip", RandomHorizontalFlip())});
  int64_t bare = 0;
  for (int64_t i = 0; i < sample.image()->area(); ++i) bare += sample.image()->as<uint8_t>()[i] == 114;
  EXPECT_GT(bare, 40 * 30);
}

TEST(Mosaic, LeavesSamplesAsTheyAre) {
  Mosaic never, early;
  never.p = 0;
  early.epochs = 2;  // 0 and 1
  never.size = early.size = {30};
  for (const Mosaic& mosaic : {never, early}) EXPECT_EQ(mosaic_of(mosaic, 1).image()->height(), kHeight);
  early.epochs = 3;
  EXPECT_EQ(mosaic_of(early, 1).image()->height(), 60);
  EXPECT_TRUE(items_for({item("mosaic", early)}, types()).empty()) << "predictions are of one image";
}

void expect_refused(const std::vector<Component>& items, std::vector<FieldType> fields, const std::string& part) {
  try {
    Pipeline(items).fields(fields);
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.text().find(part), std::string::npos) << error.text();
  }
}

TEST(Boxes, MistakesAreReported) {
  expect_refused({item("random_iou_crop", RandomIouCrop())}, {image_field(3)}, "needs boxes");
  expect_refused({item("sanitize_bounding_boxes", SanitizeBoundingBoxes())}, {image_field(3)}, "needs boxes");
  AutoAugment augment;
  expect_refused({item("auto_augment", augment)}, types(), "cannot move the boxes");
  RandomIouCrop endless;
  endless.sampler_options = {0.5};
  expect_refused({item("random_iou_crop", endless)}, types(), "needs a number of at least 1");
  RandomZoomOut zoom;
  zoom.side_range = {0.5, 2};
  expect_refused({item("random_zoom_out", zoom)}, types(), "at least 1");
  Mosaic mosaic;
  mosaic.size = {32};
  expect_refused({item("mosaic", mosaic)}, {image_field(3)}, "needs boxes or a mask");
  expect_refused({item("normalize",
                       [] {
                         Normalize n;
                         n.mean = n.std = {1};
                         return n;
                       }()),
                  item("mosaic", mosaic)},
                 types(), "needs u8 pixels");
  expect_refused({item("mosaic", mosaic), item("mosaic", mosaic)}, types(), "one is possible");
  EXPECT_EQ(Pipeline({item("mosaic", mosaic)}).fields(types()).at(1).capacity, 20) << "boxes of four images";
  PadTo pad;
  pad.size = {30, 70};
  expect_refused({item("pad_to", pad)}, types(), "do not fit into 30 x 70");
  pad.size = {70};
  expect_refused({item("pad_to", pad), item("pad_to", pad)}, types(), "use pad_to once");
  pad.sizes = {"64x80"};
  expect_refused({item("pad_to", pad)}, types(), "does not fit into `size`, 70 x 70");
  pad.sizes = {"64"};
  expect_refused({item("pad_to", pad)}, types(), "expected rows and columns, e.g. 800x1088");
}

}  // namespace
}  // namespace galley
