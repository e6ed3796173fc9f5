#pragma once
// Computes ONNX files and captured models with the CPU kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "libcore/base/named_options.h"
#include "libcore/nn/zoo.h"
#include "libcore/onnx/import/model.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_model.h"
#include "tests/nn/set_option.h"

namespace galley {

/// Recipe options of an ONNX model besides its path.
struct OnnxChoice {
  std::vector<int64_t> shape = {};
  std::map<std::string, std::vector<int64_t>> inputs = {};  // shapes by name
  std::vector<std::string> outputs = {};
};

/// The model component of an ONNX file, as in a recipe.
inline Component onnx_component(const std::string& path, const OnnxChoice& choice = {}) {
  class Choose : public Setter {
   public:
    Choose(std::string path, const OnnxChoice& choice) : Setter("path", {}), path_(std::move(path)), choice_(choice) {}
    using Setter::option;
    void option(const OptionInfo&, std::string& value) override { value = path_; }
    void option(const OptionInfo&, std::vector<int64_t>& value) override { value = choice_.shape; }
    void option(const OptionInfo&, std::vector<std::string>& value) override { value = choice_.outputs; }
    void section(const OptionInfo&, Options& value) override {
      for (const auto& [name, shape] : choice_.inputs) {
        Setter sizes("shape", {shape.begin(), shape.end()});
        dynamic_cast<NamedOptions&>(value).add(name).options(sizes);
      }
    }

   private:
    std::string path_;
    const OnnxChoice& choice_;
  } choose(path, choice);
  add_onnx_models();
  Component model = default_model("onnx");
  model.params->options(choose);
  return model;
}

/// A model's graph with one output, "output".
struct Captured {
  Graph graph;
  std::vector<ParameterSpec> parameters;
};
inline Captured capture(const Component& model, const Shape& input, DType dtype = DType::kF32, Mode mode = Mode::kEvaluation) {
  Captured made;
  Builder b(made.graph, {.mode = mode});
  const NamedValues results = build_model(b, model, b.input("input", {.dtype = dtype, .shape = input}));
  made.graph.add_output("output", results.front().second);
  made.graph.remove_dead_nodes();
  made.parameters = b.take_parameters();
  return made;
}

/// The outputs of a file, or the golden values of that name.
inline Tensor values_of(const ParameterSpec& spec) {
  if (spec.init.kind == Init::Kind::kTensor) return initialize(spec, 0);
  Tensor values(spec.type.dtype, spec.type.shape);
  values.from_doubles(golden_values_of(spec));
  return values;
}

inline Tensor compute(const Captured& model, const Tensor& input) {
  ParameterStore store;
  for (const ParameterSpec& spec : model.parameters) {
    store.declare(spec.name, spec.type, spec.role);
    store.set(spec.name, values_of(spec));
  }
  CompileOptions how;
  how.backend = open_backend("cpu", {.memory_format = LayoutMode::kContiguous});
  how.parameter_formats = store.formats();
  Execution execution(compile(model.graph, how), store);
  execution.feed("input", input);
  execution.run();
  return execution.output("output").clone();
}

/// All outputs by the file's names, for batches of the model's inputs in their order.
inline std::map<std::string, Tensor> compute_outputs(const Component& component, const std::vector<Tensor>& inputs) {
  const ModelInfo info = model_info(component);
  Captured made;
  Builder b(made.graph, {.mode = Mode::kEvaluation});
  NamedValues values;
  const std::vector<ModelInput> named_inputs = info.all_inputs();
  for (size_t i = 0; i < inputs.size(); ++i)
    values.emplace_back(named_inputs[i].name, b.input(named_inputs[i].name, {.dtype = inputs[i].dtype(), .shape = inputs[i].shape()}));
  std::vector<std::string> names;
  for (const auto& [name, value] : build_model(b, component, values)) {
    made.graph.add_output(name, value);
    names.push_back(name);
  }
  made.graph.remove_dead_nodes();
  made.parameters = b.take_parameters();
  ParameterStore store;
  for (const ParameterSpec& spec : made.parameters) {
    store.declare(spec.name, spec.type, spec.role);
    store.set(spec.name, values_of(spec));
  }
  CompileOptions how;
  how.backend = open_backend("cpu", {.memory_format = LayoutMode::kContiguous});
  how.parameter_formats = store.formats();
  Execution execution(compile(made.graph, how), store);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (execution.takes(named_inputs[i].name)) execution.feed(named_inputs[i].name, inputs[i]);
  }
  execution.run();
  std::map<std::string, Tensor> results;
  for (const std::string& name : names) results.emplace(name, execution.output(name).clone());
  return results;
}

/// Keeps NaN.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  double difference = 0;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const double d = std::fabs(x[i] - y[i]);
    difference = d <= difference ? difference : d;
  }
  return difference;
}
inline double largest(const Tensor& a) {
  double found = 0;
  for (const double value : a.to_doubles()) found = std::max(found, std::fabs(value));
  return found;
}

/// Values within -1..1, or small whole numbers.
inline Tensor numbers(const Shape& shape, DType dtype = DType::kF32) {
  Tensor input(dtype, shape);
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(dtype == DType::kI64 ? static_cast<double>(i * 7 % 11) : std::sin(0.7 * static_cast<double>(i) + 0.3));
  input.from_doubles(values);
  return input;
}

}  // namespace galley
