// idx and cifar_binary: small u8 images, held in memory.
#include "libcore/base/file.h"
#include "libcore/data/sources.h"
#include "libcore/data/unpack.h"

namespace galley {
namespace {

/// Limit for the unpacked size of a file: about 60 times MNIST's images.
constexpr int64_t kIdxBudget = int64_t{3} << 30;

/// Images of one size, stored as u8 [N,H,W,C].
class MemoryImages : public Source {
 public:
  MemoryImages(std::string kind, int64_t height, int64_t width, int64_t channels)
      : kind_(std::move(kind)), height_(height), width_(width), channels_(channels) {}

  int64_t size() const override { return static_cast<int64_t>(labels.size()); }
  int64_t label(int64_t index) const override { return labels[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override {
    size_t file = files.size() - 1;
    while (file > 0 && files[file].second > index) --file;
    return cat(files[file].first, "[", index - files[file].second, "]");
  }
  std::string describe() const override {
    return cat(kind_, " ", files.front().first, files.size() > 1 ? " ..." : "", ": ", size(), " images of ", channels_, " x ", height_,
               " x ", width_);
  }
  const std::vector<std::string>& categories() const override { return classes; }
  std::vector<FieldType> fields() const override {
    return {image_field(to_channels, height_, width_), label_field(static_cast<int64_t>(classes.size()))};
  }
  Sample read(int64_t index) const override {
    Image image(DType::kU8, height_, width_, channels_);
    std::memcpy(image.data(), pixels.data() + index * image.bytes(), static_cast<size_t>(image.bytes()));
    Sample sample;
    sample.set("input", to_channels == channels_ ? std::move(image) : image.with_channels(to_channels));
    sample.set("label", label(index));
    return sample;
  }

  /// Appends room for more pixels and returns its start.
  std::byte* add_pixels(int64_t bytes) {
    const size_t old = pixels.size();
    pixels.resize(old + static_cast<size_t>(bytes));
    return pixels.data() + old;
  }

  std::vector<std::byte> pixels;
  std::vector<int64_t> labels;
  std::vector<std::string> classes;
  std::vector<std::pair<std::string, int64_t>> files;  // path, and index of the file's first image
  int64_t to_channels = 0;

 private:
  std::string kind_;
  int64_t height_, width_, channels_;
};

int64_t big_endian(const std::vector<std::byte>& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = (value << 8) | std::to_integer<uint32_t>(bytes[at + i]);
  return value;
}

/// Checks the header of an IDX file of u8 values with `rank` dimensions, and returns the sizes. `bytes` is the whole file, header included.
std::vector<int64_t> parse_idx(const std::vector<std::byte>& bytes, size_t rank, const std::string& path) {
  GALLEY_CHECK_FILE(bytes.size() >= 4, path, "too short for an IDX file");
  const int64_t magic = big_endian(bytes, 0);
  GALLEY_CHECK_FILE(magic == static_cast<int64_t>(0x800 + rank), path, "not an IDX file of bytes with ", rank, " dimensions (magic number ",
                    magic, ", expected ", 0x800 + rank, "); are images and labels swapped?");
  GALLEY_CHECK_FILE(bytes.size() >= 4 + 4 * rank, path, "too short for an IDX file of ", rank, " dimensions (truncated)");
  std::vector<int64_t> sizes;
  const auto payload = static_cast<int64_t>(bytes.size() - 4 - 4 * rank);
  int64_t expected = 1;
  for (size_t i = 0; i < rank; ++i) {
    sizes.push_back(big_endian(bytes, 4 + 4 * i));
    GALLEY_CHECK_FILE(sizes.back() == 0 || expected <= kIdxBudget / sizes.back(), path, "the sizes in the header are too large");
    expected *= sizes.back();
  }
  GALLEY_CHECK_FILE(expected == payload, path, "the header says ", expected, " values, the file has ", payload,
                    payload < expected ? " (truncated)" : "");
  return sizes;
}

/// The path, or the path with .gz appended if only that file exists.
std::string existing(const std::string& path) { return !file_exists(path) && file_exists(path + ".gz") ? path + ".gz" : path; }

std::vector<std::byte> read_idx(const std::string& path) {
  if (!file_exists(path)) {
    throw in_file(path, "no such file")
        .key("data.root")
        .suggest(
            "set data.root or the source's `path` to the folder of the IDX files (Fashion-MNIST: Debian package dataset-fashion-mnist), or "
            "name the files by `images` and `labels`");
  }
  return read_gzip(path, kIdxBudget);
}

}  // namespace

std::unique_ptr<Source> Idx::open(const SourceContext& context) const {
  GALLEY_CHECK(images.empty() == labels.empty(),
               "[idx] set both `images` and `labels`, or neither (then `path` and `split` select the files)");
  const std::string folder = below_root(context.root, path);
  const std::string stem = split == IdxSplit::kTrain ? "train" : "t10k";
  const std::string image_path = existing(below_root(folder, images.empty() ? stem + "-images-idx3-ubyte" : images));
  const std::string label_path = existing(below_root(folder, labels.empty() ? stem + "-labels-idx1-ubyte" : labels));

  std::vector<std::byte> image_bytes = read_idx(image_path);
  const std::vector<int64_t> sizes = parse_idx(image_bytes, 3, image_path);
  const std::vector<std::byte> label_bytes = read_idx(label_path);
  const int64_t label_count = parse_idx(label_bytes, 1, label_path).front();
  GALLEY_CHECK_INPUT(sizes[0] == label_count, image_path, " has ", sizes[0], " images, ", label_path, " has ", label_count, " labels");
  GALLEY_CHECK_FILE(sizes[1] > 0 && sizes[2] > 0, image_path, "images of ", sizes[1], " x ", sizes[2], " pixels");

  auto source = std::make_unique<MemoryImages>("idx", sizes[1], sizes[2], 1);
  source->files = {{image_path, 0}};
  source->to_channels = mode == ColorMode::kRgb ? 3 : 1;
  image_bytes.erase(image_bytes.begin(), image_bytes.begin() + 16);
  source->pixels = std::move(image_bytes);
  source->classes = classes;
  for (size_t i = 8; i < label_bytes.size(); ++i) source->labels.push_back(std::to_integer<int64_t>(label_bytes[i]));
  return source;
}

std::unique_ptr<Source> CifarBinary::open(const SourceContext& context) const {
  constexpr int64_t kSide = 32, kPixels = kSide * kSide;
  const int64_t label_bytes = variant == CifarVariant::kCifar10 ? 1 : 2;
  const int64_t label_at = variant == CifarVariant::kCifar100 ? 1 : 0;  // CIFAR-100 records start with the coarse label, then the fine one
  const int64_t record = label_bytes + 3 * kPixels;
  auto source = std::make_unique<MemoryImages>("cifar_binary", kSide, kSide, 3);
  source->to_channels = 3;
  if (variant == CifarVariant::kCifar10)
    source->classes = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  for (const std::string& file : expand_paths(context.root, path)) {
    const std::string bytes = read_file(file);
    const auto size = static_cast<int64_t>(bytes.size());
    GALLEY_CHECK_FILE(size % record == 0, file, size, " bytes is not a multiple of the record size, ", record,
                      " bytes; check `variant`, or whether the file is truncated");
    source->files.emplace_back(file, source->size());
    std::byte* pixel = source->add_pixels(size / record * 3 * kPixels);
    for (int64_t at = 0; at < size; at += record) {
      const char* data = bytes.data() + at;
      source->labels.push_back(static_cast<unsigned char>(data[label_at]));
      const char* planes = data + label_bytes;
      for (int64_t i = 0; i < kPixels; ++i)
        for (int64_t c = 0; c < 3; ++c) *pixel++ = static_cast<std::byte>(planes[c * kPixels + i]);
    }
  }
  return source;
}

}  // namespace galley
