// Pairs of images: flow_pairs with the flow between them, and those that a command line names.
#include <algorithm>
#include <filesystem>
#include <map>

#include "libcore/base/counted.h"
#include "libcore/base/file.h"
#include "libcore/data/flow.h"
#include "libcore/data/frame_order.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

constexpr std::string_view kFlow = "flow", kSuffix = ".flo";

std::vector<FieldType> pair_fields() {
  std::vector<FieldType> fields;
  for (const std::string_view name : kPair) {
    fields.push_back(image_field(3));
    fields.back().name = name;
  }
  return fields;
}

Image read_frame(const std::string& path, Sample& sample) {
  const std::string bytes = read_file(path);
  Irregularity irregularity;
  Image image = decode_image(std::as_bytes(std::span(bytes)), ColorMode::kRgb, path, {}, &irregularity);
  if (!irregularity.kind.empty()) sample.irregularity = irregularity;
  return image;
}

/// Sets both images. Throws BadSample if their sizes differ.
void read_pair(const std::array<std::string, 2>& files, Sample& sample) {
  Image first = read_frame(files[0], sample), second = read_frame(files[1], sample);
  if (first.height() != second.height() || first.width() != second.width())
    throw BadSample("size", files[1],
                    cat("the second image has ", second.width(), " x ", second.height(), " pixels, the first, ", files[0], ", has ",
                        first.width(), " x ", first.height()));
  sample.set(std::string(kPair[0]), std::move(first));
  sample.set(std::string(kPair[1]), std::move(second));
}

std::vector<std::string> flow_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() == kSuffix) found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

class FlowSource : public PairSource {
 public:
  FlowSource(const FlowPairs& options, const SourceContext& context) : folder_(below_root(context.root, options.path)) {
    while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
    std::string images = options.images.empty() ? folder_ : below_root(context.root, options.images);
    while (images.size() > 1 && images.ends_with('/')) images.pop_back();
    for (const std::string& folder : {folder_, images}) {
      if (is_folder(folder)) continue;
      throw in_file(folder, "no such folder").key("data.root").suggest("set data.root, or the source's `path` and `images`");
    }
    std::map<std::string, std::string, FrameOrder> frames;
    for (const std::string& path : image_files(images)) frames.emplace(stem_below(images, path), path);
    for (const std::string& path : flow_files(folder_)) {
      const std::string stem = stem_below(folder_, path);
      std::array<std::string, 2> names{stem, ""};  // the second is "" for the frame after the first
      auto first = frames.find(stem), second = frames.end();
      if (constexpr std::string_view kEnd = "_flow"; stem.ends_with(kEnd)) {
        const std::string name = stem.substr(0, stem.size() - kEnd.size());
        names = {name + "_img1", name + "_img2"};
        first = frames.find(names[0]);
        second = frames.find(names[1]);
      } else if (first != frames.end() && std::next(first) != frames.end()) {
        const std::string& next = std::next(first)->first;
        const auto folder_of = [](const std::string& name) { return name.substr(0, name.rfind('/') + 1); };
        if (folder_of(next) == folder_of(stem)) second = std::next(first);
      }
      for (size_t i = 0; i < 2; ++i) {
        const bool found = (i == 0 ? first : second) != frames.end();
        GALLEY_CHECK_FILE(found, path, "no image for ", images, "/", names[i],
                          names[i].empty() ? cat(" (the frame after ", stem, ")") : "");
      }
      samples_.push_back({{first->second, second->second}, path});
    }
    GALLEY_CHECK_FILE(!samples_.empty(), folder_, "no .flo file");
  }

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override { return samples_[static_cast<size_t>(index)].flow; }
  std::array<std::string, 2> files(int64_t index) const override { return samples_[static_cast<size_t>(index)].images; }
  std::string describe() const override { return cat("flow_pairs ", folder_, ": ", counted(size(), "pair"), " of images with their flow"); }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields = pair_fields();
    fields.push_back({.name = std::string(kFlow), .kind = FieldKind::kFlow, .sample = {3, kOpenSize, kOpenSize}});
    return fields;
  }
  Sample read(int64_t index) const override {
    const Entry& entry = samples_[static_cast<size_t>(index)];
    Sample sample;
    read_pair(entry.images, sample);
    const std::string bytes = read_file(entry.flow);
    Flow flow{parse_flo(std::as_bytes(std::span(bytes)), entry.flow)};
    const Image& image = *sample.image();
    if (flow.vectors.height() != image.height() || flow.vectors.width() != image.width())
      throw BadSample("size", entry.flow,
                      cat("the flow has ", flow.vectors.width(), " x ", flow.vectors.height(), " pixels, its image ", entry.images[0],
                          " has ", image.width(), " x ", image.height()));
    sample.set(std::string(kFlow), std::move(flow));
    return sample;
  }

 private:
  struct Entry {
    std::array<std::string, 2> images;
    std::string flow;
  };
  std::string folder_;
  std::vector<Entry> samples_;
};

class ImagePairs : public PairSource {
 public:
  explicit ImagePairs(const std::vector<std::string>& paths) {
    if (paths.empty() || paths.size() % 2 != 0)
      throw Error(ErrorCode::kUsage, cat("the model takes pairs of images, but the command line has ", counted(std::ssize(paths), "file")))
          .suggest("a.png b.png: how the pixels of a move to b");
    for (size_t i = 0; i < paths.size(); i += 2) pairs_.push_back({paths[i], paths[i + 1]});
  }
  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override { return pairs_[static_cast<size_t>(index)][0]; }
  std::array<std::string, 2> files(int64_t index) const override { return pairs_[static_cast<size_t>(index)]; }
  std::string describe() const override { return counted(size(), "pair") + " of images"; }
  std::vector<FieldType> fields() const override { return pair_fields(); }
  Sample read(int64_t index) const override {
    Sample sample;
    for (const std::string& path : files(index)) {
      if (!file_exists(path)) throw BadSample("missing", path, "no such file");
    }
    read_pair(files(index), sample);
    return sample;
  }

 private:
  std::vector<std::array<std::string, 2>> pairs_;
};

}  // namespace

std::unique_ptr<Source> FlowPairs::open(const SourceContext& context) const { return std::make_unique<FlowSource>(*this, context); }
std::unique_ptr<Source> open_image_pairs(const std::vector<std::string>& paths) { return std::make_unique<ImagePairs>(paths); }

}  // namespace galley
