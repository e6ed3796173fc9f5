// Clips: which frames of a video they hold, how transforms change them, and how batches hold them.
#include "libcore/data/frame_order.h"
#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"

namespace galley {
namespace {

/// Videos whose frames have one color: red is the number of the frame, green that of the video.
class Videos {
 public:
  void add(const std::string& folder, int video, int frames, int width = 4) const {
    for (int t = 0; t < frames; ++t) folder_.write(cat(folder, "/", t + 1, ".bmp"), bmp_of(t, video, 0, width));
  }
  VideoFolder options(int64_t frames) const {
    VideoFolder options;
    options.path = {"."};
    options.frames = frames;
    return options;
  }
  SourceContext context() const { return {.root = folder_.path()}; }
  const TestFolder& folder() const { return folder_; }

 private:
  TestFolder folder_;
};

std::vector<int> frames_of(const Source& source, int64_t index) {
  const Sample sample = source.read(index);
  std::vector<int> frames;
  for (const Image& frame : std::get<Clip>(*sample.find("input")).frames) frames.push_back(frame.as<uint8_t>()[0]);
  return frames;
}

std::string video_error(const VideoFolder& options, const SourceContext& context) {
  try {
    options.open(context);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.text();
  }
}

TEST(VideoFolderSource, ClipsAreSpreadOverTheVideo) {
  const Videos videos;
  videos.add("run/a", 1, 12);  // 12 frames, so that 10.bmp follows 9.bmp
  videos.add("jump/b", 2, 7);
  VideoFolder options = videos.options(3);
  const auto middle = options.open(videos.context());
  ASSERT_EQ(middle->size(), 2);
  EXPECT_EQ(middle->categories(), (std::vector<std::string>{"jump", "run"}));
  EXPECT_EQ(middle->label(0), 0);
  EXPECT_EQ(middle->fields()[0].sample, (std::vector<int64_t>{3, 3, kOpenSize, kOpenSize}));
  EXPECT_EQ(frames_of(*middle, 0), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(frames_of(*middle, 1), (std::vector<int>{4, 5, 6}));

  options.step = 2;
  options.clips = 3;
  const auto spread = options.open(videos.context());
  ASSERT_EQ(spread->size(), 6);
  EXPECT_EQ(spread->label(3), 1);
  EXPECT_EQ(frames_of(*spread, 3), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(frames_of(*spread, 4), (std::vector<int>{3, 5, 7}));
  EXPECT_EQ(frames_of(*spread, 5), (std::vector<int>{7, 9, 11}));
  EXPECT_TRUE(spread->sample_name(4).ends_with("run/a (clip 2 of 3)")) << spread->sample_name(4);
}

TEST(VideoFolderSource, ShortVideosFailAreSkippedOrRepeat) {
  const Videos videos;
  videos.add("run/long", 1, 5);
  videos.add("run/short", 2, 3);
  VideoFolder options = videos.options(5);
  const std::string error = video_error(options, videos.context());
  EXPECT_NE(error.find("run/short: a clip needs 5 frames, but the folder has 3"), std::string::npos) << error;
  options.short_clips = ShortClips::kSkip;
  const auto skipped = options.open(videos.context());
  EXPECT_EQ(skipped->size(), 1);
  EXPECT_NE(skipped->describe().find("1 short videos skipped"), std::string::npos) << skipped->describe();
  options.short_clips = ShortClips::kRepeat;
  EXPECT_EQ(frames_of(*options.open(videos.context()), 1), (std::vector<int>{0, 1, 2, 2, 2}));
  options.frames = 6;
  options.short_clips = ShortClips::kSkip;
  EXPECT_NE(video_error(options, videos.context()).find("no video has 6 frames (2 are shorter)"), std::string::npos);
}

TEST(VideoFolderSource, MissingFoldersAndFramesOfOtherSizesAreErrors) {
  const Videos videos;
  videos.folder().write("image.bmp", bmp_of(0, 0, 0));
  EXPECT_NE(video_error(videos.options(2), videos.context()).find("no class folders"), std::string::npos);
  videos.add("run/a", 1, 1);
  videos.folder().write("run/a/2.bmp", bmp_of(0, 0, 0, 5));
  const auto source = videos.options(2).open(videos.context());
  EXPECT_THROW(source->read(0), BadSample);
}

TEST(VideoFolderSource, NamedFoldersAreClips) {
  const Videos videos;
  videos.add("a", 1, 3);
  const auto clips = open_clips({videos.folder().path() + "/a"}, 4, {});
  EXPECT_EQ(frames_of(*clips, 0), (std::vector<int>{0, 1, 2, 2}));
  EXPECT_THROW(open_clips({videos.folder().path() + "/a/1.bmp"}, 4, {}), Error);
  const auto going_on = open_clips({videos.folder().path() + "/a/1.bmp", videos.folder().path() + "/a"}, 4, {}, true);
  ASSERT_EQ(going_on->size(), 2);
  EXPECT_THROW(going_on->read(0), BadSample);
  EXPECT_EQ(frames_of(*going_on, 1), (std::vector<int>{0, 1, 2, 2}));
}

TEST(FrameOrder, NumbersCountByValue) {
  std::vector<std::string> names{"b/1.png", "a10", "a2", "a2b10", "a02", "a2b9", "a", "10.png", "9.png", "a18446744073709551617"};
  std::sort(names.begin(), names.end(), FrameOrder());
  EXPECT_EQ(names,
            (std::vector<std::string>{"9.png", "10.png", "a", "a02", "a2", "a2b9", "a2b10", "a10", "a18446744073709551617", "b/1.png"}));
}

/// Frames change alike: all are mirrored or none, and the batch has the pixels of the frames one by one.
TEST(Clips, AllFramesChangeInTheSameWay) {
  const Videos videos;
  videos.add("run/a", 1, 8);
  videos.add("run/b", 2, 8);
  const std::shared_ptr<const Source> source = videos.options(8).open(videos.context());
  RandomCrop crop;
  crop.size = {2, 3};
  crop.padding = {1};
  Normalize normalize;
  normalize.mean = {0.5, 0.4, 0.3};
  normalize.std = {0.2, 0.3, 0.4};
  const auto item = [](std::string type, const Options& options) {
    Component component;
    component.type = std::move(type);
    component.params = options.clone();
    return component;
  };
  const std::vector<Component> items{item("random_crop", crop), item("normalize", normalize)};
  for (const bool last : {false, true}) {
    LoaderOptions options;
    options.order.batch = 2;
    options.order.shuffle = false;
    options.passes = 1;
    options.workers = 0;
    options.format = last ? MemoryFormat::channels_last() : MemoryFormat();
    DataLoader loader(source, Pipeline(items), {}, options);
    const Batch& batch = *loader.next();
    const Tensor& input = batch.at("input");
    ASSERT_EQ(input.shape(), (Shape{2, 3, 8, 2, 3}));
    EXPECT_EQ(input.format().is_channels_last(), last);
    const std::vector<double> values = input.to(MemoryFormat()).to_doubles();
    int inside = 0;
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t t = 0; t < 8; ++t) {
        for (int64_t pixel = 0; pixel < 6; ++pixel) {
          const auto at = [&](int64_t c) { return values[static_cast<size_t>(((n * 3 + c) * 8 + t) * 6 + pixel)]; };
          const double green = at(1) * 0.3 + 0.4, first = values[static_cast<size_t>(((n * 3 + 1) * 8) * 6 + pixel)] * 0.3 + 0.4;
          EXPECT_NEAR(green, first, 1e-6);  // the padding is at the same place in each frame
          if (green < 0.5 / 255) continue;
          EXPECT_NEAR(green, static_cast<double>(n + 1) / 255, 1e-6);
          EXPECT_NEAR(at(0) * 0.2 + 0.5, static_cast<double>(t) / 255, 1e-6);
          ++inside;
        }
      }
    }
    EXPECT_GT(inside, 16);
  }
}

}  // namespace
}  // namespace galley
