// The table of sources, their options, and code that they share.
#include "libcore/data/sources.h"

#include <glob.h>

#include <array>

#include "libcore/base/file.h"

namespace galley {
namespace {

constexpr std::string_view kShortClipsNames[] = {"fail", "skip", "repeat"};
constexpr std::string_view kTarLabelsNames[] = {"folder", "cls", "none"};
constexpr std::string_view kIdxSplitNames[] = {"train", "test"};
constexpr std::string_view kCifarNames[] = {"cifar10", "cifar100", "cifar100_coarse"};
constexpr std::string_view kUnpairedNames[] = {"fail", "skip"};
constexpr std::string_view kEmptyNames[] = {"keep", "skip"};
constexpr std::string_view kBadBoxesNames[] = {"fail", "skip"};
constexpr std::string_view kSyntheticNames[] = {"float", "image", "integer"};

constexpr OptionInfo kPaths{
    .name = "path", .doc = "Path, list of paths, or globs; relative ones start at data.root", .required = true, .main = true};
constexpr OptionInfo kClasses{.name = "classes", .doc = "Class names in the order of labels; default: the folders' names, sorted"};
constexpr OptionInfo kMode{.name = "mode", .doc = "Channels of the decoded image: rgb (3) or gray (1)"};

}  // namespace

void ImageFolder::options(OptionVisitor& visitor) {
  visitor.option(kPaths, path);
  visitor.option(kClasses, classes);
  visitor.choice(kMode, mode, kColorModeNames);
}

void VideoFolder::options(OptionVisitor& visitor) {
  visitor.option(kPaths, path);
  visitor.option(kClasses, classes);
  visitor.option({.name = "frames", .doc = "Frames of a clip", .min = 1}, frames);
  visitor.option({.name = "step", .doc = "Distance of a clip's frames in the video: 2 takes every second one", .min = 1}, step);
  visitor.option({.name = "clips", .doc = "Clips of each video, spread evenly over it; one is from its middle", .min = 1}, clips);
  visitor.choice({.name = "short", .doc = "videos with too few frames: fail; skip; repeat their last frame"}, short_clips,
                 kShortClipsNames);
  visitor.choice(kMode, mode, kColorModeNames);
}

void TarArchive::options(OptionVisitor& visitor) {
  visitor.option(kPaths, path);
  visitor.choice(
      {.name = "labels", .doc = "folder: the folder that holds the image; cls: the number in the .cls member of the same name; none"},
      labels, kTarLabelsNames);
  visitor.option(kClasses, classes);
  visitor.choice(kMode, mode, kColorModeNames);
  visitor.option({.name = "memory", .doc = "Largest size of an unpacked archive in memory", .unit = "bytes", .min = 0}, memory);
}

void MaskFolder::options(OptionVisitor& visitor) {
  visitor.option({.name = "images", .doc = "Folder of the images", .required = true, .main = true}, images);
  visitor.option({.name = "masks",
                  .doc = "Folder of the masks: for each image a PNG of the same name with class indices (palette or gray)",
                  .required = true},
                 masks);
  visitor.option({.name = "num_classes", .doc = "Classes are 0 .. num_classes-1", .min = 1, .max = 255, .required = true}, num_classes);
  visitor.option({.name = "ignore_index", .doc = "Value of pixels without a class, which losses and metrics ignore", .min = 0, .max = 255},
                 ignore_index);
  visitor.option({.name = "classes", .doc = "Class names in the order of the indices"}, classes);
  visitor.choice({.name = "unpaired", .doc = "Images without a mask: fail, or skip them"}, unpaired, kUnpairedNames);
  visitor.choice(kMode, mode, kColorModeNames);
}

void FlowPairs::options(OptionVisitor& visitor) {
  visitor.option(
      {.name = "path",
       .doc = "Folder of .flo files. NAME_flow.flo belongs to the frames NAME_img1 and NAME_img2, NAME.flo to the frame NAME and "
              "the next one by name",
       .required = true,
       .main = true},
      path);
  visitor.option({.name = "images", .doc = "Folder of the frames, with the same subfolders; default: path"}, images);
}

void ObjectOptions::common_options(OptionVisitor& visitor) {
  visitor.choice({.name = "empty", .doc = "Images without objects: keep them as background, or skip them"}, empty, kEmptyNames);
  visitor.choice({.name = "bad_boxes",
                  .doc = "Boxes without area, or more than a pixel outside their image: fail, or skip the box. Boxes that lie outside by "
                         "less are clipped"},
                 bad_boxes, kBadBoxesNames);
  visitor.choice(kMode, mode, kColorModeNames);
}

void Voc::options(OptionVisitor& visitor) {
  visitor.option({.name = "path", .doc = "Folder that has JPEGImages and Annotations; default: data.root", .main = true}, path);
  visitor.option({.name = "set", .doc = "The file of ImageSets/Main that lists the images, e.g. train; default: all annotations"}, set);
  visitor.option({.name = "classes", .doc = "Class names in the order of labels, which begin at 1; default: the 20 of Pascal VOC"},
                 classes);
  visitor.option({.name = "difficult", .doc = "Train on objects that are marked difficult. Metrics of VOC ignore them in any case"},
                 difficult);
  common_options(visitor);
}

void Coco::options(OptionVisitor& visitor) {
  visitor.option({.name = "images", .doc = "Folder of the images", .required = true, .main = true}, images);
  visitor.option({.name = "annotations", .doc = "JSON file with images, annotations and categories", .required = true}, annotations);
  visitor.option({.name = "renumber",
                  .doc = "Labels are 1, 2, ... in the order of category ids; without it they are the ids, as published models take them"},
                 renumber);
  visitor.option({.name = "masks", .doc = "Read the masks of objects too (polygons and run lengths): the field `masks`"}, masks);
  visitor.option({.name = "keypoints", .doc = "Read the key points of objects too: the field `keypoints`"}, keypoints);
  common_options(visitor);
}

void Idx::options(OptionVisitor& visitor) {
  visitor.option({.name = "path", .doc = "Folder of the four files of MNIST or Fashion-MNIST; default: data.root", .main = true}, path);
  visitor.choice({.name = "split", .doc = "Which pair of files of the folder: train-* or t10k-*"}, split, kIdxSplitNames);
  visitor.option({.name = "images", .doc = "File of images, .gz or not; default: by split"}, images);
  visitor.option({.name = "labels", .doc = "File of labels, .gz or not; default: by split"}, labels);
  visitor.option({.name = "classes", .doc = "Class names in the order of labels"}, classes);
  visitor.choice(kMode, mode, kColorModeNames);
}

void CifarBinary::options(OptionVisitor& visitor) {
  visitor.option({.name = "path", .doc = "The .bin files: path, list or globs", .required = true, .main = true}, path);
  visitor.choice({.name = "variant", .doc = "Format of the records; cifar100_coarse takes the 20 superclasses"}, variant, kCifarNames);
}

void CsvColumns::options(OptionVisitor& visitor) {
  visitor.option({.name = "label", .doc = "Column of the class index"}, label);
  visitor.option({.name = "dense", .doc = "Columns of `input` (f32): numbers from 0, ranges 1..13, header names"}, dense);
  visitor.option({.name = "sparse", .doc = "Columns of `sparse` (i64), e.g. indices of embeddings"}, sparse);
  visitor.option({.name = "target", .doc = "Columns of `target` (f32), for regression"}, target);
}

void Csv::options(OptionVisitor& visitor) {
  visitor.option(kPaths, path);
  visitor.option({.name = "delimiter", .doc = "One character; \\t is a tab"}, delimiter);
  visitor.option({.name = "header", .doc = "The first line names the columns"}, header);
  visitor.section({.name = "columns", .doc = "Columns of each field"}, columns);
  visitor.option({.name = "empty", .doc = "Value of empty cells; null: an empty cell is an error"}, empty);
}

void TensorFile::options(OptionVisitor& visitor) {
  visitor.option(
      {.name = "path", .doc = "Safetensors file with input [N,...] and label [N] or target [N,...]", .required = true, .main = true}, path);
}

void Synthetic::options(OptionVisitor& visitor) {
  visitor.option({.name = "samples", .doc = "Number of samples per epoch", .min = 1, .main = true}, samples);
  visitor.option({.name = "shape", .doc = "Shape of one sample, without the batch; default: the model's", .min = 1}, shape);
  visitor.option({.name = "classes", .doc = "Number of classes; labels are 0 .. classes-1; default: the model's classes", .min = 0},
                 classes);
  visitor.choice({.name = "values", .doc = "float: uniform, mean 0, variance 1; image: u8 pixels; integer: 0 .. high-1"}, values,
                 kSyntheticNames);
  visitor.option({.name = "high", .doc = "One more than the largest integer", .min = 0}, high);
}

ComponentKinds data_sources() {
  static constexpr std::array<ComponentKind, 16> kKinds{{
      {"image_folder", "images in one folder per class", make_options<ImageFolder>},
      {"video_folder", "clips of videos, which are folders of frames in one folder per class", make_options<VideoFolder>},
      {"tar", "images in .tar, .tar.gz or .tar.xz archives, read without extracting", make_options<TarArchive>},
      {"mask_folder", "images, and in another folder one mask of class indices per image", make_options<MaskFolder>},
      {"voc", "images with boxes around objects, in folders and XML files in the form of Pascal VOC", make_options<Voc>},
      {"coco", "images with boxes around objects, in a JSON file in the form of COCO", make_options<Coco>},
      {"flow_pairs", "pairs of frames with the flow between them, in .flo files", make_options<FlowPairs>},
      {"idx", "MNIST and Fashion-MNIST files, .gz or not", make_options<Idx>},
      {"cifar_binary", "the binary version of CIFAR-10 and CIFAR-100", make_options<CifarBinary>},
      {"csv", "a table of numbers", make_options<Csv>},
      {"text", "windows of tokens of text files, each with the token that follows", make_options<TextFiles>},
      {"jsonl", "texts or pairs of texts, with labels, as JSON Lines (one object per line)", make_options<JsonLines>},
      {"text_pairs", "texts or pairs of texts, with labels, in columns of a table (TSV, CSV)", make_options<TextPairs>},
      {"squad", "questions with contexts that have the answers: SQuAD's format, or JSON Lines", make_options<Squad>},
      {"tensors", "a safetensors file with input and label or target", make_options<TensorFile>},
      {"synthetic", "random numbers of the model's input shape", make_options<Synthetic>},
  }};
  return kKinds;
}

std::unique_ptr<Source> open_source(const Component& component, const SourceContext& context) {
  const auto* options = component.as<SourceOptions>();
  GALLEY_ASSERT(options != nullptr, "not a data source: ", component.type);
  std::unique_ptr<Source> source = options->open(context);
  if (source->size() == 0) fail(ErrorCode::kNumeric, "no samples: ", source->describe());
  return source;
}

FieldType image_field(int64_t channels, int64_t height, int64_t width) {
  return {.name = "input", .kind = FieldKind::kImage, .dtype = DType::kU8, .sample = {channels, height, width}};
}

FieldType label_field(int64_t classes) { return {.name = "label", .kind = FieldKind::kClass, .dtype = DType::kI64, .classes = classes}; }

const std::vector<std::string>& Source::categories() const {
  static const std::vector<std::string> none;
  return none;
}

void check_labels(const Source& source, int64_t classes) {
  for (int64_t i = 0; i < source.size(); ++i) {
    const int64_t label = source.label(i);
    GALLEY_CHECK_FILE(label >= 0 && label < classes, source.sample_name(i), "label ", label, ", but the model has ", classes,
                      " classes (0 .. ", classes - 1, "); set the model's num_classes, or correct the label");
  }
}

std::string below_root(const std::string& root, const std::string& path) {
  if (root.empty() || path.starts_with('/')) return path;
  if (path.empty()) return root;
  return root.ends_with('/') ? root + path : root + "/" + path;
}

std::string stem_below(const std::string& folder, const std::string& path) {
  const size_t begin = folder.size() + 1, dot = path.rfind('.');
  return path.substr(begin, dot - begin);
}

std::vector<std::string> expand_paths(const std::string& root, const std::vector<std::string>& paths) {
  std::vector<std::string> result;
  for (const std::string& path : paths) {
    const std::string full = below_root(root, path);
    if (file_exists(full)) {  // checked first, because a file name may contain wildcard characters
      result.push_back(full);
      continue;
    }
    const auto missing = [&](const char* what) {  // the key: see with_source in tools/common
      return in_file(full, what).key("data.root").suggest("set data.root or the source's path");
    };
    if (full.find_first_of("*?[") == std::string::npos) throw missing("no such file or folder");
    glob_t matches{};
    const int status = glob(full.c_str(), GLOB_ERR, nullptr, &matches);
    for (size_t i = 0; i < matches.gl_pathc; ++i) result.emplace_back(matches.gl_pathv[i]);
    globfree(&matches);
    if (status != 0) throw missing("no file matches");
  }
  return result;
}

}  // namespace galley
