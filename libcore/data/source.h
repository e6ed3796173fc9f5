#pragma once
// Source: a list of samples that any thread can read in any order. The kinds of sources (image_folder, tar, idx, ...) are option structs,
// listed in data_sources(); each opens its own source.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/shape.h"
#include "libcore/data/sample.h"
#include "libcore/tensor/batch.h"

namespace galley {

namespace text {
class Tokenizer;
}

/// Samples 0 .. size()-1. All labels are in memory after opening. Thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  /// Number of samples.
  virtual int64_t size() const = 0;
  /// The fields of every sample. Sizes that differ between samples, or that only decoding reveals, are kOpenSize.
  virtual std::vector<FieldType> fields() const = 0;
  /// Decodes one sample. Throws BadSample if its data is damaged.
  virtual Sample read(int64_t index) const = 0;
  /// The class of a sample, without reading it, for check_labels; -1 if samples have no class.
  virtual int64_t label(int64_t index) const = 0;
  /// The length of a sample's padded fields, without decoding all of it; -1 if unknown.
  virtual int64_t length(int64_t index) const { return static_cast<void>(index), -1; }
  /// Location of a sample for messages: "train/cat/0001.jpg", "images.gz[17]", "clicks.csv:18".
  virtual std::string sample_name(int64_t index) const = 0;
  /// Names of the classes, in the order of labels; empty if the source does not know them.
  virtual const std::vector<std::string>& categories() const;
  /// One line for logs: kind, path, number of samples, number of classes.
  virtual std::string describe() const = 0;
};

/// Pairs of images from files.
class PairSource : public Source {
 public:
  virtual std::array<std::string, 2> files(int64_t index) const = 0;
};

/// Field types that several sources share: an image `input` of open size, and a class index `label`.
FieldType image_field(int64_t channels, int64_t height = kOpenSize, int64_t width = kOpenSize);
FieldType label_field(int64_t classes = 0);

/// Throws Error (exit 4), naming the first bad sample, if a label is outside 0 .. classes-1. Call it before the first step.
void check_labels(const Source& source, int64_t classes);

/// Facts from outside a source's own options.
struct SourceContext {
  std::string root;                     ///< Folder of relative paths; "" is the working folder.
  Shape input_shape;                    ///< Shape of the model's input without N; `synthetic` uses it.
  int64_t classes = 0;                  ///< Number of the model's classes; 0 if it has none.
  std::vector<FieldType> targets = {};  ///< The targets of the task; `synthetic` generates them.
  uint64_t seed = 0;
  std::shared_ptr<const text::Tokenizer> tokenizer;  ///< For text; null: one token per byte.
  /// Reads a safetensors file into named tensors. A callback, because this room may not include the room weights.
  std::function<std::map<std::string, Tensor>(const std::string& path)> load_tensors;
};

/// Base of the option structs of all sources.
class SourceOptions : public Options {
 public:
  /// Opens the source. Throws Error if files are missing or damaged.
  virtual std::unique_ptr<Source> open(const SourceContext& context) const = 0;
};

/// Implements clone() for the option struct Self.
template <class Self>
class SourceOptionsOf : public SourceOptions {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// The kinds of sources that a recipe may name.
ComponentKinds data_sources();
/// Opens a source of that table. Throws Error if files are missing or damaged, or the source has no samples.
std::unique_ptr<Source> open_source(const Component& component, const SourceContext& context);

/// Images without labels, in the order of `paths`: files, folders (all images inside, sorted by name) and tar archives. Throws Error if a
/// path cannot be opened or a folder holds no image. With `keep_going` such a path counts as one sample, and reading that sample throws.
std::unique_ptr<Source> open_images(const std::vector<std::string>& paths, bool gray = false, bool keep_going = false);
/// Pairs of images, `image1` and `image2`: the first path with the second, the third with the fourth, and so on. Throws Error (kUsage) for
/// an odd number.
std::unique_ptr<Source> open_image_pairs(const std::vector<std::string>& paths);
/// Clips without labels, one from the middle of each folder of frames. Their length and step are those of the source `trained_on` if it is
/// a video_folder, else `frames` and 1; shorter folders repeat their last frame. Throws Error if a path is not a folder with images; with
/// `keep_going` reading that sample throws.
std::unique_ptr<Source> open_clips(const std::vector<std::string>& folders, int64_t frames, const Component& trained_on,
                                   bool keep_going = false);
/// Arrays without labels: each tensor [N,...] is a field of the same name with N samples. `name` is for messages.
std::unique_ptr<Source> open_arrays(std::map<std::string, Tensor> inputs, const std::string& name);

/// Prepends `root` to a relative path.
std::string below_root(const std::string& root, const std::string& path);
/// The path of a file of `folder`, relative to it and without its extension.
std::string stem_below(const std::string& folder, const std::string& path);
/// The paths below `root`, with globs expanded and sorted. Throws Error if a path matches nothing.
std::vector<std::string> expand_paths(const std::string& root, const std::vector<std::string>& paths);

}  // namespace galley
