// image_folder: one folder of images per class.
#include <algorithm>
#include <set>

#include "libcore/base/file.h"
#include "libcore/data/labels.h"
#include "libcore/data/sources.h"

namespace galley {

ClassNames::ClassNames(std::vector<std::string> explicit_names, const std::vector<std::string>& folders, const std::string& place)
    : names_(std::move(explicit_names)) {
  const bool given = !names_.empty();
  if (!given) {
    const std::set<std::string> distinct(folders.begin(), folders.end());
    names_.assign(distinct.begin(), distinct.end());
  }
  for (size_t i = 0; i < names_.size(); ++i) by_name_.emplace_back(names_[i], static_cast<int64_t>(i));
  std::sort(by_name_.begin(), by_name_.end());
  for (size_t i = 1; i < by_name_.size(); ++i)
    GALLEY_CHECK(by_name_[i].first != by_name_[i - 1].first, "the class '", by_name_[i].first, "' occurs twice in `classes`");
  if (!given) return;
  for (const std::string& folder : folders) {
    if (std::find(names_.begin(), names_.end(), folder) != names_.end()) continue;
    Error error = in_file(place, cat("the folder '", folder, "' is not among the ", names_.size(), " names of `classes`"));
    const std::string near = nearest(folder, names_);
    if (!near.empty()) error.suggest(cat("did you mean '", near, "'?"));
    throw error;
  }
}

int64_t ClassNames::label(const std::string& folder) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), std::pair(folder, int64_t{0}));
  GALLEY_ASSERT(found != by_name_.end() && found->first == folder, folder);
  return found->second;
}

namespace {

/// Only a symbolic link to a parent folder leads deeper than this.
constexpr int kMaxDepth = 32;

void find_images(const std::string& folder, int depth, std::vector<std::string>& found) {
  GALLEY_CHECK_FILE(depth < kMaxDepth, folder, "folders nested deeper than ", kMaxDepth, "; is there a link to a parent folder?");
  for (const FolderEntry& entry : list_folder(folder)) {
    if (entry.name.starts_with('.')) continue;
    const std::string path = folder + "/" + entry.name;
    if (entry.is_folder) {
      find_images(path, depth + 1, found);
    } else if (has_image_suffix(entry.name)) {
      found.push_back(path);
    }
  }
}

}  // namespace

std::vector<std::string> image_files(const std::string& folder) {
  std::vector<std::string> found;
  find_images(folder, 0, found);
  return found;
}

namespace {

class FolderSource : public Source {
 public:
  FolderSource(const ImageFolder& options, const SourceContext& context) : mode_(options.mode) {
    std::vector<std::string> folders;  // class folder of each file, parallel to files_
    std::vector<std::string> classes;
    for (const std::string& root : expand_paths(context.root, options.path)) {
      GALLEY_CHECK_FILE(is_folder(root), root, "not a folder; image_folder needs a folder with one subfolder per class");
      roots_ += roots_.empty() ? root : ", " + root;
      for (const FolderEntry& entry : list_folder(root)) {
        if (!entry.is_folder || entry.name.starts_with('.')) continue;
        classes.push_back(entry.name);
        find_images(root + "/" + entry.name, 0, files_);
        folders.resize(files_.size(), entry.name);
      }
    }
    GALLEY_CHECK_FILE(!classes.empty(), roots_, "no class folders; image_folder needs one subfolder per class, with the images inside");
    const ClassNames names(options.classes, classes, roots_);
    for (const std::string& folder : folders) labels_.push_back(names.label(folder));
    categories_ = names.names();
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override { return files_[static_cast<size_t>(index)]; }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override { return cat("image_folder ", roots_, ": ", size(), " images, ", categories_.size(), " classes"); }
  std::vector<FieldType> fields() const override {
    return {image_field(mode_ == ColorMode::kRgb ? 3 : 1), label_field(static_cast<int64_t>(categories_.size()))};
  }
  Sample read(int64_t index) const override {
    const std::string& path = files_[static_cast<size_t>(index)];
    const std::string bytes = read_file(path);
    Sample sample;
    sample.set("input", decode_image(std::as_bytes(std::span(bytes)), mode_, path, {}, &sample.irregularity));
    sample.set("label", label(index));
    return sample;
  }

 private:
  ColorMode mode_;
  std::string roots_;
  std::vector<std::string> files_;
  std::vector<int64_t> labels_;
  std::vector<std::string> categories_;
};

}  // namespace

std::unique_ptr<Source> ImageFolder::open(const SourceContext& context) const { return std::make_unique<FolderSource>(*this, context); }

}  // namespace galley
