// Law: every family of torchvision trains: its compiled step in f32 starts at the golden loss, and SGD updates change the loss of the same
// batch.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "libcore/optim/updates.h"
#include "libcore/passes/assign_precision.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/fuse.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/training_model.h"

namespace galley {
namespace {

Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor tensor(dtype, shape);
  tensor.from_doubles(values);
  return tensor;
}

/// Losses of two updates on one batch.
std::vector<double> two_steps(const GoldenModel& golden, DType compute = DType::kF32) {
  TrainingModel model(golden, 0.1);
  model.graph.add_output("loss", model.graph.at(model.loss));
  assign_precision(model.graph, {.compute = compute, .keep_f32 = {}});
  PassReport report = fuse_training(model.graph);
  const std::shared_ptr<const Backend> backend = open_backend(golden_device());
  backend->rewrite(model.graph, Stage::kForward, report);
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs) {
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  }
  Sgd sgd;
  UpdateOptions options;
  options.groups = resolve_groups(sgd);
  const UpdateTable updates = add_updates(model.graph, differentiate(model.graph, model.graph.find_output("loss"), wanted), options);
  const auto program = compile(std::move(model.graph), {.backend = backend});
  ParameterStore store(backend->device());
  store.declare(*program);
  for (const ParameterSpec& spec : model.specs) store.set(spec.name, tensor_of(spec.type.dtype, spec.type.shape, golden_values_of(spec)));
  Execution execution(program, store);
  execution.feed("input", tensor_of(DType::kF32, golden.input, golden_input("input", golden.input)));
  execution.feed("target", tensor_of(DType::kI64, target_shape(golden), golden_labels(target_shape(golden)).v));
  execution.set("lr." + options.groups.groups[0].name, 1e-3);
  if (execution.takes("rng")) execution.feed("rng", tensor_of(DType::kI64, {3}, {1, 1, 0}));
  std::vector<double> losses;
  for (int step = 1; step <= 2; ++step) {
    if (execution.takes("step")) execution.set("step", step);
    execution.run();
    losses.push_back(execution.scalar("loss"));
  }
  return losses;
}

class CompiledTraining : public testing::TestWithParam<GoldenModel> {};
class RandomTraining : public testing::TestWithParam<GoldenModel> {};

TEST_P(CompiledTraining, StartsAtTheGoldenLoss) {
  const std::vector<double> losses = two_steps(GetParam());
  // Batch norms over two to eight values amplify the rounding of f32 (6e-8) by up to 1e4.
  const double want = read_golden(GetParam().file).at("loss").values[0];
  EXPECT_TRUE(std::fabs(losses[0] - want) <= 1e-3 * want) << losses[0] << ", golden " << want;
  EXPECT_TRUE(std::isfinite(losses[1]));
  EXPECT_NE(losses[0], losses[1]);
}

TEST_P(CompiledTraining, InBf16StartsNearTheGoldenLoss) {
  const std::vector<double> narrow = two_steps(GetParam(), DType::kBF16), wide = two_steps(GetParam());
  // Batch norms over two to eight values also amplify the rounding of bf16 (4e-3): most models are within 1 %, shufflenet is at 9 %.
  EXPECT_TRUE(std::fabs(narrow[0] - wide[0]) <= 0.15 * wide[0]) << narrow[0] << ", in f32 " << wide[0];
  EXPECT_NE(narrow[0], wide[0]);
  EXPECT_TRUE(std::isfinite(narrow[1]));
  EXPECT_NE(narrow[0], narrow[1]);
}

TEST_P(RandomTraining, LossesAreFinite) {
  GoldenModel golden = GetParam();
  std::erase_if(golden.options,
                [](const auto& option) { return option.first.starts_with("dropout") || option.first == "stochastic_depth_prob"; });
  for (const double loss : two_steps(golden)) EXPECT_TRUE(std::isfinite(loss)) << loss;
}

std::vector<GoldenModel> only(const std::function<bool(const std::string&)>& wanted) {
  std::vector<GoldenModel> list = golden_models();
  std::erase_if(list, [&](const GoldenModel& golden) { return !wanted(golden.file); });
  return list;
}
/// One small member per family, except families that other tests train. Also without Inception-v3: its last batch norms are over two values
/// here, and the rounding of float32 changes the loss by up to 1 % (PyTorch's by 0.1 %); published_test.cpp has its training pass at full
/// size.
std::vector<GoldenModel> families() {
  return only([](const std::string& file) { return file.ends_with("_reduced") && !file.starts_with("inception"); });
}
/// Dropout, stochastic depth of convolutions and of tokens.
std::vector<GoldenModel> random_families() {
  return only(
      [](const std::string& file) { return file == "alexnet_reduced" || file == "efficientnet_b5_reduced" || file == "swin_reduced"; });
}

INSTANTIATE_TEST_SUITE_P(Zoo, CompiledTraining, testing::ValuesIn(families()), [](const auto& info) { return info.param.file; });
INSTANTIATE_TEST_SUITE_P(Zoo, RandomTraining, testing::ValuesIn(random_families()), [](const auto& info) { return info.param.file; });

}  // namespace
}  // namespace galley
