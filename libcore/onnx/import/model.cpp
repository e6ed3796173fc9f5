// The model kind "onnx": a file's graph as a model, with its initializers as initial values.

#include <algorithm>

#include "libcore/base/file.h"
#include "libcore/onnx/import/import.h"
#include "libcore/onnx/import/model.h"

namespace galley {
namespace {

using onnx_import::Importer;
using onnx_import::Source;

struct OnnxParams : OptionsOf<OnnxParams> {
  std::string path;
  std::vector<int64_t> shape;
  void options(OptionVisitor& v) override {
    v.option({.name = "path", .doc = "the .onnx file: its nodes are the model, its initializers the weights", .required = true, .main = true}, path);
    v.option({.name = "shape", .doc = "of one sample, where the file leaves sizes open, e.g. [3, 224, 224]; default: what the file says, 224 for open sizes of images", .min = 1}, shape);
  }

  /// Opened once, shared by copies.
  std::shared_ptr<const Source> source() const {
    const std::lock_guard lock(mutex());
    if (opened_ == nullptr || opened_->path() != path) opened_ = std::make_shared<const Source>(path);
    return opened_;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  mutable std::shared_ptr<const Source> opened_;
};

/// The one input that is fed.
const OnnxValue& input_of(const Source& source) {
  const OnnxModel& model = source.model();
  std::vector<const OnnxValue*> fed;
  for (const OnnxValue& input : model.inputs) {
    const bool initialized = std::any_of(model.initializers.begin(), model.initializers.end(), [&](const OnnxTensor& tensor) { return tensor.name == input.name; });
    if (!initialized) fed.push_back(&input);
  }
  GALLEY_CHECK_INPUT(fed.size() == 1, source.path(), ": a model of one input is wanted, this one has ", fed.size());
  const OnnxValue& input = *fed.front();
  const OnnxType* type = find_onnx_type(input.data_type);
  GALLEY_CHECK_INPUT(type != nullptr && (type->dtype == DType::kF32 || type->dtype == DType::kI64), source.path(), ": the input '", input.name, "' is of type ",
                     type == nullptr ? "?" : type->text, ", FLOAT or INT64 are wanted");
  GALLEY_CHECK_INPUT(input.has_shape && !input.shape.empty() && input.shape.size() <= static_cast<size_t>(Shape::kMaxRank), source.path(), ": the input '", input.name,
                     "' has no shape with a batch as its first size");
  return input;
}

NamedValues build(Builder& b, const Options& options, Value x) {
  const std::shared_ptr<const Source> source = params_of<OnnxParams>(options).source();
  const OnnxValue& input = input_of(*source);
  bool fits = x.shape().rank() == static_cast<int>(input.shape.size());
  for (int axis = 1; fits && axis < x.shape().rank(); ++axis) fits = input.shape[static_cast<size_t>(axis)].size.value_or(x.shape()[axis]) == x.shape()[axis];
  if (!fits) {
    std::string wanted;
    for (const OnnxDimension& size : input.shape) wanted += cat(wanted.empty() ? "[" : ",", size.size ? std::to_string(*size.size) : size.name.empty() ? "?" : size.name);
    throw Error(ErrorCode::kRecipe, cat(source->path(), " takes inputs of shape ", wanted, "], the data gives ", x.shape())).suggest("export it for that size (galley-weights export --shape), or change the pipeline");
  }
  return Importer(b, source, input.name).run(x);
}

ModelInfo info(const Options& options) {
  const auto& params = params_of<OnnxParams>(options);
  const std::shared_ptr<const Source> source = params.source();
  const OnnxValue& input = input_of(*source);
  ModelInfo info{.family = "onnx"};
  info.input_dtype = *find_onnx_type(input.data_type)->dtype;
  GALLEY_CHECK(params.shape.empty() || params.shape.size() + 1 == input.shape.size(), "model.shape has ", params.shape.size(), " sizes, a sample of ", source->path(), " has ",
               input.shape.size() - 1);
  for (size_t axis = 1; axis < input.shape.size(); ++axis) {
    const std::optional<int64_t>& declared = input.shape[axis].size;
    const bool image = input.shape.size() == 4 && axis >= 2;
    if (declared) {
      info.input_shape.push_back(*declared);
    } else if (!params.shape.empty()) {
      info.input_shape.push_back(params.shape[axis - 1]);
    } else if (image) {
      info.input_shape.push_back(224);
    } else {
      throw Error(ErrorCode::kRecipe, cat(source->path(), " leaves size ", axis, " of its input open")).key("model.shape").suggest("set model.shape to the sizes of one sample");
    }
  }
  const std::vector<OnnxValue>& outputs = source->model().outputs;
  GALLEY_CHECK_INPUT(!outputs.empty(), source->path(), ": the model has no output");
  const size_t rank = outputs.front().shape.size();
  if (outputs.front().has_shape && rank == 2) info.output = ModelOutput::kClasses;
  if (outputs.front().has_shape && rank == 3 && info.input_dtype == DType::kI64) info.output = ModelOutput::kTokens;
  return info;
}

std::string file(const Options& options) { return params_of<OnnxParams>(options).path; }

ModelTable onnx_models() {
  return {{.kind = {"onnx", "the graph of an ONNX file, with its initializers as weights", make_options<OnnxParams>}, .build = build, .info = info, .file = file}};
}

}  // namespace

void add_onnx_models() { add_model_family(onnx_models); }

}  // namespace galley
