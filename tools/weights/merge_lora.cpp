// galley-weights merge-lora: adds the products of an adapter to the weights of its base.

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/hub.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"
#include "tools/common/output_file.h"
#include "tools/weights/values.h"
#include "tools/weights/weights.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// A tensor of the base, by its name in the model.
struct BaseTensor {
  std::string model_name;
  bool transposed = false;  // stored as [in, out]
};

/// Merges an adapter into the tensors of a base.
class Merge {
 public:
  Merge(std::string base, const AdapterFolder& adapter) : base_(std::move(base)), adapter_(adapter) {
    for (const std::string& layer : adapter.layers()) {
      layers_.emplace(layer + ".weight", layer);
      wanted_.push_back(layer + ".weight");
    }
    for (const OfferedTensor& tensor : adapter.tensors())
      if (!is_adapter_tensor(tensor.name)) wanted_.push_back(tensor.name);
  }

  /// The tensors of the result. The files must outlive them.
  std::vector<TensorSource> sources(const std::vector<WeightsFile>& files) {
    const std::vector<BaseTensor> names = model_names(files);
    std::vector<TensorSource> sources;
    size_t at = 0;
    for (const WeightsFile& file : files) {
      for (size_t i = 0; i < file.tensors().size(); ++i) add(sources, file, i, names[at++]);
    }
    for (const std::string& name : wanted_) {
      if (std::find(found_.begin(), found_.end(), name) != found_.end()) continue;
      const std::string near = nearest(name, known_);
      throw Error(ErrorCode::kInput, cat(base_, " has no tensor '", name, "', which the adapter ", adapter_.path(), " changes"))
          .suggest(near.empty() ? "the adapter belongs to another model" : cat("its nearest name is '", near, "'"));
    }
    return sources;
  }
  /// Number of tensors that the adapter stores in full.
  size_t replaced() const { return wanted_.size() - layers_.size(); }

 private:
  /// What the model calls the base's tensors. Hub folders have names and orientations of their own.
  std::vector<BaseTensor> model_names(const std::vector<WeightsFile>& files) const {
    std::vector<std::string> stored;
    for (const WeightsFile& file : files) {
      for (const OfferedTensor& tensor : file.tensors()) stored.push_back(tensor.name);
    }
    std::vector<BaseTensor> names;
    const bool galley =
        std::any_of(files.begin(), files.end(), [](const WeightsFile& f) { return f.metadata().contains("galley.recipe"); });
    // A file of a hub folder has the folder's names.
    const std::string parent = std::filesystem::path(base_).parent_path().string();
    const std::string folder = is_hub_folder(base_) ? base_ : parent.empty() ? "." : parent;
    if (galley || !is_hub_folder(folder)) {
      const bool transposed = !galley && stores_transposed(files);
      for (const std::string& name : stored) names.push_back({name, transposed});
      return names;
    }
    const HubFolder hub(folder);
    const std::vector<std::string_view> model(wanted_.begin(), wanted_.end());
    for (const HubName& name : hub_names(hub.tensors(), stored, model)) names.push_back({name.name, name.transposed});
    return names;
  }

  /// Whether files of another program store weights as [in, out]: by the shape of an adapted layer, or what the adapter says if all are
  /// square. Adapters of Galley say no, whatever the files of their base are.
  bool stores_transposed(const std::vector<WeightsFile>& files) const {
    for (const WeightsFile& file : files) {
      for (const OfferedTensor& tensor : file.tensors()) {
        const auto layer = layers_.find(tensor.name);
        if (layer == layers_.end()) continue;
        const int64_t out = adapter_.tensors()[*adapter_.find(layer->second + ".lora_B.weight")].shape[0],
                      in = adapter_.tensors()[*adapter_.find(layer->second + ".lora_A.weight")].shape[1];
        if (in != out) return tensor.shape == Shape{in, out};
      }
    }
    return adapter_.config().transposed;
  }

  void add(std::vector<TensorSource>& sources, const WeightsFile& file, size_t i, const BaseTensor& base) {
    const OfferedTensor& tensor = file.tensors()[i];
    const std::string& name = base.model_name;
    GALLEY_CHECK_INPUT(tensor.dtype.has_value(), file.path(), ": tensor '", tensor.name, "' has the dtype ", tensor.dtype_text,
                       ", which Galley does not support");
    const std::optional<size_t> replaced = adapter_.find(name);
    if (replaced && is_adapter_tensor(name)) return;  // of the run that trained the adapter
    known_.push_back(name);
    const auto layer = layers_.find(name);
    if (layer != layers_.end()) {
      found_.push_back(name);
      const size_t a = *adapter_.find(layer->second + ".lora_A.weight"), b = *adapter_.find(layer->second + ".lora_B.weight");
      const int64_t out = adapter_.tensors()[b].shape[0], in = adapter_.tensors()[a].shape[1];
      const Shape needed = base.transposed ? Shape{in, out} : Shape{out, in};
      GALLEY_CHECK_INPUT(tensor.shape == needed, adapter_.path(), ": the adapter of '", layer->second, "' needs a weight ", needed,
                         ", that of ", base_, " is ", tensor.shape, "; the adapter belongs to another model");
      GALLEY_CHECK_INPUT(is_floating(*tensor.dtype), file.path(), ": tensor '", tensor.name, "' has the dtype ", *tensor.dtype,
                         "; an adapter can be merged into floating-point weights only");
      sources.emplace_back(tensor.name, *tensor.dtype, tensor.shape, [this, &file, i, a, b, transposed = base.transposed] {
        return merge_adapter(file.read(i), adapter_.read(a), adapter_.read(b), adapter_.config(), transposed);
      });
    } else if (replaced) {
      found_.push_back(name);
      const Shape& shape = adapter_.tensors()[*replaced].shape;
      GALLEY_CHECK_INPUT(shape == tensor.shape, adapter_.path(), ": tensor '", name, "' has the shape ", shape, ", that of ", base_, " is ",
                         tensor.shape, "; the adapter belongs to another model");
      sources.emplace_back(tensor.name, *tensor.dtype, tensor.shape,
                           [this, index = *replaced, to = *tensor.dtype] { return adapter_.read(index).to(to); });
    } else {
      sources.emplace_back(tensor.name, *tensor.dtype, tensor.shape, [&file, i] { return file.read(i); });
    }
  }

  const std::string base_;
  const AdapterFolder& adapter_;
  std::map<std::string, std::string> layers_;  // by the names of their weights
  std::vector<std::string> wanted_;            // names of the model's tensors that change
  std::vector<std::string> found_, known_;
};

}  // namespace

void WeightsTool::add_merge_options(Command& command) {
  Command merge = verb(command, "merge-lora", "add an adapter (LoRA) to the weights that it was trained on", &WeightsTool::merge_lora);
  merge
      .add_option("BASE", words_,
                  "the base's weights: a file, a run, a checkpoint, a hub folder, or MODEL/NAME; then ADAPTER, a folder with "
                  "adapter_config.json, e.g. RUN/adapter")
      .type_name("ADAPTER");
  merge.add_option("-o,--output", output_, "the safetensors file to write, with the names of BASE").group("Output").take_last();
}

int WeightsTool::merge_lora() const {
  check_word_count(2, 2, "the weights of a base and the folder of an adapter");
  check_output_file(output_, "merge-lora writes a file", "FILE.safetensors");
  const Opened base = open(words_[0]);
  const AdapterFolder adapter(words_[1]);
  Metadata metadata{{"format", "pt"}};
  for (const WeightsFile& file : base.files) {
    file.verify();
    GALLEY_CHECK_INPUT(!file.metadata().contains(std::string(kQuantizationKey)), file.path(),
                       " is quantized; merge the adapter into the float weights that it was made from, then quantize the result");
    for (const char* key : {"galley.pipeline", "galley.categories", "galley.input", "galley.tokenizer"}) {
      if (const auto value = file.metadata().find(key); value != file.metadata().end()) metadata.insert(*value);
    }
  }
  Merge merge(words_[0], adapter);
  const std::vector<TensorSource> sources = merge.sources(base.files);
  const WrittenFile written = write_safetensors(output_, sources, metadata);
  if (common.format == Format::kJson) {
    print(Json{{"file", output_},
               {"layers", adapter.layers().size()},
               {"rank", adapter.config().rank},
               {"replaced", merge.replaced()},
               {"tensors", written.tensors.size()},
               {"bytes", written.bytes},
               {"provenance", provenance_of(words_)}}
              .dump() +
          "\n");
  } else {
    print(Table{{"file", "merged layers", "rank", "tensors", "MiB"},
                {{output_, std::to_string(adapter.layers().size()), std::to_string(adapter.config().rank),
                  std::to_string(written.tensors.size()), megabytes(static_cast<double>(written.bytes))}}});
  }
  return kExitDone;
}

}  // namespace galley::tools
