// clips: videos as folders of frames, in one folder per class; and those that a command line names.
#include <algorithm>

#include "libcore/base/counted.h"
#include "libcore/base/file.h"
#include "libcore/data/labels.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

/// Consecutive frames of a folder.
struct ClipPlace {
  std::string folder;
  std::vector<std::string> files;
  int64_t label = -1;
};

FieldType clip_field(int64_t frames) {
  return {.name = "input", .kind = FieldKind::kImage, .dtype = DType::kU8, .sample = {3, frames, kOpenSize, kOpenSize}};
}

Sample read_clip(const ClipPlace& place) {
  Sample sample;
  Clip clip;
  for (const std::string& path : place.files) {
    const std::string bytes = read_file(path);
    Irregularity irregularity;
    clip.frames.push_back(decode_image(std::as_bytes(std::span(bytes)), ColorMode::kRgb, path, {}, &irregularity));
    if (!irregularity.kind.empty()) sample.irregularity = irregularity;
    const Image &first = clip.frames.front(), &last = clip.frames.back();
    if (last.height() != first.height() || last.width() != first.width())
      throw BadSample("size", cat(path, ": the frame has ", last.width(), " x ", last.height(), " pixels, the first of its clip, ",
                                  place.files.front(), ", has ", first.width(), " x ", first.height()));
  }
  sample.set("input", std::move(clip));
  if (place.label >= 0) sample.set("label", place.label);
  return sample;
}

/// The clips of a video: `count` windows, `step` frames apart each, evenly from its start to its end.
void add_clips(const std::string& folder, const Clips& options, int64_t label, std::vector<ClipPlace>& clips) {
  const std::vector<std::string> files = image_files(folder);
  const int64_t span = (options.frames - 1) * options.step + 1, room = std::ssize(files) - span;
  GALLEY_CHECK_INPUT(room >= 0, folder, ": a clip takes ", span, " frames, but the folder has ", counted(std::ssize(files), "image"),
                     "; set the source's `frames` or `step`");
  for (int64_t i = 0; i < options.clips_per_video; ++i) {
    ClipPlace place{.folder = folder, .files = {}, .label = label};
    const int64_t first = options.clips_per_video == 1 ? 0 : i * room / (options.clips_per_video - 1);
    for (int64_t t = 0; t < options.frames; ++t) place.files.push_back(files[static_cast<size_t>(first + t * options.step)]);
    clips.push_back(std::move(place));
  }
}

class ClipSource : public Source {
 public:
  ClipSource(std::vector<ClipPlace> clips, std::vector<std::string> categories, int64_t frames, std::string name)
      : clips_(std::move(clips)), categories_(std::move(categories)), frames_(frames), name_(std::move(name)) {}

  int64_t size() const override { return static_cast<int64_t>(clips_.size()); }
  int64_t label(int64_t index) const override { return at(index).label; }
  std::string sample_name(int64_t index) const override { return at(index).folder; }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override {
    const std::string classes = categories_.empty() ? "" : cat(", ", categories_.size(), " classes");
    return cat("clips ", name_, ": ", counted(size(), "clip"), " of ", counted(frames_, "frame"), classes);
  }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields{clip_field(frames_)};
    if (!categories_.empty()) fields.push_back(label_field(static_cast<int64_t>(categories_.size())));
    return fields;
  }
  Sample read(int64_t index) const override { return read_clip(at(index)); }

 private:
  const ClipPlace& at(int64_t index) const { return clips_[static_cast<size_t>(index)]; }

  std::vector<ClipPlace> clips_;
  std::vector<std::string> categories_;
  int64_t frames_;
  std::string name_;
};

std::vector<std::string> subfolders(const std::string& folder) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : list_folder(folder))
    if (entry.is_folder && !entry.name.starts_with('.')) names.push_back(entry.name);
  return names;
}

}  // namespace

std::unique_ptr<Source> Clips::open(const SourceContext& context) const {
  std::string roots;
  std::vector<std::string> classes;
  std::vector<std::pair<std::string, std::string>> videos;  // class, folder
  for (const std::string& root : expand_paths(context.root, path)) {
    GALLEY_CHECK_INPUT(is_folder(root), root, ": not a folder; clips needs a folder with one subfolder per class");
    roots += roots.empty() ? root : ", " + root;
    for (const std::string& kind : subfolders(root)) {
      classes.push_back(kind);
      for (const std::string& video : subfolders(root + "/" + kind)) videos.emplace_back(kind, cat(root, "/", kind, "/", video));
    }
  }
  GALLEY_CHECK_INPUT(!videos.empty(), roots, ": no videos; clips needs one subfolder per class, and in it a folder of frames per video");
  const ClassNames names(this->classes, classes, roots);
  std::vector<ClipPlace> clips;
  for (const auto& [kind, folder] : videos) add_clips(folder, *this, names.label(kind), clips);
  return std::make_unique<ClipSource>(std::move(clips), names.names(), frames, roots);
}

std::unique_ptr<Source> open_clips(const std::vector<std::string>& paths, int64_t frames) {
  Clips options;
  options.frames = frames;
  return open_clips(paths, options);
}

std::unique_ptr<Source> open_clips(const std::vector<std::string>& paths, const Clips& options) {
  std::vector<ClipPlace> clips;
  for (const std::string& path : paths) {
    GALLEY_CHECK_INPUT(is_folder(path), path, ": not a folder; the model takes clips, which are folders of frames");
    add_clips(path, options, -1, clips);
  }
  return std::make_unique<ClipSource>(std::move(clips), std::vector<std::string>(), options.frames, paths.front());
}

}  // namespace galley
