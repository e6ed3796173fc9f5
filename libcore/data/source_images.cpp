// Images without labels that a command line names: files, folders and archives. For prediction.
#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "libcore/base/counted.h"
#include "libcore/base/file.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

/// A list of image files and members of archives.
class ImageList : public Source {
 public:
  ImageList(const std::vector<std::string>& paths, bool gray, bool keep_going) : mode_(gray ? ColorMode::kGray : ColorMode::kRgb) {
    for (const std::string& path : paths) {
      try {
        add(path);
      } catch (const Error& error) {
        if (!keep_going || error.code() != ErrorCode::kInput) throw;
        images_.push_back({.file = path, .error = error.message()});
      }
    }
    GALLEY_CHECK_FILE(!images_.empty(), paths.empty() ? "nothing" : paths.front(), "no images");
  }

  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override {
    const Place& place = at(index);
    return place.archive != nullptr ? place.archive->sample_name(place.member) : place.file;
  }
  std::string describe() const override {
    const int64_t missing = std::count_if(images_.begin(), images_.end(), [](const Place& place) { return !place.error.empty(); });
    return cat(counted(size() - missing, "image"), missing > 0 ? cat(", ", missing, " unreadable") : "");
  }
  std::vector<FieldType> fields() const override { return {image_field(mode_ == ColorMode::kRgb ? 3 : 1)}; }
  Sample read(int64_t index) const override {
    const Place& place = at(index);
    if (!place.error.empty()) throw BadSample("missing", std::move(Error(ErrorCode::kInput, place.error).at({.file = place.file})));
    if (place.archive != nullptr) return place.archive->read(place.member);
    const std::string file = read_file(place.file);
    Sample sample;
    sample.set("input", decode_image(std::as_bytes(std::span(file)), mode_, place.file, {}, &sample.irregularity));
    return sample;
  }

 private:
  struct Place {
    std::string file;
    const Source* archive = nullptr;
    int64_t member = 0;
    std::string error = {};  // why the path cannot be opened
  };
  /// Adds the images of a path from the command line. If it throws, nothing was added.
  void add(const std::string& path) {
    if (is_archive(path)) {
      TarArchive archive;
      archive.path = {path};
      archive.labels = TarLabels::kNone;
      archive.mode = mode_;
      archives_.push_back(archive.open({}));
      for (int64_t i = 0; i < archives_.back()->size(); ++i) images_.push_back({.archive = archives_.back().get(), .member = i});
      return;
    }
    const bool folder = is_folder(path);
    const std::vector<std::string> files = folder ? image_files(path) : std::vector<std::string>{path};
    GALLEY_CHECK_FILE(!files.empty(), path, "no image in this folder");
    if (!folder) InputFile{path};  // throws if it cannot be opened
    for (const std::string& file : files) {
      // A file that was named before, alone or by its folder, counts once.
      std::error_code ignored;
      if (named_.insert(std::filesystem::weakly_canonical(file, ignored).string()).second) images_.push_back({.file = file});
    }
  }
  const Place& at(int64_t index) const { return images_[static_cast<size_t>(index)]; }

  ColorMode mode_;
  std::vector<std::unique_ptr<Source>> archives_;
  std::vector<Place> images_;
  std::set<std::string> named_;  // canonical paths of the files
};

}  // namespace

bool is_archive(std::string_view path) {
  constexpr std::array<std::string_view, 6> suffixes{".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst"};
  return std::any_of(suffixes.begin(), suffixes.end(), [&](std::string_view suffix) { return path.ends_with(suffix); });
}

std::unique_ptr<Source> open_images(const std::vector<std::string>& paths, bool gray, bool keep_going) {
  return std::make_unique<ImageList>(paths, gray, keep_going);
}

}  // namespace galley
