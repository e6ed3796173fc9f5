// Clips: windows of frames from folders, and transforms that change all frames alike.
#include <algorithm>

#include "libcore/data/pipeline.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"
#include "tests/data/item.h"

namespace galley {
namespace {

/// Frames 1..count of a video, whose red value is their number.
void write_video(const TestFolder& folder, const std::string& name, int count) {
  for (int i = 1; i <= count; ++i) folder.write(cat(name, "/", i < 10 ? "0" : "", i, ".bmp"), bmp_of(i, 100, 200, 6, 4));
}

Clips options_of(int64_t frames, int64_t step = 1, int64_t clips = 1) {
  Clips options;
  options.path = {"."};
  options.frames = frames;
  options.step = step;
  options.clips_per_video = clips;
  return options;
}

SourceContext context_of(const TestFolder& folder) { return {.root = folder.path(), .input_shape = {}, .load_tensors = {}}; }

std::vector<int> reds(const Source& source, int64_t index) {
  const Sample sample = source.read(index);
  std::vector<int> values;
  for (const Image& frame : std::get<Clip>(*sample.find("input")).frames) values.push_back(frame.as<uint8_t>()[0]);
  return values;
}

std::string failure(const std::function<void()>& run) {
  try {
    run();
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(Clips, AreWindowsOfFrames) {
  const TestFolder folder;
  write_video(folder, "walk/a", 10);
  write_video(folder, "run/b", 7);
  const auto one = options_of(4).open(context_of(folder));
  ASSERT_EQ(one->size(), 2);
  EXPECT_EQ(one->categories(), (std::vector<std::string>{"run", "walk"}));
  EXPECT_EQ(one->label(0), 0);
  EXPECT_TRUE(one->sample_name(1).ends_with("walk/a")) << one->sample_name(1);
  EXPECT_EQ(reds(*one, 1), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(one->fields()[0].sample, (std::vector<int64_t>{3, 4, kOpenSize, kOpenSize}));

  const auto three = options_of(3, 2, 3).open(context_of(folder));  // 5 frames a window
  ASSERT_EQ(three->size(), 6);
  EXPECT_EQ(reds(*three, 3), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(reds(*three, 4), (std::vector<int>{3, 5, 7}));
  EXPECT_EQ(reds(*three, 5), (std::vector<int>{6, 8, 10}));

  EXPECT_NE(failure([&] { options_of(8).open(context_of(folder)); }).find("run/b: a clip takes 8 frames, but the folder has 7 images"),
            std::string::npos);
  const auto named = open_clips({folder.path() + "/walk/a"}, 6);
  EXPECT_EQ(reds(*named, 0), (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_NE(failure([&] { open_clips({folder.path() + "/walk/a/01.bmp"}, 6); }).find("not a folder"), std::string::npos);
}

TEST(Clips, FramesOfOtherSizesAreRefused) {
  const TestFolder folder;
  write_video(folder, "walk/a", 3);
  folder.write("walk/a/02.bmp", bmp_of(1, 2, 3, 5, 4));
  const auto source = options_of(3).open(context_of(folder));
  EXPECT_NE(failure([&] { source->read(0); }).find("02.bmp: the frame has 5 x 4 pixels, the first of its clip"), std::string::npos);
}

/// A clip of frames that differ only by a constant.
Sample constant_steps(int64_t frames) {
  Clip clip;
  for (int64_t t = 0; t < frames; ++t) {
    Image image(DType::kU8, 12, 16, 3);
    for (int64_t i = 0; i < image.values(); ++i) image.as<uint8_t>()[i] = static_cast<uint8_t>(i % 100 + 10 * t);
    clip.frames.push_back(std::move(image));
  }
  Sample sample;
  sample.set("input", std::move(clip));
  return sample;
}

// Were frames cropped or flipped differently, they would not differ by a constant. Written as [C,T,H,W].
TEST(Clips, AllFramesChangeAlike) {
  RandomCrop crop;
  crop.size = {8, 9};
  RandomHorizontalFlip flip;
  Normalize normalize;
  normalize.mean = {0, 0, 0};
  normalize.std = {1, 1, 1};
  const Pipeline pipeline({item("random_crop", crop), item("random_horizontal_flip", flip), item("normalize", normalize)});
  const FieldType field{.name = "input", .kind = FieldKind::kImage, .dtype = DType::kU8, .sample = {3, 4, kOpenSize, kOpenSize}};
  EXPECT_EQ(pipeline.fields({field})[0].sample, (std::vector<int64_t>{3, 4, 8, 9}));
  EXPECT_EQ(pipeline.fields({field})[0].dtype, DType::kF32);
  std::set<std::vector<float>> firsts;
  for (int64_t index = 0; index < 8; ++index) {
    const Tensor batch = pipeline.run(constant_steps(4), {3, 1, index});
    ASSERT_EQ(batch.shape(), (Shape{3, 4, 8, 9}));
    const float* values = batch.data_as<float>();
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t t = 1; t < 4; ++t) {
        for (int64_t i = 0; i < 72; ++i)
          ASSERT_NEAR(values[(c * 4 + t) * 72 + i] - values[c * 4 * 72 + i], 10.0 * static_cast<double>(t) / 255, 1e-6) << c << " " << t;
      }
    }
    firsts.insert(std::vector<float>(values, values + 72));
  }
  EXPECT_GT(firsts.size(), 4u);  // samples differ
}

}  // namespace
}  // namespace galley
