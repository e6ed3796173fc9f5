#pragma once
// The option structs of the sources; see source.h. Every option is documented where it is listed (sources.cpp).

#include <optional>

#include "libcore/data/codec.h"
#include "libcore/data/source.h"

namespace galley {

/// A folder of class folders of images.
struct ImageFolder : SourceOptionsOf<ImageFolder> {
  std::vector<std::string> path;
  std::vector<std::string> classes;
  ColorMode mode = ColorMode::kRgb;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

enum class TarLabels { kFolder, kCls, kNone };

/// Images in tar archives, read in place (.tar) or from memory (compressed ones); nothing is ever extracted.
struct TarArchive : SourceOptionsOf<TarArchive> {
  std::vector<std::string> path;
  TarLabels labels = TarLabels::kFolder;
  std::vector<std::string> classes;
  ColorMode mode = ColorMode::kRgb;
  int64_t memory = int64_t{2} << 30;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

enum class IdxSplit { kTrain, kTest };

/// The MNIST family's files, gzipped or not.
struct Idx : SourceOptionsOf<Idx> {
  std::string path;
  IdxSplit split = IdxSplit::kTrain;
  std::string images;
  std::string labels;
  std::vector<std::string> classes;
  ColorMode mode = ColorMode::kGray;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

enum class CifarVariant { kCifar10, kCifar100, kCifar100Coarse };

/// The binary version of CIFAR-10 and CIFAR-100.
struct CifarBinary : SourceOptionsOf<CifarBinary> {
  std::vector<std::string> path;
  CifarVariant variant = CifarVariant::kCifar10;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Which columns of a csv file make which field: numbers from 0, ranges "1..13" (both ends included), or header names.
struct CsvColumns : OptionsOf<CsvColumns> {
  std::vector<std::string> label, dense, sparse, target;
  void options(OptionVisitor& visitor) override;
};

/// A table of numbers.
struct Csv : SourceOptionsOf<Csv> {
  std::vector<std::string> path;
  std::string delimiter = ",";
  bool header = false;
  CsvColumns columns;
  std::optional<double> empty;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// A safetensors file with `input` and `label` or `target`.
struct TensorFile : SourceOptionsOf<TensorFile> {
  std::string path;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Text files as windows of tokens; labels are the tokens that follow.
struct TextFiles : SourceOptionsOf<TextFiles> {
  std::vector<std::string> path;
  std::optional<int64_t> sequence_length;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

enum class SyntheticKind { kFloat, kImage, kInteger };

/// Random numbers of the model's input shape: a pure function of seed and index.
struct Synthetic : SourceOptionsOf<Synthetic> {
  int64_t samples = 1024;
  std::vector<int64_t> shape;
  int64_t classes = 0;
  SyntheticKind values = SyntheticKind::kFloat;
  int64_t high = 0;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

enum class Unpaired { kFail, kSkip };

/// Images with a mask of classes for each, in another folder under the same name.
struct MaskFolder : SourceOptionsOf<MaskFolder> {
  std::string images, masks;
  int64_t num_classes = 0;
  std::optional<int64_t> ignore_index;
  std::vector<std::string> classes;
  Unpaired unpaired = Unpaired::kFail;
  ColorMode mode = ColorMode::kRgb;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// All image files below a folder, in order of their names. Hidden ones are left out.
std::vector<std::string> image_files(const std::string& folder);
/// Whether a path is taken for an archive: .tar, .tar.gz, .tgz, .tar.xz, .tar.bz2, .tar.zst.
bool is_archive(std::string_view path);

/// A source of tensors in memory: `input` [N,...] with `label` [N] and/or `target` [N,...]. `name` is for messages.
std::unique_ptr<Source> source_of_tensors(std::map<std::string, Tensor> tensors, const std::string& name);

}  // namespace galley
