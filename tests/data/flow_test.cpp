// Optical flow: .flo files, colors, and transforms that move both images and the flow between them.
#include "libcore/data/flow.h"

#include <cmath>
#include <cstring>

#include "libcore/data/pipeline.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"
#include "tests/data/item.h"

namespace galley {
namespace {

Image parse(const std::string& file) { return parse_flo(std::as_bytes(std::span(file)), "a.flo"); }

std::string flow_refusal(const std::string& file) {
  try {
    parse(file);
    return "";
  } catch (const BadSample& error) {
    return error.message();
  }
}

/// A flow that is linear in the pixel's center: right = 1 + 0.2 x - 0.1 y, down = -0.5 + 0.05 x + 0.1 y.
std::array<double, 2> linear(double x, double y) { return {1 + 0.2 * x - 0.1 * y, -0.5 + 0.05 * x + 0.1 * y}; }

Image linear_flow(int64_t height, int64_t width) {
  Image flow(DType::kF32, height, width, 3);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const auto vector = linear(static_cast<double>(x) + 0.5, static_cast<double>(y) + 0.5);
      float* to = flow.row<float>(y) + 3 * x;
      to[0] = static_cast<float>(vector[0]);
      to[1] = static_cast<float>(vector[1]);
      to[2] = 1;
    }
  }
  return flow;
}

TEST(FloFiles, KeepTheirNumbers) {
  Image flow = linear_flow(3, 2);
  float* last = flow.row<float>(2) + 3;
  last[2] = 0;  // unknown
  const std::string file = encode_flo(flow);
  EXPECT_EQ(file.size(), 12u + 8u * 6u);
  float tag = 0;
  std::memcpy(&tag, file.data(), 4);
  EXPECT_EQ(tag, 202021.25f);
  const Image read = parse(file);
  EXPECT_EQ(read.str(), "f32 [3,3,2]");
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(read.as<float>()[i], flow.as<float>()[i]) << i;
  for (int64_t i = 15; i < 18; ++i) EXPECT_EQ(read.as<float>()[i], 0) << i;
}

TEST(FloFiles, WrongSizesAreRefused) {
  const std::string file = encode_flo(linear_flow(3, 2));
  EXPECT_EQ(flow_refusal(file), "");
  EXPECT_NE(flow_refusal(file.substr(0, 59)).find("a.flo: the file has 59 bytes, but 2 x 3 pixels (its header) take 60"),
            std::string::npos);
  EXPECT_NE(flow_refusal(file + "x").find("has 61 bytes"), std::string::npos);
  EXPECT_NE(flow_refusal("P6 2 2 255 ....").find("not a .flo file"), std::string::npos);
  EXPECT_NE(flow_refusal("PIEH").find("not a .flo file"), std::string::npos);
  for (const int32_t width : {0, -1, 1 << 30}) {
    std::string other = file;
    std::memcpy(other.data() + 4, &width, 4);
    EXPECT_NE(flow_refusal(other).find("the header says"), std::string::npos) << width;
  }
}

// The numbers are those of torchvision 0.29.2's flow_to_image. Between two colors it rounds in float32: one level.
TEST(FlowColors, AreTorchvisions) {
  const std::array<std::array<float, 2>, 8> vectors{{{3, 0}, {0, 3}, {-3, 0}, {0, -3}, {1.5f, -1}, {-0.2f, 0.1f}, {0, 0}, {2, 2.2f}}};
  const std::array<std::array<int, 3>, 8> expected{
      {{255, 0, 0}, {255, 229, 0}, {0, 209, 255}, {87, 0, 255}, {254, 101, 255}, {235, 255, 245}, {255, 255, 255}, {255, 122, 2}}};
  Image flow(DType::kF32, 1, 9, 3);
  for (size_t i = 0; i < 8; ++i) {
    float* to = flow.as<float>() + 3 * i;
    to[0] = vectors[i][0];
    to[1] = vectors[i][1];
    to[2] = 1;
  }
  float* unknown = flow.as<float>() + 24;
  unknown[0] = unknown[1] = 100;
  unknown[2] = 0;
  const Image colors = flow_colors(flow);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(colors.as<uint8_t>()[3 * i + c], expected[i][c], 1) << i << " " << c;
  }
  for (size_t c = 0; c < 3; ++c) EXPECT_EQ(colors.as<uint8_t>()[24 + c], 0);
}

constexpr int64_t kFlowHeight = 20, kFlowWidth = 30;

Sample pair_of_images() {
  Image image(DType::kU8, kFlowHeight, kFlowWidth, 3);
  for (int64_t i = 0; i < image.values(); ++i) image.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7 % 251);
  Sample sample;
  sample.set("image1", image);
  sample.set("image2", image);
  sample.set("flow", Flow{linear_flow(kFlowHeight, kFlowWidth)});
  return sample;
}

std::vector<FieldType> pair_types() {
  std::vector<FieldType> types{image_field(3, kFlowHeight, kFlowWidth),
                               image_field(3, kFlowHeight, kFlowWidth),
                               {.name = "flow", .kind = FieldKind::kFlow, .sample = {3, kFlowHeight, kFlowWidth}}};
  types[0].name = "image1";
  types[1].name = "image2";
  return types;
}

// A pixel of a new image comes from a point of the old one, and moves to where that point's new place is: for a map x -> (x - left) / step,
// the new flow is the old one divided by the step. A linear flow is exact under bilinear interpolation, except at the image's border.
TEST(FlowTransforms, MoveAndScaleTheFlow) {
  RandomHorizontalFlip mirror;
  mirror.p = 1;
  RandomVerticalFlip turn;
  turn.p = 1;
  Resize resize;
  resize.size = {31, 42};
  CenterCrop crop;
  crop.size = {10, 12};
  struct Case {
    Component item;
    double left, top, step_x, step_y;
    int64_t height, width;
  };
  for (const Case& c :
       {Case{item("random_horizontal_flip", mirror), kFlowWidth, 0, -1, 1, kFlowHeight, kFlowWidth},
        Case{item("random_vertical_flip", turn), 0, kFlowHeight, 1, -1, kFlowHeight, kFlowWidth},
        Case{item("resize", resize), 0, 0, 30.0 / 42, 20.0 / 31, 31, 42}, Case{item("center_crop", crop), 9, 5, 1, 1, 10, 12}}) {
    const Pipeline pipeline({c.item});
    const std::vector<FieldType> types = pipeline.fields(pair_types());
    Sample sample = pair_of_images();
    pipeline.apply(sample, {3, 0, 0});
    const Image& flow = std::get<Flow>(*sample.find("flow")).vectors;
    ASSERT_EQ(flow.height(), c.height) << c.item.type;
    ASSERT_EQ(flow.width(), c.width) << c.item.type;
    EXPECT_EQ(types[2].sample, (std::vector<int64_t>{3, c.height, c.width}));
    EXPECT_EQ(types[0].sample, types[2].sample);
    for (int64_t y = 1; y + 1 < c.height; ++y) {
      for (int64_t x = 1; x + 1 < c.width; ++x) {
        const auto old = linear(c.left + (static_cast<double>(x) + 0.5) * c.step_x, c.top + (static_cast<double>(y) + 0.5) * c.step_y);
        const float* at = flow.row<float>(y) + 3 * x;
        ASSERT_NEAR(at[0], old[0] / c.step_x, 1e-5) << c.item.type << " " << x << " " << y;
        ASSERT_NEAR(at[1], old[1] / c.step_y, 1e-5) << c.item.type << " " << x << " " << y;
        ASSERT_EQ(at[2], 1);
      }
    }
  }
}

TEST(FlowTransforms, ChangeBothImagesAlike) {
  RandomCrop crop;
  crop.size = {12, 14};
  crop.padding = {3};
  ColorJitter jitter;
  jitter.brightness = {0.5};
  jitter.hue = {0.2};
  RandomResizedCrop part;
  part.size = {9, 11};
  Normalize normalize;
  normalize.mean = normalize.std = {0.5};
  const Pipeline pipeline(
      {item("random_crop", crop), item("color_jitter", jitter), item("random_resized_crop", part), item("normalize", normalize)});
  pipeline.fields(pair_types());
  for (int64_t index = 0; index < 10; ++index) {
    Sample sample = pair_of_images();
    pipeline.apply(sample, {3, 1, index});
    std::vector<float> rows[2];
    for (size_t i = 0; i < 2; ++i) {
      rows[i].resize(3 * 9 * 11);
      pipeline.write(sample, std::string(kPair[i]), false, 0, rows[i].data());
    }
    EXPECT_EQ(rows[0], rows[1]);
    EXPECT_LT(*std::min_element(rows[0].begin(), rows[0].end()), 0);  // normalized
  }
}

TEST(FlowTransforms, AFieldChangesOneImage) {
  RandomErasing erase;
  erase.p = 1;
  erase.field = "image2";
  const Pipeline pipeline({item("random_erasing", erase)});
  Sample sample = pair_of_images();
  pipeline.apply(sample, {3, 1, 5});
  EXPECT_EQ(std::get<Image>(*sample.find("image1")).dtype(), DType::kU8);
  EXPECT_EQ(std::get<Image>(*sample.find("image2")).dtype(), DType::kF32);
  AutoAugment augment;
  EXPECT_THROW(Pipeline({item("auto_augment", augment)}).fields(pair_types()), Error);
}

// A flow is unknown where padding has new pixels, and where a pixel's neighbors are: there the nearest one decides.
TEST(FlowTransforms, UnknownStaysUnknown) {
  Pad pad;
  pad.padding = {2, 1, 0, 0};
  Sample sample = pair_of_images();
  std::get<Flow>(*sample.find("flow")).vectors.row<float>(4)[3 * 6 + 2] = 0;
  Pipeline({item("pad", pad)}).apply(sample, {3, 1, 5});
  const Image& flow = std::get<Flow>(*sample.find("flow")).vectors;
  for (int64_t y = 0; y < flow.height(); ++y) {
    for (int64_t x = 0; x < flow.width(); ++x) {
      const bool known = x >= 2 && y >= 1 && !(x == 8 && y == 5);
      ASSERT_EQ(flow.row<float>(y)[3 * x + 2], known ? 1 : 0) << x << " " << y;
    }
  }
}

std::unique_ptr<Source> open_pairs(const std::string& root, const std::string& path, const std::string& images = "") {
  FlowPairs options;
  options.path = path;
  options.images = images;
  return options.open({.root = root, .input_shape = {}, .load_tensors = {}});
}

std::string failure(const std::function<void()>& run) {
  try {
    run();
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(FlowPairs, NamesFindTheirFrames) {
  const TestFolder folder;
  const std::string flow = encode_flo(linear_flow(4, 6));
  folder.write("chairs/00001_flow.flo", flow);
  folder.write("chairs/00001_img1.ppm", "P6 6 4 255\n" + std::string(72, 'a'));
  folder.write("chairs/00001_img2.ppm", "P6\n# a comment\n6 4\n255\n" + std::string(72, 'b'));
  const auto chairs = open_pairs(folder.path(), "chairs");
  ASSERT_EQ(chairs->size(), 1);
  const Sample sample = chairs->read(0);
  EXPECT_EQ(std::get<Image>(*sample.find("image1")).as<uint8_t>()[0], 'a');
  EXPECT_EQ(std::get<Image>(*sample.find("image2")).as<uint8_t>()[71], 'b');
  EXPECT_EQ(std::get<Flow>(*sample.find("flow")).vectors.str(), "f32 [3,4,6]");

  folder.write("flow/alley/frame_1.flo", flow);
  folder.write("flow/alley/frame_2.flo", flow);
  for (const char* name : {"alley/frame_1", "alley/frame_2", "alley/frame_3", "market/frame_1"})
    folder.write(cat("clean/", name, ".bmp"), bmp_of(1, 2, 3, 6, 4));
  const auto sintel = open_pairs(folder.path(), "flow", "clean/");
  ASSERT_EQ(sintel->size(), 2);
  const auto files = dynamic_cast<const PairSource&>(*sintel).files(1);
  EXPECT_TRUE(files[0].ends_with("clean/alley/frame_2.bmp")) << files[0];
  EXPECT_TRUE(files[1].ends_with("clean/alley/frame_3.bmp")) << files[1];

  // The last frame of a folder has no next one.
  folder.write("flow/alley/frame_3.flo", flow);
  EXPECT_NE(failure([&] { open_pairs(folder.path(), "flow", "clean"); }).find("the frame after alley/frame_3"), std::string::npos);
  EXPECT_NE(failure([&] { open_pairs(folder.path(), "nowhere"); }).find("no such folder"), std::string::npos);
  EXPECT_NE(failure([&] { open_pairs(folder.path(), "clean"); }).find("no .flo file"), std::string::npos);
}

TEST(FlowPairs, SizesMustAgree) {
  const TestFolder folder;
  folder.write("a_flow.flo", encode_flo(linear_flow(4, 6)));
  folder.write("a_img1.bmp", bmp_of(1, 2, 3, 6, 5));
  folder.write("a_img2.bmp", bmp_of(1, 2, 3, 6, 5));
  const auto source = open_pairs(folder.path(), ".");
  EXPECT_NE(failure([&] { source->read(0); }).find("the flow has 6 x 4 pixels, its image"), std::string::npos);
  folder.write("a_img2.bmp", bmp_of(1, 2, 3, 7, 5));
  EXPECT_NE(failure([&] { source->read(0); }).find("the second image has 7 x 5 pixels, the first"), std::string::npos);
  EXPECT_NE(failure([&] { open_image_pairs({"a.png", "b.png", "c.png"}); }).find("the command line has 3 files"), std::string::npos);
}

TEST(Pnm, WrongFilesAreRefused) {
  const auto refused = [](const std::string& file) {
    try {
      decode_pnm(std::as_bytes(std::span(file)), "x.ppm", {});
      return std::string();
    } catch (const BadSample& error) {
      return error.cause();
    }
  };
  EXPECT_EQ(refused("P5 2 3 255\n123456"), "");
  EXPECT_EQ(refused("P6 2 3 255\n" + std::string(17, 'x')), "truncated");
  EXPECT_EQ(refused("P6 2 3 65535\n" + std::string(36, 'x')), "format");
  EXPECT_EQ(refused("P6 0 3 255\n"), "size");
  EXPECT_EQ(refused("P6 99999999999 3 255\n"), "corrupt");
  EXPECT_EQ(refused("P6 16000 16000 255\n"), "size");
  for (const char* file : {"P6", "P6 2", "P6 # 2 3 255\n", "P6 2 3 255", "P6 2 x 255\n", "P7 2 3 255\n"})
    EXPECT_EQ(refused(file), "corrupt") << file;
}

}  // namespace
}  // namespace galley
