// The model kind "onnx": the graph of a file as a model, its initializers as initial values.

#include "libcore/onnx/import/model.h"

#include <algorithm>

#include "libcore/base/named_options.h"
#include "libcore/onnx/import/decoder.h"
#include "libcore/onnx/import/layout.h"

namespace galley {
namespace {

using onnx_import::FileLayout;
using onnx_import::Importer;
using onnx_import::ImportOptions;
using onnx_import::Source;

struct OnnxInput : OptionsOf<OnnxInput> {
  std::vector<int64_t> shape;
  void options(OptionVisitor& v) override {
    v.option({.name = "shape", .doc = "shape of one sample, if the file leaves sizes open", .min = 1, .main = true}, shape);
  }
};

struct OnnxParams : OptionsOf<OnnxParams> {
  std::string path;
  std::vector<int64_t> shape;
  NamedOptionsOf<OnnxInput> inputs;
  std::vector<std::string> outputs;
  void options(OptionVisitor& v) override {
    v.option(
        {.name = "path", .doc = "the .onnx file: its nodes are the model, its initializers the weights", .required = true, .main = true},
        path);
    v.option({.name = "shape",
              .doc = "shape of one sample, if the file leaves sizes open, e.g. [3, 224, 224]; default: the file's sizes, 224 for open "
                     "sizes of images; of a decoder: its longest sequence, by default the rows of its table of positions, or 1024",
              .min = 1},
             shape);
    v.section(
        {.name = "inputs",
         .doc = "shapes of the inputs of a model with several, by their names in the file; each input takes the data field of its name"},
        inputs);
    v.option(
        {.name = "outputs", .doc = "names of the file's outputs to compute; the task reads the first; default: all, in the file's order"},
        outputs);
  }

  /// The file, opened once and shared by copies of the options.
  std::shared_ptr<const Source> source() const {
    const std::lock_guard lock(mutex());
    if (opened_ == nullptr || opened_->path() != path) opened_ = std::make_shared<const Source>(path);
    return opened_;
  }
  /// The file as a decoder, if it is one and the recipe does not say how to feed it.
  std::optional<onnx_import::DecoderFile> decoder() const {
    return inputs.items.empty() && outputs.empty() ? onnx_import::find_decoder(*source()) : std::nullopt;
  }
  /// The layout of the file for these options.
  std::shared_ptr<const FileLayout> layout() const {
    const std::shared_ptr<const Source> file = source();
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& [name, spec] : inputs.items) shapes[name] = spec.shape;
    return onnx_import::find_layout(file, shape, shapes, outputs);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  mutable std::shared_ptr<const Source> opened_;
};

/// Checks that a batch fits the layout.
void check_inputs(const FileLayout& layout, const std::string& path, const NamedValues& inputs) {
  const int64_t batch = inputs.front().second.shape().rank() > 0 ? inputs.front().second.shape()[0] : 1;
  if (layout.fixed_batch > 0 && batch != layout.fixed_batch) {
    const std::string takes = layout.fixed_batch == 1 ? "one sample per run" : cat("batches of ", layout.fixed_batch, " samples");
    throw Error(ErrorCode::kRecipe, cat(path, " takes ", takes, ", but this batch has ", batch, ": ", layout.reason))
        .key("model")
        .suggest(cat("set the batch to ", layout.fixed_batch));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const onnx_import::FileInput& input = layout.inputs[i];
    const Shape& x = inputs[i].second.shape();
    bool fits = x.rank() == static_cast<int>(input.sample.size()) + 1;
    for (size_t axis = 0; fits && axis < input.sample.size(); ++axis)
      fits = input.declared[axis].value_or(x[static_cast<int>(axis) + 1]) == x[static_cast<int>(axis) + 1];
    if (fits) continue;
    const std::string name = inputs.size() > 1 ? cat(" for '", input.name, "'") : "";
    const std::string whole = layout.use == onnx_import::SampleUse::kWhole ? " as one sample (after a first dimension of size 1)" : "";
    throw Error(ErrorCode::kRecipe, cat(path, " takes inputs of shape ", input.text, name, whole, ", but the data has shape ", x))
        .suggest("export it for that size (galley-weights export --shape) or change the pipeline");
  }
}

NamedValues build(Builder& b, const Options& options, const NamedValues& given) {
  const auto& params = params_of<OnnxParams>(options);
  if (const auto decoder = params.decoder()) return onnx_import::capture_decoder(b, params.source(), *decoder, given.front().second);
  const std::shared_ptr<const FileLayout> layout = params.layout();
  GALLEY_ASSERT(given.size() == layout->inputs.size());
  check_inputs(*layout, params.path, given);
  return onnx_import::capture_file(b, params.source(), *layout, given);
}

constexpr int64_t kUsualContext = 1024;  // of a decoder whose file does not tell

ModelInfo decoder_info(const onnx_import::DecoderFile& decoder, const OnnxParams& params) {
  if (params.shape.size() > 1)
    throw Error(ErrorCode::kRecipe, cat("model.shape has ", params.shape.size(), " sizes, but a sample of the decoder ", params.path,
                                        " is a list of tokens: one number, the longest sequence"))
        .key("model.shape");
  const int64_t usual = decoder.context > 0 ? decoder.context : kUsualContext;
  ModelInfo info{.family = "onnx", .output = ModelOutput::kTokens};
  info.input_shape = {params.shape.empty() ? usual : params.shape.front()};
  info.input_names = {"T"};
  info.input_dtype = DType::kI64;
  info.cache = decoder.continues();
  info.named_outputs = true;
  return info;
}

ModelInfo info(const Options& options) {
  const auto& params = params_of<OnnxParams>(options);
  if (const auto decoder = params.decoder()) return decoder_info(*decoder, params);
  const std::shared_ptr<const FileLayout> layout = params.layout();
  ModelInfo info{.family = "onnx", .named_outputs = layout->outputs.size() > 1 || !params.outputs.empty()};
  info.input_shape = layout->inputs.front().sample;
  info.input_dtype = layout->inputs.front().dtype;
  info.fixed_batch = layout->fixed_batch;
  for (const onnx_import::FileInput& input : layout->inputs) {
    if (layout->inputs.size() > 1) info.inputs.push_back({.name = input.name, .shape = input.sample, .dtype = input.dtype});
  }
  const int rank = layout->output_rank;
  if (rank == 2) info.output = ModelOutput::kClasses;
  if (rank == 3 && info.input_dtype == DType::kI64) info.output = ModelOutput::kTokens;
  return info;
}

std::string file(const Options& options) { return params_of<OnnxParams>(options).path; }

ModelTable onnx_models() {
  return {{.kind = {"onnx", "the graph of an ONNX file, with its initializers as weights", make_options<OnnxParams>},
           .build = nullptr,
           .info = info,
           .build_named = build,
           .file = file}};
}

}  // namespace

void add_onnx_models() { add_model_family(onnx_models); }

}  // namespace galley
