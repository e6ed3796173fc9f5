// Laws: every model has the numbers of parameters and multiply-adds that torchvision publishes, and whole models have its logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/golden_model.h"

namespace galley {
namespace {

/// Sets options of a model; ignores options that it does not have.
Component with_options(const std::string& type, const std::vector<std::pair<std::string, double>>& options) {
  Component model = default_model(type);
  for (const auto& [name, value] : options) {
    Setter setter(name, {value});
    model.params->options(setter);
  }
  return model;
}

/// Counts as torchvision does: one per multiply-add of convolutions and matrix products, in units of 1e9.
double giga_multiply_adds(Graph& graph) {
  graph.remove_dead_nodes();
  double flops = 0;
  for (const Node& node : graph.nodes()) {
    if (node.is("conv2d") || node.is("linear") || node.is("matmul") || node.is("attention"))
      flops += cost_of(*node.op, context_of(graph, node)).flops;
  }
  return flops / 2e9;
}

TEST(Published, ParametersAndMultiplyAdds) {
  // "MODEL WEIGHTS PARAMETERS GMACS IMAGE_SIZE", one line per set of torchvision's weights.
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/models/published.txt");
  ASSERT_TRUE(file);
  std::string type, weights;
  int64_t parameters = 0, size = 0;
  double gmacs = 0;
  std::set<std::string> seen;
  while (file >> type >> weights >> parameters >> gmacs >> size) {
    seen.insert(type);
    // GoogLeNet's weights have no auxiliary classifiers; those of Inception-v3 do.
    const Component model = with_options(type, {{"image_size", static_cast<double>(size)}, {"aux_logits", type == "googlenet" ? 0 : 1}});
    Graph graph;
    Builder b(graph, {.mode = Mode::kEvaluation});
    graph.add_output("logits", build_model(b, model, b.input("input", {.shape = {1, 3, size, size}})).front().second);
    EXPECT_EQ(parameter_count(b.parameters()), parameters) << type << " " << weights;
    // The published numbers have three decimals.
    const double ours = giga_multiply_adds(graph);
    EXPECT_TRUE(std::fabs(ours - gmacs) <= 0.0006) << type << " " << weights << ": " << ours << " GMAC, published " << gmacs;
  }
  EXPECT_EQ(seen.size(), 79u);
}

/// Runs a captured model in f32 with the kernels of this machine on golden weights and input.
std::map<std::string, Tensor> run_golden(const Component& model, Mode mode, int64_t batch) {
  Graph graph;
  Builder b(graph, {.mode = mode});
  const ModelInfo info = model_info(model);
  const Shape shape{batch, info.input_shape[0], info.input_shape[1], info.input_shape[2]};
  const NamedValues results = build_model(b, model, b.input("input", {.shape = shape}));
  for (const auto& [name, value] : results) graph.add_output(name, value);
  const auto program = compile(std::move(graph));
  ParameterStore store;
  store.declare(*program);
  for (const ParameterSpec& spec : b.parameters()) {
    if (!store.has(spec.name)) continue;  // auxiliary classifiers are unused in evaluation
    Tensor values(spec.type.dtype, spec.type.shape);
    values.from_doubles(golden_values_of(spec));
    store.set(spec.name, values);
  }
  Execution execution(program, store);
  Tensor input(DType::kF32, shape);
  input.from_doubles(golden_input("input", shape));
  execution.feed("input", input);
  execution.run();
  std::map<std::string, Tensor> outputs;
  for (const auto& [name, value] : results) outputs.emplace(name, execution.output(name));
  return outputs;
}

TEST(Published, WholeModelsGiveTheirLogits) {
  // Sums of thousands of f32 products through up to a hundred layers: 1e-4 of the largest logits.
  const auto near = [](const std::string& what, const GoldenEntry& want, const Tensor& got, double relative = 1e-4) {
    const std::vector<double> values = got.to_doubles();
    ASSERT_EQ(values.size(), want.values.size()) << what;
    double largest = 0, error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(want.values[i]));
      error = std::max(error, std::fabs(values[i] - want.values[i]));
      ASSERT_TRUE(std::isfinite(values[i])) << what << " [" << i << "]";
    }
    EXPECT_TRUE(error <= relative * largest) << what << ": error " << error << ", largest logit " << largest;
  };
  const GoldenFile golden = read_golden("full_size");
  for (const auto& [key, want] : golden) {
    if (key.find(':') != std::string::npos) continue;
    near(key, want, run_golden(default_model(key), Mode::kEvaluation, 1).at("logits"));
  }
  // With the auxiliary classifier, which needs images of full size. Its last batch norm is over two values and amplifies their difference.
  const auto training = run_golden(with_options("inception_v3", {{"dropout", 0}}), Mode::kTraining, 2);
  near("inception_v3:train", golden.at("inception_v3:train"), training.at("logits"));
  near("inception_v3:aux", golden.at("inception_v3:aux"), training.at("aux"), 1e-3);
}

}  // namespace
}  // namespace galley
