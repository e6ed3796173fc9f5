// tar: images in archives, without extracting them. Plain archives are indexed once, and members are read at their offsets. Compressed
// archives are unpacked into memory once.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "libcore/base/file.h"
#include "libcore/data/labels.h"
#include "libcore/data/sources.h"
#include "libcore/data/tar_index.h"
#include "libcore/data/unpack.h"

namespace galley {
namespace {

/// The bytes of an archive, in a file or in memory.
class Archive {
 public:
  Archive(std::string path, int64_t memory) : path_(std::move(path)) {
    const bool plain = is_plain_tar();
    if (plain) {
      members_ = index_tar(MappedFile::open(path_)->bytes(), path_);
      file_ = std::make_unique<InputFile>(path_);
    } else {
      unpacked_ = is_gzip(path_) ? read_gzip(path_, memory) : read_compressed(path_, memory);
      members_ = index_tar(unpacked_, path_);
    }
  }
  const std::string& path() const { return path_; }
  const std::vector<TarMember>& members() const { return members_; }
  /// The bytes of a member. Archives in files are read into `buffer`.
  std::span<const std::byte> read(const TarMember& member, std::vector<std::byte>& buffer) const {
    if (file_ == nullptr) return std::span(unpacked_).subspan(static_cast<size_t>(member.offset), static_cast<size_t>(member.size));
    buffer.resize(static_cast<size_t>(member.size));
    file_->read(member.offset, buffer);
    return buffer;
  }
  int64_t memory() const { return static_cast<int64_t>(unpacked_.size()); }

 private:
  /// Checks the magic of ustar, pax and GNU archives.
  bool is_plain_tar() const {
    const InputFile file(path_);
    std::array<std::byte, 5> magic{};
    if (file.size() < 512) return false;
    file.read(257, magic);
    return std::string_view(reinterpret_cast<const char*>(magic.data()), 5) == "ustar";
  }

  std::string path_;
  std::vector<TarMember> members_;
  std::unique_ptr<InputFile> file_;
  std::vector<std::byte> unpacked_;
};

std::string_view base_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

/// The name of the folder that directly holds a member; "" at the top level.
std::string parent_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? "" : std::string(base_name(name.substr(0, slash)));
}

/// The key that pairs members: the name up to the first dot of its last part (as in webdataset).
std::string pair_key(std::string_view name) {
  const size_t start = name.size() - base_name(name).size();
  return std::string(name.substr(0, std::min(name.find('.', start), name.size())));
}

class TarSource : public Source {
 public:
  TarSource(const TarArchive& options, const SourceContext& context) : mode_(options.mode), categories_(options.classes) {
    int64_t memory = options.memory;
    for (const std::string& path : expand_paths(context.root, options.path)) {
      archives_.push_back(std::make_unique<Archive>(path, memory));
      memory -= archives_.back()->memory();
    }
    for (const auto& archive : archives_)
      for (const TarMember& member : archive->members())
        if (has_image_suffix(member.name)) images_.push_back({archive.get(), &member});
    if (options.labels == TarLabels::kFolder) {
      label_by_folder();
    } else if (options.labels == TarLabels::kCls) {
      label_by_cls();
    }
  }

  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  int64_t label(int64_t index) const override { return labels_.empty() ? -1 : labels_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override { return name_of(images_[static_cast<size_t>(index)]); }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override {
    std::string paths;
    for (const auto& archive : archives_) paths += (paths.empty() ? "" : ", ") + archive->path();
    return cat("tar ", paths, ": ", size(), " images, ", categories_.size(), " classes");
  }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields{image_field(mode_ == ColorMode::kRgb ? 3 : 1)};
    if (!labels_.empty()) fields.push_back(label_field(static_cast<int64_t>(categories_.size())));
    return fields;
  }
  Sample read(int64_t index) const override {
    const Entry& entry = images_[static_cast<size_t>(index)];
    thread_local std::vector<std::byte> buffer;
    Sample sample;
    sample.set("input", decode_image(entry.archive->read(*entry.member, buffer), mode_, name_of(entry), {}, &sample.irregularity));
    if (!labels_.empty()) sample.set("label", label(index));
    return sample;
  }

 private:
  struct Entry {
    const Archive* archive;
    const TarMember* member;
  };
  static std::string name_of(const Entry& entry) { return entry.archive->path() + ":" + entry.member->name; }

  void label_by_folder() {
    std::vector<std::string> folders;
    for (const Entry& entry : images_) {
      folders.push_back(parent_name(entry.member->name));
      GALLEY_CHECK_INPUT(!folders.back().empty(), name_of(entry),
                         ": not in a folder that names its class; set labels: cls if .cls members hold the labels");
    }
    const ClassNames names(categories_, folders, archives_.front()->path());
    for (const std::string& folder : folders) labels_.push_back(names.label(folder));
    categories_ = names.names();
  }

  void label_by_cls() {
    std::unordered_map<std::string, int64_t> cls;
    std::vector<std::byte> buffer;
    const auto key_of = [](const Archive& archive, const TarMember& member) { return archive.path() + ":" + pair_key(member.name); };
    for (const auto& archive : archives_) {
      for (const TarMember& member : archive->members()) {
        if (!member.name.ends_with(".cls")) continue;
        const std::string name = archive->path() + ":" + member.name;
        GALLEY_CHECK_FILE(member.size <= 64, name, "a .cls member of ", member.size, " bytes; it must hold one number");
        const auto bytes = archive->read(member, buffer);
        std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
        int64_t label = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
        GALLEY_CHECK_FILE(error == std::errc() && end == text.data() + text.size(), name, "'", text, "' is not a class number");
        GALLEY_CHECK_INPUT(cls.emplace(key_of(*archive, member), label).second, name, ": two .cls members have this name");
      }
    }
    for (const Entry& entry : images_) {
      const auto found = cls.find(key_of(*entry.archive, *entry.member));
      GALLEY_CHECK_INPUT(found != cls.end(), name_of(entry), ": no .cls member of the same name (or two images with this name)");
      labels_.push_back(found->second);
      cls.erase(found);
    }
    GALLEY_CHECK_INPUT(cls.empty(), cls.begin()->first, ".cls: no image of the same name");
  }

  ColorMode mode_;
  std::vector<std::unique_ptr<Archive>> archives_;
  std::vector<Entry> images_;
  std::vector<int64_t> labels_;
  std::vector<std::string> categories_;
};

}  // namespace

std::unique_ptr<Source> TarArchive::open(const SourceContext& context) const { return std::make_unique<TarSource>(*this, context); }

}  // namespace galley
