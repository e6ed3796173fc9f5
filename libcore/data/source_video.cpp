// video_folder: clips of videos that are stored as folders of frames.
#include <algorithm>

#include "libcore/base/counted.h"
#include "libcore/base/file.h"
#include "libcore/data/frame_order.h"
#include "libcore/data/labels.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

/// The images of a folder in their order.
std::vector<std::string> frames_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : list_folder(folder)) {
    if (!entry.is_folder && !entry.name.starts_with('.') && has_image_suffix(entry.name)) names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end(), FrameOrder());
  for (std::string& name : names) name = folder + "/" + name;
  return names;
}

/// The frames of a video, in order.
struct Video {
  std::string folder;
  std::vector<std::string> frames;
  std::string error = {};  // Why it has none; "": it can be read.
};

/// Clips of a list of videos.
class Clips {
 public:
  explicit Clips(const VideoFolder& options) : options_(options) {}

  /// Adds a folder of frames. Returns false if it is too short and skipped.
  bool add(const std::string& folder) {
    Video video{folder, frames_in(folder)};
    const auto count = std::ssize(video.frames);
    if (count < span() && options_.short_clips == ShortClips::kFail) {
      throw in_file(folder, cat("a clip needs ", span(), " frames, but the folder has ", count))
          .suggest("write `short: repeat` or `short: skip`, or lower `frames` or `step`");
    }
    if (count < span() && options_.short_clips == ShortClips::kSkip) return false;
    GALLEY_CHECK_FILE(count > 0, folder, "no images; the folder of a video holds its frames");
    videos_.push_back(std::move(video));
    return true;
  }

  /// Adds a path that is reported when it is read.
  void add_unreadable(const std::string& path, const std::string& message) {
    videos_.push_back({.folder = path, .frames = {}, .error = message});
  }

  int64_t videos() const { return std::ssize(videos_); }
  int64_t size() const { return videos() * options_.clips; }
  /// Frames of the video that a clip covers.
  int64_t span() const { return (options_.frames - 1) * options_.step + 1; }
  std::string name(int64_t index) const {
    const Video& video = video_of(index);
    return options_.clips == 1 ? video.folder : cat(video.folder, " (clip ", index % options_.clips + 1, " of ", options_.clips, ")");
  }
  FieldType field() const {
    FieldType clip = image_field(options_.mode == ColorMode::kRgb ? 3 : 1);
    clip.sample.insert(clip.sample.begin() + 1, options_.frames);
    return clip;
  }
  /// Sets `input`. Clips are spread over the video; a single one is in the middle.
  void read(int64_t index, Sample& sample) const {
    const Video& video = video_of(index);
    if (!video.error.empty()) throw BadSample("missing", std::move(Error(ErrorCode::kInput, video.error).at({.file = video.folder})));
    const int64_t last = std::ssize(video.frames) - 1, room = std::max<int64_t>(0, last + 1 - span());
    const int64_t first = options_.clips == 1 ? room / 2 : room * (index % options_.clips) / (options_.clips - 1);
    Clip clip;
    for (int64_t t = 0; t < options_.frames; ++t) {
      const std::string& path = video.frames[static_cast<size_t>(std::min(first + t * options_.step, last))];
      const std::string bytes = read_file(path);
      clip.frames.push_back(decode_image(std::as_bytes(std::span(bytes)), options_.mode, path, {}, &sample.irregularity));
      const Image &start = clip.frames.front(), &frame = clip.frames.back();
      if (frame.height() == start.height() && frame.width() == start.width()) continue;
      throw BadSample("size", path,
                      cat("the frame has ", frame.height(), " x ", frame.width(), " pixels, but the first of its clip has ", start.height(),
                          " x ", start.width()));
    }
    sample.set("input", std::move(clip));
  }

 private:
  const Video& video_of(int64_t index) const { return videos_[static_cast<size_t>(index / options_.clips)]; }

  VideoFolder options_;
  std::vector<Video> videos_;
};

class VideoSource : public Source {
 public:
  VideoSource(const VideoFolder& options, const SourceContext& context) : options_(options), clips_(options) {
    std::vector<std::string> folders;  // class folder of each video
    std::vector<std::string> classes;
    for (const std::string& root : expand_paths(context.root, options.path)) {
      GALLEY_CHECK_FILE(is_folder(root), root, "not a folder; video_folder needs a folder with one subfolder per class");
      roots_ += roots_.empty() ? root : ", " + root;
      for (const FolderEntry& entry : list_folder(root)) {
        if (!entry.is_folder || entry.name.starts_with('.')) continue;
        classes.push_back(entry.name);
        find_videos(root + "/" + entry.name);
        folders.resize(static_cast<size_t>(clips_.videos()), entry.name);
      }
    }
    GALLEY_CHECK_FILE(!classes.empty(), roots_,
                      "no class folders; video_folder needs one subfolder per class, with a folder of frames for each video");
    GALLEY_CHECK_FILE(clips_.videos() > 0, roots_, "no video has ", clips_.span(), " frames",
                      skipped_ > 0 ? cat(" (", skipped_, " are shorter)") : "",
                      "; each video is a folder of images below its class folder");
    const ClassNames names(options.classes, classes, roots_);
    for (const std::string& folder : folders) labels_.push_back(names.label(folder));
    categories_ = names.names();
  }

  int64_t size() const override { return clips_.size(); }
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index / options_.clips)]; }
  std::string sample_name(int64_t index) const override { return clips_.name(index); }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override {
    return cat("video_folder ", roots_, ": ", size(), " clips of ", options_.frames, " frames, ", categories_.size(), " classes",
               skipped_ > 0 ? cat(", ", skipped_, " short videos skipped") : "");
  }
  std::vector<FieldType> fields() const override { return {clips_.field(), label_field(static_cast<int64_t>(categories_.size()))}; }
  Sample read(int64_t index) const override {
    Sample sample;
    clips_.read(index, sample);
    sample.set("label", label(index));
    return sample;
  }

 private:
  void find_videos(const std::string& folder) {
    for (const FolderEntry& entry : list_folder(folder)) {
      if (entry.is_folder && !entry.name.starts_with('.') && !clips_.add(folder + "/" + entry.name)) ++skipped_;
    }
  }

  VideoFolder options_;
  Clips clips_;
  std::string roots_;
  std::vector<int64_t> labels_;
  std::vector<std::string> categories_;
  int64_t skipped_ = 0;
};

/// Folders of frames that a command line names.
class ClipList : public Source {
 public:
  ClipList(const std::vector<std::string>& folders, const VideoFolder& options, bool keep_going) : clips_(options) {
    for (const std::string& folder : folders) {
      try {
        GALLEY_CHECK_FILE(is_folder(folder), folder, "not a folder; the model reads videos as folders of frames");
        clips_.add(folder);
      } catch (const Error& error) {
        if (!keep_going || error.code() != ErrorCode::kInput) throw;
        clips_.add_unreadable(folder, error.message());
      }
    }
  }
  int64_t size() const override { return clips_.size(); }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override { return clips_.name(index); }
  std::string describe() const override { return counted(size(), "clip"); }
  std::vector<FieldType> fields() const override { return {clips_.field()}; }
  Sample read(int64_t index) const override {
    Sample sample;
    clips_.read(index, sample);
    return sample;
  }

 private:
  Clips clips_;
};

}  // namespace

std::unique_ptr<Source> VideoFolder::open(const SourceContext& context) const { return std::make_unique<VideoSource>(*this, context); }

std::unique_ptr<Source> open_clips(const std::vector<std::string>& folders, int64_t frames, const Component& trained_on, bool keep_going) {
  VideoFolder options;
  options.frames = frames;
  if (const auto* source = trained_on.as<VideoFolder>()) {
    options.frames = source->frames;
    options.step = source->step;
    options.mode = source->mode;
  }
  options.short_clips = ShortClips::kRepeat;
  return std::make_unique<ClipList>(folders, options, keep_going);
}

}  // namespace galley
