// Law: a model that is exported to ONNX and read back computes the same results, for a batch that neither capture had; its parameters keep
// names, shapes and values. One small model of each family, and operators that no model of the zoo has.

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/onnx/export/export.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

Shape with_batch(Shape shape, int64_t batch) {
  shape[0] = batch;
  return shape;
}

/// Exports with a dynamic batch.
void write(const Component& model, const Shape& input, DType dtype, const std::string& path) {
  const Captured two = capture(model, with_batch(input, 2), dtype), three = capture(model, with_batch(input, 3), dtype);
  std::map<std::string, Tensor> values;
  for (const ParameterSpec& spec : two.parameters) values[spec.name] = values_of(spec);
  OnnxExport what;
  what.graph = &two.graph;
  what.other = &three.graph;
  what.values = [&](const std::string& name) { return values.at(name); };
  write_onnx(path, onnx_document(what));
}

class RoundTrip : public testing::TestWithParam<GoldenModel> {};

TEST_P(RoundTrip, ComputesTheSame) {
  const GoldenModel& golden = GetParam();
  const Component model = golden.component();
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  write(model, golden.input, DType::kF32, path);

  const Shape shape = with_batch(golden.input, 4);
  const Captured own = capture(model, shape), read = capture(onnx_component(path), shape);
  // Parameters and statistics that inference reads, with their names.
  std::map<std::string, const ParameterSpec*> found;
  for (const ParameterSpec& spec : read.parameters) found[spec.name] = &spec;
  const std::vector<std::vector<int>> users = own.graph.users();
  for (const ParameterSpec& spec : own.parameters) {
    if (users[static_cast<size_t>(own.graph.find_input(spec.name))].empty()) continue;  // counters, auxiliary heads
    const auto same = found.find(spec.name);
    ASSERT_NE(same, found.end()) << spec.name;
    if (spec.type.dtype != DType::kF32) continue;
    EXPECT_TRUE(bit_equal(values_of(spec), initialize(*same->second, 0))) << spec.name;
  }
  const Tensor input = numbers(shape, DType::kF32);
  // Products and sums are in another order if an operator is exported as several nodes: float32 rounding of a few hundred layers.
  const Tensor expected = compute(own, input);
  const double difference = largest_difference(expected, compute(read, input));
  EXPECT_TRUE(difference <= 2e-5 * largest(expected)) << difference << " of " << largest(expected);
}

std::vector<GoldenModel> families() {
  std::vector<GoldenModel> list;
  for (const char* file : {"mlp",
                           "cifar_resnet20",
                           "resnext50_32x4d",
                           "mobilenet_v2",
                           "mobilenet_v3_large",
                           "vgg13_bn",
                           "alexnet_reduced",
                           "squeezenet1_0_reduced",
                           "densenet_reduced",
                           "googlenet_reduced",
                           "inception_v3_reduced",
                           "mnasnet_reduced",
                           "shufflenet_reduced",
                           "efficientnet_b0_reduced",
                           "regnet_y_reduced",
                           "vit_reduced",
                           "convnext_reduced",
                           "swin_reduced",
                           "swin_v2_reduced",
                           "r3d_18_reduced"}) {
    const auto& all = golden_models();
    list.push_back(*std::find_if(all.begin(), all.end(), [&](const GoldenModel& model) { return model.file == file; }));
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(Families, RoundTrip, testing::ValuesIn(families()), [](const auto& info) { return info.param.file; });

TEST(RoundTripOfText, RecurrentCellsComputeTheSame) {
  for (double cell : {0.0, 1.0, 2.0}) {
    Component model = default_model("rnn_lm");
    for (const auto& [name, value] : std::vector<std::pair<std::string, double>>{
             {"vocab", 11}, {"embedding_dim", 6}, {"hidden_size", 5}, {"num_layers", 2}, {"sequence_length", 7}, {"cell", cell}}) {
      Setter setter(name, {value});
      model.params->options(setter);
    }
    const TemporaryFolder folder;
    const std::string path = folder / "m.onnx";
    write(model, {2, 7}, DType::kI64, path);
    const Tensor input = numbers({4, 7}, DType::kI64);
    const double difference = largest_difference(compute(capture(model, {4, 7}, DType::kI64), input),
                                                 compute(capture(onnx_component(path), {4, 7}, DType::kI64), input));
    EXPECT_TRUE(difference <= 1e-5) << difference << " for cell " << cell;
  }
}

TEST(RoundTripTrains, BatchNormsAndDropoutAreThoseOfTheModel) {
  const auto& all = golden_models();
  const GoldenModel& golden =
      *std::find_if(all.begin(), all.end(), [](const GoldenModel& model) { return model.file == "cifar_resnet20"; });
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  write(golden.component(), golden.input, DType::kF32, path);
  const Captured own = capture(golden.component(), golden.input, DType::kF32, Mode::kTraining),
                 read = capture(onnx_component(path), golden.input, DType::kF32, Mode::kTraining);
  const auto count = [](const Graph& graph, std::string_view op) {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.is(op); });
  };
  for (const char* op : {"batch_norm", "batch_norm_update", "conv2d", "linear", "relu"})
    EXPECT_EQ(count(own.graph, op), count(read.graph, op)) << op;
  std::map<std::string, ParameterSpec> trained;
  for (const ParameterSpec& spec : own.parameters) trained[spec.name] = spec;
  ASSERT_EQ(own.parameters.size(), read.parameters.size());
  for (const ParameterSpec& spec : read.parameters) {
    ASSERT_TRUE(trained.contains(spec.name)) << spec.name;
    EXPECT_EQ(trained[spec.name].role, spec.role) << spec.name;
    EXPECT_EQ(trained[spec.name].module, spec.module) << spec.name;
    EXPECT_EQ(trained[spec.name].module_type, spec.module_type) << spec.name;
  }
}

}  // namespace
}  // namespace galley
