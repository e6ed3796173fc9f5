#include "libcore/onnx/import/layout.h"

#include <algorithm>
#include <array>

#include "libcore/onnx/import/batch.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kUsualSide = 224;  // default side of images whose size the file leaves open
/// Default lengths of texts whose length the file leaves open; the first that the nodes accept (a table of positions may be shorter).
constexpr std::array<int64_t, 3> kUsualLengths{128, 32, 8};

std::string shape_text(const OnnxValue& value) {
  std::string text;
  for (const OnnxDimension& size : value.shape)
    text += cat(text.empty() ? "" : ",", size.size ? std::to_string(*size.size) : size.name.empty() ? "?" : size.name);
  return cat("[", text, "]");
}

template <class Names>
std::string listed(const Names& values) {
  std::string text;
  for (const auto& value : values) text += cat(text.empty() ? "" : ", ", value->name);
  return text;
}

/// The inputs that need values; initializers may be listed as inputs too.
std::vector<const OnnxValue*> fed_inputs(const Source& source) {
  const OnnxModel& model = source.model();
  std::set<std::string_view> initialized;
  for (const OnnxTensor& tensor : model.initializers) initialized.insert(tensor.name);
  std::vector<const OnnxValue*> fed;
  for (const OnnxValue& input : model.inputs) {
    if (!initialized.contains(input.name)) fed.push_back(&input);
  }
  GALLEY_CHECK_INPUT(!fed.empty(), source.path(), ": the model has no input");
  for (const OnnxValue* input : fed) {
    const OnnxType* type = find_onnx_type(input->data_type);
    const std::string where = cat(source.path(), ": the input '", input->name, "'");
    GALLEY_CHECK_INPUT(type != nullptr, where, " is a sequence, a map or an optional value, but must be a tensor");
    const bool computes = type->dtype && type->dtype != DType::kF64 && type->dtype != DType::kF16 && type->dtype != DType::kBF16;
    if (!computes)
      throw Error(ErrorCode::kInput, cat(where, " has type ", type->text, ", which Galley does not support"))
          .suggest("export the model in float32");
    GALLEY_CHECK_INPUT(input->has_shape && input->shape.size() < static_cast<size_t>(Shape::kMaxRank), where, " has ",
                       input->has_shape ? "too many dimensions" : "no shape");
  }
  return fed;
}

std::vector<const OnnxValue*> chosen_outputs(const Source& source, const std::vector<std::string>& names) {
  std::vector<const OnnxValue*> all, chosen;
  for (const OnnxValue& output : source.model().outputs) all.push_back(&output);
  GALLEY_CHECK_INPUT(!all.empty(), source.path(), ": the model has no output");
  if (names.empty()) return all;
  for (const std::string& name : names) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const OnnxValue* output) { return output->name == name; });
    if (found == all.end())
      throw Error(ErrorCode::kRecipe, cat(source.path(), " has no output '", name, "'; its outputs are ", listed(all)))
          .key("model.outputs");
    if (std::find(chosen.begin(), chosen.end(), *found) != chosen.end())
      throw Error(ErrorCode::kRecipe, cat("model.outputs names '", name, "' twice")).key("model.outputs");
    chosen.push_back(*found);
  }
  return chosen;
}

/// An input shape given by the recipe.
struct Given {
  std::vector<int64_t> sizes;
  std::string key;  // recipe key that sets it
};

std::map<std::string, Given> given_shapes(const Source& source, const std::vector<const OnnxValue*>& fed, const std::vector<int64_t>& shape,
                                          const std::map<std::string, std::vector<int64_t>>& shapes) {
  std::map<std::string, Given> given;
  for (const OnnxValue* input : fed)
    given[input->name] = {{}, fed.size() == 1 ? "model.shape" : cat("model.inputs.", input->name, ".shape")};
  for (const auto& [name, sizes] : shapes) {
    if (!given.contains(name))
      throw Error(ErrorCode::kRecipe, cat(source.path(), " has no input '", name, "'; its inputs are ", listed(fed)))
          .key(cat("model.inputs.", name));
    given[name].sizes = sizes;
  }
  if (shape.empty()) return given;
  if (fed.size() > 1) {
    throw Error(ErrorCode::kRecipe, cat(source.path(), " has several inputs, so model.shape does not apply: ", listed(fed)))
        .key("model.shape")
        .suggest(cat("set model.inputs: {", fed.front()->name, ": {shape: [...]}}"));
  }
  given.begin()->second.sizes = shape;
  return given;
}

/// Whether the input holds a number for each token of each sample: [samples,tokens] of integers, the tokens open.
bool is_text(const OnnxValue& value) {
  const OnnxType* type = find_onnx_type(value.data_type);
  return value.shape.size() == 2 && !value.shape[1].size && (type->dtype == DType::kI64 || type->dtype == DType::kI32);
}

/// One input; with `rows` its first dimension counts samples, otherwise all of it is one sample.
FileInput input_of(const Source& source, const OnnxValue& value, const Given& given, bool rows, int64_t length) {
  FileInput input{
      .name = value.name, .dtype = *find_onnx_type(value.data_type)->dtype, .sample = {}, .declared = {}, .text = shape_text(value)};
  const size_t first = rows ? 1 : 0, count = value.shape.size() - first;
  const bool used = given.sizes.size() == count;
  if (!given.sizes.empty() && !used && (rows || given.sizes.size() + 1 != value.shape.size())) {
    throw Error(ErrorCode::kRecipe, cat(given.key, " has ", given.sizes.size(), " sizes, but a sample of ", source.path(), " has ", count))
        .key(given.key);
  }
  for (size_t axis = first; axis < value.shape.size(); ++axis) {
    const std::optional<int64_t>& declared = value.shape[axis].size;
    const bool image = rows && value.shape.size() == 4 && axis >= 2;
    const bool tokens = is_text(value) && rows;
    if (!declared && !used && !image && !tokens) {
      throw Error(ErrorCode::kRecipe,
                  cat(source.path(), " leaves dimension ", axis, " of its input '", value.name, "' ", input.text, " open"))
          .key(given.key)
          .suggest(cat("set ", given.key, " to the ", count, " sizes of one sample"));
    }
    input.declared.push_back(declared);
    input.sample.push_back(declared ? *declared : used ? given.sizes[axis - first] : tokens ? length : kUsualSide);
  }
  return input;
}

/// A batch size of which no size in the file is a multiple.
int64_t probe_batch(const FileLayout& layout, const OnnxModel& model) {
  for (const int64_t prime : {61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113}) {
    const auto divides = [&](int64_t size) { return size > 0 && size % prime == 0; };
    const bool used = std::any_of(layout.inputs.begin(), layout.inputs.end(),
                                  [&](const FileInput& input) { return std::any_of(input.sample.begin(), input.sample.end(), divides); }) ||
                      std::any_of(model.initializers.begin(), model.initializers.end(),
                                  [&](const OnnxTensor& tensor) { return std::any_of(tensor.shape.begin(), tensor.shape.end(), divides); });
    if (!used) return prime;
  }
  return 127;
}

NamedValues feeds(Builder& b, const FileLayout& layout, int64_t batch) {
  NamedValues values;
  for (const FileInput& input : layout.inputs) {
    TensorType type{.dtype = input.dtype, .shape = {batch}};
    for (const int64_t size : input.sample) type.shape.push_back(size);
    values.emplace_back(input.name, b.input(input.name, type));
  }
  return values;
}

/// Imports the file with that batch and follows the samples. Returns why outputs do not have one row per sample, or "" if they do.
std::string find_rows(const std::shared_ptr<const Source>& source, FileLayout& layout, int64_t batch) {
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  Importer importer(b, source, {.outputs = layout.outputs, .batch = batch, .declared_batch = layout.declared_batch, .values = false});
  for (const auto& [name, value] : importer.run(feeds(b, layout, batch))) graph.add_output(name, value);
  layout.batch_nodes = importer.batch_nodes();
  layout.output_rank = graph.type(graph.outputs().front().second).shape.rank();
  graph.remove_dead_nodes();
  return find_mixed_samples(graph, batch);
}

/// Whether samples are rows, for any batch or for the declared batch. `failure`: the error of importing with another batch.
bool find_use(const std::shared_ptr<const Source>& source, FileLayout& layout, std::optional<Error>& failure) {
  try {
    layout.reason = find_rows(source, layout, probe_batch(layout, source->model()));
    if (layout.reason.empty()) return true;
  } catch (const Error& error) {
    layout.reason = cat("its nodes do not fit another batch (", error.message(), ")");
    failure = error;
  }
  if (!layout.declared_batch) return false;
  std::string reason;
  try {
    reason = find_rows(source, layout, *layout.declared_batch);
  } catch (const Error&) {
    return false;  // importing the whole model will report the error again
  }
  if (!reason.empty()) {
    layout.reason = reason;
    return false;
  }
  layout.use = SampleUse::kFixed;
  layout.fixed_batch = *layout.declared_batch;
  return true;
}

/// Whether the first dimensions of all inputs are open or equal.
bool may_have_rows(const std::vector<const OnnxValue*>& fed, std::optional<int64_t>& declared) {
  for (const OnnxValue* input : fed) {
    if (input->shape.empty()) return false;
    if (input->shape[0].size && declared && *input->shape[0].size != *declared) return false;
    if (input->shape[0].size) declared = input->shape[0].size;
  }
  return !declared || *declared > 0;
}

FileLayout make_layout(const std::shared_ptr<const Source>& source, const std::vector<int64_t>& shape,
                       const std::map<std::string, std::vector<int64_t>>& shapes, const std::vector<std::string>& names) {
  const std::vector<const OnnxValue*> fed = fed_inputs(*source), outputs = chosen_outputs(*source, names);
  const std::map<std::string, Given> given = given_shapes(*source, fed, shape, shapes);
  FileLayout layout;
  for (const OnnxValue* output : outputs) layout.outputs.push_back(output->name);
  const auto set_inputs = [&](bool rows, int64_t length = kUsualLengths.front()) {
    layout.inputs.clear();
    for (const OnnxValue* input : fed) layout.inputs.push_back(input_of(*source, *input, given.at(input->name), rows, length));
  };
  // The recipe gives as many sizes as the file's input has, so no dimension counts samples.
  const bool whole = std::any_of(fed.begin(), fed.end(), [&](const OnnxValue* input) {
    return !given.at(input->name).sizes.empty() && given.at(input->name).sizes.size() == input->shape.size();
  });
  layout.reason = "its inputs have no batch dimension";
  std::optional<Error> failure;
  if (!whole && may_have_rows(fed, layout.declared_batch)) {
    const bool text =
        std::any_of(fed.begin(), fed.end(), [&](const OnnxValue* input) { return is_text(*input) && given.at(input->name).sizes.empty(); });
    std::optional<Error> first;
    for (const int64_t length : kUsualLengths) {
      set_inputs(true, length);
      if (find_use(source, layout, failure)) return layout;
      if (!first) first = failure;
      if (!text || !failure) break;
      failure.reset();
    }
    failure = first;
  }
  layout.use = SampleUse::kWhole;
  layout.fixed_batch = 1;
  layout.output_rank = outputs.front()->has_shape ? static_cast<int>(outputs.front()->shape.size()) + 1 : -1;
  try {
    set_inputs(false);
  } catch (Error& error) {
    // The batch is open, but the nodes do not fit any.
    if (failure && !layout.declared_batch) throw *failure;
    throw Error(error.code(), cat(error.message(), "; the model runs one sample at a time because ", layout.reason))
        .key(error.key())
        .suggest(error.suggestion());
  }
  return layout;
}

Value with_sample_axis(Value value) {
  Shape shape{1};
  for (const int64_t size : value.shape()) shape.push_back(size);
  GALLEY_CHECK_INPUT(value.shape().rank() < Shape::kMaxRank, "an output has ", value.shape().rank(), " dimensions, but at most ",
                     Shape::kMaxRank - 1, " are supported");
  return reshape(value, shape);
}

}  // namespace

std::shared_ptr<const FileLayout> find_layout(const std::shared_ptr<const Source>& source, const std::vector<int64_t>& shape,
                                              const std::map<std::string, std::vector<int64_t>>& shapes,
                                              const std::vector<std::string>& outputs) {
  std::string key;
  const auto append = [&](const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) key += cat(" ", size);
  };
  append(shape);
  for (const auto& [name, sizes] : shapes) {
    key += cat("\n", name);
    append(sizes);
  }
  for (const std::string& name : outputs) key += cat("\n-", name);
  return source->layout(key, [&] { return std::make_shared<const FileLayout>(make_layout(source, shape, shapes, outputs)); });
}

NamedValues capture_file(Builder& b, const std::shared_ptr<const Source>& source, const FileLayout& layout, const NamedValues& inputs) {
  const bool whole = layout.use == SampleUse::kWhole;
  NamedValues fed;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value x = inputs[i].second;
    fed.emplace_back(layout.inputs[i].name, whole ? reshape(x, Shape(x.shape().sizes().subspan(1))) : x);
  }
  ImportOptions options{.outputs = layout.outputs, .batch = {}, .declared_batch = {}};
  if (layout.use == SampleUse::kRows) {
    options.batch = inputs.front().second.shape()[0];
    options.declared_batch = layout.declared_batch;
    options.batch_nodes = &layout.batch_nodes;
  }
  Importer importer(b, source, options);
  NamedValues results = importer.run(fed);
  for (auto& [name, value] : results) {
    if (whole) value = with_sample_axis(value);
  }
  return results;
}

}  // namespace galley::onnx_import
