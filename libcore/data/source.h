#pragma once
// Source: a list of samples that can be read in any order, by any thread. The kinds of sources (image_folder, tar, idx, ...)
// are option structs, in the table data_sources(); each opens itself.

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

class Tokenizer;

/// Samples 0 .. size()-1. All labels are in memory once it is open. Thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  /// What every sample holds. Sizes that differ between samples, or that only decoding tells, are kOpenSize.
  virtual std::vector<FieldType> fields() const = 0;
  /// Decodes one sample; throws BadSample where its data is damaged.
  virtual Sample read(int64_t index) const = 0;
  /// The class of a sample before it is read, for check_labels; -1 where samples have none.
  virtual int64_t label(int64_t index) const = 0;
  /// Where a sample comes from, for messages: "train/cat/0001.jpg", "images.gz[17]", "clicks.csv:18".
  virtual std::string sample_name(int64_t index) const = 0;
  /// Names of the classes, in the order of labels; empty where the source does not know them.
  virtual const std::vector<std::string>& categories() const;
  /// One line: kind, place, samples, classes.
  virtual std::string describe() const = 0;
};

/// Declarations that several sources share: an image `input` of open size, and a class index `label`.
FieldType image_field(int64_t channels, int64_t height = kOpenSize, int64_t width = kOpenSize);
FieldType label_field(int64_t classes = 0);

/// Throws, naming the first offender, where a label is not in 0 .. classes-1 (call it before the first step).
void check_labels(const Source& source, int64_t classes);

/// What a source may need from outside of its own options.
struct SourceContext {
  std::string root;                     ///< Relative paths start here; "" is the working folder.
  Shape input_shape;                    ///< The model's input without the batch: what `synthetic` makes.
  int64_t classes = 0;                  ///< The model's classes; 0 where it has none.
  std::vector<FieldType> targets = {};  ///< What the task compares with: what `synthetic` makes besides the input.
  uint64_t seed = 0;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< Of text; null: bytes.
  /// Reads a safetensors file into named tensors (room weights comes later in the order of rooms).
  std::function<std::map<std::string, Tensor>(const std::string& path)> load_tensors;
};

/// Base of the option structs of all sources.
class SourceOptions : public Options {
 public:
  virtual std::unique_ptr<Source> open(const SourceContext& context) const = 0;
};

template <class Self>
class SourceOptionsOf : public SourceOptions {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// The kinds of sources that a recipe may name.
ComponentKinds data_sources();
/// Opens a source of that table. Throws where files are missing or damaged, or a source has no samples.
std::unique_ptr<Source> open_source(const Component& component, const SourceContext& context);

/// Images without labels, in the order of `paths`: files, folders (all images below, by name) and tar archives. Throws where one of them
/// cannot be opened or a folder holds no image; with `keep_going` such a path counts as one sample, and reading it throws.
std::unique_ptr<Source> open_images(const std::vector<std::string>& paths, bool gray = false, bool keep_going = false);
/// Arrays without labels: each [N,...] is a field of its name, samples in order. `name` is for messages.
std::unique_ptr<Source> open_arrays(std::map<std::string, Tensor> inputs, const std::string& name);

/// `path` below `root` unless it is absolute.
std::string below_root(const std::string& root, const std::string& path);
/// The paths below `root`, globs expanded (sorted); an error for one that matches nothing.
std::vector<std::string> expand_paths(const std::string& root, const std::vector<std::string>& paths);

}  // namespace galley
