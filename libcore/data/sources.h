#pragma once
// The option structs of the sources (see source.h). sources.cpp documents every option.

#include <optional>

#include "libcore/data/codec.h"
#include "libcore/data/source.h"

namespace galley {

/// A folder with one subfolder of images per class.
struct ImageFolder : SourceOptionsOf<ImageFolder> {
  std::vector<std::string> path;
  std::vector<std::string> classes;
  ColorMode mode = ColorMode::kRgb;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Folders with too few frames for a clip.
enum class ShortClips { kFail, kSkip, kRepeat };

/// Videos as folders of frames: one folder for each class, with a folder of images for each video, in the order of their names.
struct VideoFolder : SourceOptionsOf<VideoFolder> {
  std::vector<std::string> path;
  std::vector<std::string> classes;
  int64_t frames = 16, step = 1, clips = 1;
  ShortClips short_clips = ShortClips::kFail;
  ColorMode mode = ColorMode::kRgb;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Where labels of a tar archive come from: the folder's name, a .cls member, or nowhere.
enum class TarLabels { kFolder, kCls, kNone };

/// Images in tar archives. Plain archives are read in place, compressed ones from memory; nothing is extracted to disk.
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

/// The four files of MNIST or Fashion-MNIST, gzipped or not.
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

/// Record format of the files, and for kCifar100Coarse the 20 superclasses as labels.
enum class CifarVariant { kCifar10, kCifar100, kCifar100Coarse };

/// The binary version of CIFAR-10 and CIFAR-100.
struct CifarBinary : SourceOptionsOf<CifarBinary> {
  std::vector<std::string> path;
  CifarVariant variant = CifarVariant::kCifar10;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Images without objects, and boxes that cannot be used.
enum class EmptyImages { kKeep, kSkip };
enum class BadBoxes { kFail, kSkip };

/// What sources of boxes have in common. Fields: `input`, `boxes` and `labels` (objects.h).
struct ObjectOptions : SourceOptions {
  EmptyImages empty = EmptyImages::kKeep;
  BadBoxes bad_boxes = BadBoxes::kFail;
  ColorMode mode = ColorMode::kRgb;
  /// Names of the classes of weights, by number, from which labels are taken where they have all names of the data. Not an option: set by
  /// evaluations.
  std::vector<std::string> learned;

 protected:
  void common_options(OptionVisitor& visitor);
};

/// A folder in the form of Pascal VOC: JPEGImages, Annotations, ImageSets/Main.
struct Voc : ObjectOptions {
  std::string path, set;
  std::vector<std::string> classes;
  bool difficult = true;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Voc>(*this); }
};

/// A folder of images and a JSON file of objects in the form of COCO.
struct Coco : ObjectOptions {
  std::string images, annotations;
  bool renumber = false, masks = false, keypoints = false;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Coco>(*this); }
};

/// Columns of each field of a csv file: numbers from 0, ranges "1..13" (both ends included), or header names.
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

/// Text files as windows of tokens; the label of each token is the next token.
struct TextFiles : SourceOptionsOf<TextFiles> {
  std::vector<std::string> path;
  std::optional<int64_t> sequence_length;
  std::string cache = "auto";  ///< Where tokens are kept (TokenCache).
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Columns of a table of texts, or keys of JSON objects.
struct TextColumns : OptionsOf<TextColumns> {
  std::string text = "text";
  std::optional<std::string> pair, label, target, labels, next_sentence;
  std::vector<std::string> values;
  void options(OptionVisitor& visitor) override;
};
/// What sources of one text, or one pair of texts, a sample have in common. Fields: `input`, of pairs `token_types` (0 and 1), both padded
/// with their lengths; `label` where a column has it; `target` where columns have values or labels: the numbers, or 0 and 1 for each class;
/// `next_sentence_label`. With a target, for encoder-decoder models: `src`, `tgt` (the begin token and the target) and `label` (the target
/// and the end token), each padded.
struct TextRowOptions : SourceOptions {
  std::vector<std::string> path;
  TextColumns columns;
  std::optional<int64_t> max_length, max_target_length;
  std::string begin = "auto", end = "auto", label_separator = ",";
  std::vector<std::string> classes;

 protected:
  void common_options(OptionVisitor& visitor);
};
/// Files with one JSON object per line.
struct JsonLines : TextRowOptions {
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<JsonLines>(*this); }
};
/// Tables: TSV, CSV.
struct TextPairs : TextRowOptions {
  std::string delimiter = "\\t";
  bool header = false;
  std::optional<bool> quoted;
  TextPairs() { columns.text = "0"; }
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<TextPairs>(*this); }
};

/// Keys of a question.
struct QuestionColumns : OptionsOf<QuestionColumns> {
  std::string question = "question", context = "context", answers = "answers";
  void options(OptionVisitor& visitor) override;
};
/// Questions whose answers are parts of a context. Samples are windows over contexts (text/windows.h): `input` and `token_types`, padded
/// with their lengths, and `start_positions` and `end_positions`, the first and the last token of the first answer, or both 0 where the
/// window does not have it.
struct Squad : SourceOptionsOf<Squad> {
  std::vector<std::string> path;
  QuestionColumns columns;
  std::optional<int64_t> max_length;
  int64_t doc_stride = 128;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// Values of synthetic inputs: uniform floats, u8 pixels, or integers.
enum class SyntheticKind { kFloat, kImage, kInteger };

/// Random numbers of the model's input shape, a pure function of seed and index.
struct Synthetic : SourceOptionsOf<Synthetic> {
  int64_t samples = 1024;
  std::vector<int64_t> shape;
  int64_t classes = 0;
  SyntheticKind values = SyntheticKind::kFloat;
  int64_t high = 0;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// What happens to an image without a mask.
enum class Unpaired { kFail, kSkip };

/// Images, and in another folder a class mask of the same name for each.
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

/// Pairs of frames with the flow between them, in .flo files.
struct FlowPairs : SourceOptionsOf<FlowPairs> {
  std::string path, images;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Source> open(const SourceContext& context) const override;
};

/// All image files below a folder, sorted by name. Hidden files are left out.
std::vector<std::string> image_files(const std::string& folder);
/// Whether a path has the suffix of an archive: .tar, .tar.gz, .tgz, .tar.xz, .tar.bz2, .tar.zst.
bool is_archive(std::string_view path);

/// A source of tensors in memory: `input` [N,...] with `label` [N] and/or `target` [N,...]. `name` is for messages.
std::unique_ptr<Source> source_of_tensors(std::map<std::string, Tensor> tensors, const std::string& name);

}  // namespace galley
