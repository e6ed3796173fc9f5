#pragma once
// ONNX files as models, and any captured model, computed on the CPU's kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "libcore/nn/zoo.h"
#include "libcore/onnx/import/model.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_model.h"
#include "tests/nn/set_option.h"

namespace galley {

/// The model that is an ONNX file, as a recipe would name it.
inline Component onnx_component(const std::string& path) {
  class Path : public Setter {
   public:
    explicit Path(std::string path) : Setter("path", {}), path_(std::move(path)) {}
    using Setter::option;
    void option(const OptionInfo& info, std::string& value) override {
      if (info.name == "path") value = path_;
    }

   private:
    std::string path_;
  } setter(path);
  add_onnx_models();
  Component model = default_model("onnx");
  model.params->options(setter);
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

/// What a file gives, or the golden values of that name.
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
  for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(dtype == DType::kI64 ? static_cast<double>(i * 7 % 11) : std::sin(0.7 * static_cast<double>(i) + 0.3));
  input.from_doubles(values);
  return input;
}

}  // namespace galley
