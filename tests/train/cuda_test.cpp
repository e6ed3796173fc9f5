// device: cuda on the stand-in driver trains three small models as the processor does, with the same launches in every run and without
// allocations after the first step. An error of a launch names the module.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "libcore/data/loader.h"
#include "libcore/passes/differentiate.h"
#include "libcore/profiler/trace.h"
#include "libcore/runtime/compile.h"
#include "tests/backends/cuda/stand_in.h"
#include "tests/nn/golden_detector.h"
#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kCnn = R"(
recipe: 1
name: cnn
model:
  type: layers
  input: {shape: [3, 8, 8]}
  layers:
    - {name: conv1, type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, bias: false}
    - {name: bn1, type: batch_norm}
    - {type: relu}
    - {type: max_pool2d, kernel_size: 2}
    - {name: conv2, type: conv2d, out_channels: 8, kernel_size: 3, stride: 2, padding: 1}
    - {name: bn2, type: batch_norm}
    - {type: relu}
    - {type: flatten}
    - {name: fc, type: linear, out_features: 4}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [3, 8, 8], classes: 4}}
train:
  duration: 10 steps
  batch: 4
  optimizer: {type: sgd, lr: 0.1, momentum: 0.9, weight_decay: 1e-4}
  ema: 0.9
)";

constexpr std::string_view kDepthwise = R"(
recipe: 1
name: depthwise
model:
  type: layers
  input: {shape: [3, 8, 8]}
  layers:
    - {name: stem, type: conv2d, out_channels: 8, kernel_size: 3, stride: 2, padding: 1, bias: false}
    - {name: bn1, type: batch_norm}
    - {type: hardswish}
    - {name: depthwise, type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, groups: 8, bias: false}
    - {name: bn2, type: batch_norm}
    - {type: relu6}
    - {name: pointwise, type: conv2d, out_channels: 12, kernel_size: 1}
    - {type: adaptive_avg_pool2d, output_size: 1}
    - {type: flatten}
    - {type: dropout, p: 0.2}
    - {name: fc, type: linear, out_features: 4}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [3, 8, 8], classes: 4}}
train:
  duration: 10 steps
  batch: 4
  optimizer: {type: rmsprop, lr: 0.01, momentum: 0.9}
  clip: 1.0
)";

/// kCnn on images, which its pipeline normalizes.
constexpr const char* kImages[] = {"data.train.source.values=image",
                                   "data.train.pipeline=[{type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}]"};

constexpr std::string_view kCudaGpt = R"(
recipe: 1
name: gpt
model: {type: gpt, n_layer: 1, n_head: 2, n_embd: 16, block_size: 8, vocab_size: 64, dropout: 0.1}
data: {train: {source: {type: synthetic, samples: 64, values: integer, high: 64}}}
train:
  duration: 10 steps
  batch: 2
  optimizer: {type: adamw, lr: 0.01, weight_decay: 0.01}
  clip: 1.0
)";

class CudaTraining : public testing::TestWithParam<test::Model> {
 protected:
  void SetUp() override { test::stand_in_device(); }
};
INSTANTIATE_TEST_SUITE_P(Models, CudaTraining,
                         testing::Values(test::Model{"cnn", kCnn}, test::Model{"depthwise", kDepthwise}, test::Model{"gpt", kCudaGpt}),
                         [](const auto& info) { return info.param.name; });

constexpr int64_t kSteps = 3;

TEST_P(CudaTraining, EqualsTheProcessorToRounding) {
  std::map<std::string, std::map<std::string, Tensor>> values;
  std::map<std::string, std::vector<double>> read;
  for (const char* device : {"cpu", "cuda"}) {
    const LoadedRecipe loaded = test::load_text(GetParam().recipe, {std::string("device=") + device});
    const Session session(loaded.recipe);
    test::Stepping at(session, 2, 2);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const TrainStep::Outcome outcome = at.training.run(step, [&]() -> const Batch& { return at.batch; });
      read[device].insert(read[device].end(), {outcome.loss, outcome.grad_norm});
    }
    values[device] = at.values();
  }
  for (size_t i = 0; i < read["cpu"].size(); ++i)
    EXPECT_NEAR(read["cuda"][i], read["cpu"][i], 1e-3 * std::abs(read["cpu"][i])) << (i % 2 == 0 ? "loss" : "grad_norm");
  ASSERT_EQ(values["cuda"].size(), values["cpu"].size());
  for (const auto& [name, tensor] : values["cpu"]) {
    const std::vector<double> want = tensor.to_doubles(), got = values["cuda"].at(name).to_doubles();
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    // Rounding grows where an optimizer divides small gradients by their size; a wrong update is off by all of its change.
    EXPECT_LE(std::sqrt(difference), 0.02 * std::sqrt(size) + 1e-6) << name;
  }
}

TEST_P(CudaTraining, RepeatsItsLaunchesAndAllocatesOnlyInTheFirstStep) {
  if (test::on_gpu()) GTEST_SKIP() << "calls are counted by the stand-in driver";
  const LoadedRecipe loaded = test::load_text(GetParam().recipe, {"device=cuda"});
  const Session session(loaded.recipe);
  constexpr const char* kAllocating[] = {"cuMemAlloc", "cuMemHostAlloc", "cuStreamCreate", "cuLibraryLoadData"};
  std::vector<std::string> first;
  const int64_t missed = test::stand_in_missed_events();
  for (int run = 0; run < 2; ++run) {
    test::Stepping at(session, 2, 2);
    test::stand_in_launches();
    std::vector<std::string> launches;
    std::map<std::string, int64_t> calls;
    for (int64_t step = 1; step <= kSteps; ++step) {
      at.training.run(step, [&]() -> const Batch& { return at.batch; });
      launches.push_back(test::stand_in_launches());
      for (const char* function : kAllocating) {
        const int64_t count = test::stand_in_calls(function);
        EXPECT_TRUE(step == 1 || count == calls[function]) << function << " in step " << step;
        calls[function] = count;
      }
    }
    EXPECT_GT(std::count(launches[0].begin(), launches[0].end(), '\n'), 20);
    EXPECT_EQ(launches[2], launches[1]);
    if (run == 0) first = launches;
    EXPECT_EQ(launches, first);
  }
  EXPECT_EQ(test::stand_in_missed_events(), missed) << "events that nothing waited for";
}

/// How many launches of a step have a kernel whose name begins so.
int64_t launches_of(const std::string& recipe, const std::vector<std::string>& set, std::string_view kernel) {
  const LoadedRecipe loaded = test::load_text(recipe, set);
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 2);
  test::stand_in_launches();
  at.training.run(1, [&]() -> const Batch& { return at.batch; });
  int64_t count = 0;
  std::istringstream lines(test::stand_in_launches());
  for (std::string line; std::getline(lines, line);) count += line.starts_with(kernel) ? 1 : 0;
  return count;
}

TEST(CudaUpdates, OneLaunchUpdatesAllParameters) {
  test::stand_in_device();
  if (test::on_gpu()) GTEST_SKIP() << "launches are recorded by the stand-in driver";
  for (const char* layers : {"model.n_layer=1", "model.n_layer=3"}) {
    EXPECT_EQ(launches_of(std::string(kCudaGpt), {"device=cuda", layers}, "adam_step"), 1) << layers;
    EXPECT_EQ(launches_of(std::string(kCudaGpt), {"device=cuda", layers}, "square_parts"), 1) << layers;
  }
  EXPECT_EQ(launches_of(std::string(kCnn), {"device=cuda"}, "sgd_step"), 1);
}

// Of the four gradients of biases of a block, only that of queries, keys and values is a sum of its own: norms and gelu make the others.
TEST(CudaBiases, AreSummedWithTheGradientsThatTheyAdd) {
  test::stand_in_device();
  const auto trained = [](const char* device, const char* precision) {
    const LoadedRecipe loaded =
        test::load_text(kCudaGpt, {cat("device=", device), cat("precision=", precision), "model.dropout=0", "model.n_layer=2"});
    const Session session(loaded.recipe);
    test::Stepping at(session, 2, 1);
    if (!test::on_gpu()) test::stand_in_launches();
    std::vector<double> read;
    for (int64_t step = 1; step <= 2; ++step) {
      const TrainStep::Outcome outcome = at.training.run(step, [&]() -> const Batch& { return at.batch; });
      read.insert(read.end(), {outcome.loss, outcome.grad_norm});
    }
    return std::pair(read, test::on_gpu() ? std::string() : test::stand_in_launches());  // the stand-in driver records them
  };
  const std::vector<double> want = trained("cpu", "f32").first;
  for (const auto& [precision, rounding] : {std::pair("f32", 1e-3), std::pair("bf16", 2e-2)}) {
    const std::pair<std::vector<double>, std::string> got = trained("cuda", precision);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.first[i], want[i], rounding * std::abs(want[i])) << precision << ' ' << i;
    if (test::on_gpu()) continue;
    const auto of_a_step = [&](std::string_view kernel) {
      int64_t count = 0;
      std::istringstream lines(got.second);
      for (std::string line; std::getline(lines, line);) count += line.starts_with(kernel) ? 1 : 0;
      return count / 2;
    };
    EXPECT_EQ(of_a_step("gelu_backward_sums"), 2) << precision;
    EXPECT_EQ(of_a_step("layer_norm_backward_sums"), 4) << precision;
    EXPECT_EQ(of_a_step("layer_norm_backward_pack"), 1) << precision;
    EXPECT_EQ(of_a_step("reduce_channels"), 2 + 1) << precision;  // and the gradient of the embedding of positions
  }
}

TEST_P(CudaTraining, AnErrorOfALaunchNamesTheModuleAndChangesNothingBefore) {
  if (test::on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in driver";
  const LoadedRecipe loaded = test::load_text(GetParam().recipe, {"device=cuda"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 1);
  const auto step = [&](int64_t number) { return at.training.run(number, [&]() -> const Batch& { return at.batch; }); };
  const int64_t before = test::stand_in_calls("cuLaunchKernel");
  step(1);
  const int64_t launches = test::stand_in_calls("cuLaunchKernel") - before;
  const std::map<std::string, Tensor> values = at.values();
  constexpr cuda::Result kIllegalAddress = 700;
  // The first launches are of the forward pass, which changes no parameter.
  for (const int64_t number : {int64_t{1}, launches / 5}) {
    test::Stepping other(session, 2, 1);
    for (const auto& [name, tensor] : values) other.training.store().set(name, tensor);
    test::fail_stand_in("cuLaunchKernel", number, kIllegalAddress);
    const std::string message = test::message_of([&] { other.training.run(2, [&]() -> const Batch& { return other.batch; }); });
    EXPECT_EQ(message.rfind("CUDA: starting the kernel ", 0), 0u) << message;
    const size_t place = message.find(" at ");
    ASSERT_NE(place, std::string::npos) << message;
    EXPECT_NE(message.find(" (", place), std::string::npos) << message;
    if (number == 1) {
      for (const auto& [name, tensor] : values) EXPECT_TRUE(bit_equal(tensor, other.training.store().get(name))) << name;
    }
  }
}

/// The parameters after five steps.
std::map<std::string, Tensor> trained(const Session& session, const std::function<void(int64_t step)>& before) {
  test::Stepping at(session, 2, 1);
  for (int64_t step = 1; step <= 5; ++step) {
    before(step);
    at.training.run(step, [&]() -> const Batch& { return at.batch; });
  }
  return at.values();
}

TEST_P(CudaTraining, AReplayedStepEqualsAnEagerOne) {
  const LoadedRecipe loaded = test::load_text(GetParam().recipe, {"device=cuda", "deterministic=true"});
  const Session session(loaded.recipe);
  setenv("GALLEY_CUDA_EAGER", "1", 1);
  const std::map<std::string, Tensor> eager = trained(session, [](int64_t) {});
  unsetenv("GALLEY_CUDA_EAGER");
  const int64_t before = test::on_gpu() ? 0 : test::stand_in_calls("cuGraphLaunch");
  const std::map<std::string, Tensor> replayed = trained(session, [](int64_t) {});
  EXPECT_TRUE(test::on_gpu() || test::stand_in_calls("cuGraphLaunch") - before == 3);
  ASSERT_EQ(replayed.size(), eager.size());
  for (const auto& [name, tensor] : eager) EXPECT_TRUE(bit_equal(tensor, replayed.at(name))) << name;
}

// The libraries stand in for algorithms whose sums are in any order. A batch of 4 has fewer samples than logical replicas.
TEST_P(CudaTraining, RunsGiveEqualBitsIfTheyMust) {
  for (const bool must : {true, false}) {
    const LoadedRecipe loaded = test::load_text(GetParam().recipe, {"device=cuda", must ? "deterministic=true" : "deterministic=false"});
    const Session session(loaded.recipe);
    const std::map<std::string, Tensor> first = trained(session, [](int64_t) {}), second = trained(session, [](int64_t) {});
    const bool equal =
        std::all_of(first.begin(), first.end(), [&](const auto& entry) { return bit_equal(entry.second, second.at(entry.first)); });
    EXPECT_TRUE(equal == must || (test::on_gpu() && !must)) << must;
  }
}

// The GPU reads and writes what is in pinned memory of the host.
TEST(CudaStep, StatesOnTheHostGiveEqualBits) {
  test::stand_in_device();
  std::map<std::string, Tensor> values[2];
  for (const bool offloaded : {false, true}) {
    const LoadedRecipe loaded = test::load_text(
        kCudaGpt, {"device=cuda", "deterministic=true", offloaded ? "sharding.offload={optimizer: host}" : "sharding.offload=null"});
    const Session session(loaded.recipe);
    test::Stepping at(session, 2, 1);
    for (int64_t step = 1; step <= 4; ++step) at.training.run(step, [&]() -> const Batch& { return at.batch; });
    values[offloaded] = at.values();
    int64_t on_host = 0, others = 0;
    ParameterStore& store = at.training.store();
    for (const std::string& name : store.names()) {
      const bool state = store.role(name) == ValueRole::kState;
      (store.tensor(name).storage()->host_access() ? on_host : others) += state ? 1 : 0;
      EXPECT_TRUE(state || !store.tensor(name).storage()->host_access()) << name;
    }
    EXPECT_EQ(on_host > 0, offloaded);
    EXPECT_EQ(others == 0, offloaded);
  }
  ASSERT_EQ(values[0].size(), values[1].size());
  for (const auto& [name, tensor] : values[0]) EXPECT_TRUE(bit_equal(tensor, values[1].at(name))) << name;
}

// Logits, their gradient and those of parameters stay in bf16 until a loss or an update reads them.
TEST(CudaStep, FewArraysAreCastInBf16) {
  test::stand_in_device();
  if (test::on_gpu()) GTEST_SKIP() << "launches are listed by the stand-in driver";
  const LoadedRecipe loaded = test::load_text(kCudaGpt, {"device=cuda", "precision=bf16", "model.dropout=0"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 1);
  test::stand_in_launches();
  at.training.run(1, [&]() -> const Batch& { return at.batch; });
  std::istringstream launches(test::stand_in_launches());
  std::map<std::string, int> count;
  for (std::string kernel, blocks; launches >> kernel >> blocks;) ++count[kernel];
  EXPECT_EQ(count["cross_entropy_backward_rows"], 1);
  EXPECT_LE(count["cast_elements"], 10) << "five weights, and between the embeddings in f32 and the layers";
}

/// Trains kCnn on batches of data.train.
struct OnImages {
  explicit OnImages(const std::vector<std::string>& set, bool bytes)
      : loaded(test::load_text(kCnn, set)),
        session(loaded.recipe),
        loader(bytes ? session.training_loader(4, 0) : session.loader("train", 4, 0, 0)),
        engine(session.backend()),
        training(session, engine, session.batch_types(*loader), {.global = 4, .micro = 4, .accumulation = 1},
                 {.total_steps = 10, .steps_per_epoch = 16, .samples_per_step = 4}) {
    training.initialize();
    training.bind();
  }
  double step(int64_t number) {
    return training.run(number, [&]() -> const Batch& { return *loader->next(); }).loss;
  }
  LoadedRecipe loaded;
  Session session;
  std::unique_ptr<DataLoader> loader;
  Engine engine;
  TrainStep training;
};
std::vector<std::string> image_keys(std::vector<std::string> set) {
  set.insert(set.end(), std::begin(kImages), std::end(kImages));
  return set;
}

// An evaluation on averages reads them in the place of parameters.
TEST(CudaStep, AveragesHaveTheFormatOfTheirParameters) {
  test::stand_in_device();
  const LoadedRecipe loaded = test::load_text(kCnn, {"device=cuda"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 1);
  ParameterStore& store = at.training.store();
  int averages = 0;
  for (const std::string& name : store.names()) {
    if (!store.has(name + ".ema")) continue;
    EXPECT_EQ(store.tensor(name + ".ema").format(), store.tensor(name).format()) << name;
    ++averages;
  }
  EXPECT_GT(averages, 5);
  if (test::on_gpu()) return;  // launches are listed by the stand-in driver
  EXPECT_LE(launches_of(std::string(kCnn), {"device=cuda"}, "ema_step"), 2) << "of parameters, and of buffers";
}

// A quarter of the bytes is copied, and the GPU computes what the host's pipeline computes otherwise.
TEST(CudaStep, ImagesInBytesTrainAsThoseInF32) {
  test::stand_in_device();
  for (const char* precision : {"precision=f32", "precision=bf16"}) {
    const std::vector<std::string> set = image_keys({"device=cuda", "deterministic=true", precision});
    OnImages bytes(set, true), floats(set, false);
    EXPECT_EQ(bytes.loader->layout().at("input").dtype(), DType::kU8);
    EXPECT_EQ(floats.loader->layout().at("input").dtype(), DType::kF32);
    const Graph& graph = bytes.training.program().graph();
    EXPECT_EQ(graph.type(graph.find_input("input")).dtype, DType::kU8);
    for (const Node& node : graph.nodes()) {
      if (!node.is("normalize_pixels")) continue;
      EXPECT_EQ(graph.type(node.outputs[0]).dtype == DType::kF32, std::string_view(precision) == "precision=f32");
    }
    for (int64_t step = 1; step <= 4; ++step) EXPECT_EQ(bytes.step(step), floats.step(step)) << precision << ", step " << step;
  }
}

TEST(CudaStep, TheNextBatchIsFedBeforeTheHostWaits) {
  test::stand_in_device();
  const std::vector<std::string> set = image_keys({"device=cuda", "deterministic=true"});
  OnImages ahead(set, true), plain(set, true);
  ahead.training.feed_ahead([](int64_t step) { return step <= 4; });
  for (int64_t step = 1; step <= 4; ++step) EXPECT_EQ(ahead.step(step), plain.step(step)) << step;
  EXPECT_EQ(ahead.loader->position(), plain.loader->position()) << "the last step fetches no batch ahead";
  if (test::on_gpu()) return;  // calls are counted by the stand-in driver
  OnImages other(set, true);
  other.training.feed_ahead([](int64_t) { return true; });
  constexpr cuda::Result kLost = 719;
  int asked = 0;
  int64_t copies = 0;
  const auto next = [&]() -> const Batch& {
    if (++asked == 2) {  // of the next step: the first wait from now on fails
      test::fail_stand_in("cuStreamSynchronize", 1, kLost);
      copies = test::stand_in_calls("cuMemcpyAsync");
    }
    return *other.loader->next();
  };
  EXPECT_NE(test::message_of([&] { other.training.run(1, next); }), "");
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(test::stand_in_calls("cuMemcpyAsync") - copies, 2) << "images: to the device, and to their place";
}

// The kernels of a trace are those that the driver launched, each under the node that launched it, by one clock.
TEST(CudaStep, RecordsTheKernelsOfEachNode) {
  test::stand_in_device();
  const LoadedRecipe loaded = test::load_text(kCnn, {"device=cuda"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 1);
  Recorder recorder;
  const auto step = [&](int64_t number, NodeObserver* observer) {
    at.training.run(number, [&]() -> const Batch& { return at.batch; }, observer);
  };
  for (int64_t number = 1; number <= 4; number += 2) {
    step(number, nullptr);  // between windows
    recorder.clear();
    if (!test::on_gpu()) test::stand_in_launches();
    recorder.begin_step(number + 1);
    step(number + 1, &recorder);
    recorder.end_step();
  }
  const Recording& recording = recorder.recording();
  if (test::on_gpu() && !recording.kernel_source.starts_with("CUPTI 13.")) GTEST_SKIP() << recording.kernel_source;
  const int64_t slack = test::on_gpu() ? 2'000'000 : 0;  // ns: GPU and host have a clock each
  std::vector<std::string> launched, recorded;
  if (!test::on_gpu()) {
    std::istringstream lines(test::stand_in_launches());
    for (std::string kernel, blocks; lines >> kernel >> blocks;) launched.push_back(kernel);
  }
  for (const KernelEvent& kernel : recording.kernels) {
    if (kernel.node < 0) continue;
    recorded.push_back(recording.kernel_names[static_cast<size_t>(kernel.name)]);
    const NodeEvent& node = recording.nodes[static_cast<size_t>(kernel.node)];
    EXPECT_GE(kernel.begin_ns, node.begin_ns);
    EXPECT_LE(kernel.end_ns, node.end_ns);
    EXPECT_GE(node.begin_ns, recording.steps.back().begin_ns - slack);
    EXPECT_LE(node.end_ns, recording.steps.back().end_ns + slack);
  }
  EXPECT_TRUE(test::on_gpu() ? recorded.size() > 20 : recorded == launched) << recorded.size() << " and " << launched.size();
  const std::string json = make_trace(recording).json;
  EXPECT_NE(json.find(R"("kernels":"CUPTI 13.)"), std::string::npos);
  EXPECT_NE(json.find(R"("cat":"kernel","name":"batch_norm_values")"), std::string::npos);
  EXPECT_NE(json.find(R"("cat":"copy","name":"copy )"), std::string::npos);
}

// The products are those of the libraries, the sums in f32.
TEST(CudaStep, SixteenBitsTrainAsF32ToRounding) {
  test::stand_in_device();
  for (const std::string_view recipe : {kCnn, kCudaGpt}) {
    std::map<std::string, std::vector<double>> losses;
    for (const char* precision : {"f32", "bf16", "{compute: f16, loss_scale: 1024}"}) {
      const LoadedRecipe loaded = test::load_text(recipe, {"device=cuda", std::string("precision=") + precision});
      const Session session(loaded.recipe);
      test::Stepping at(session, 2, 1);
      for (int64_t step = 1; step <= 3; ++step)
        losses[precision].push_back(at.training.run(step, [&]() -> const Batch& { return at.batch; }).loss);
    }
    for (const auto& [precision, values] : losses) {
      for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], losses["f32"][i], 0.03 * losses["f32"][0]) << precision;
    }
  }
}

TEST(CudaStep, RunsProductsAndConvolutionsByTheLibraries) {
  if (test::on_gpu()) GTEST_SKIP() << "launches are listed by the stand-in driver";
  test::stand_in_device();
  const LoadedRecipe loaded = test::load_text(kCnn, {"device=cuda"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 1);
  test::stand_in_launches();
  at.training.run(1, [&]() -> const Batch& { return at.batch; });
  const std::string launches = test::stand_in_launches();
  EXPECT_NE(launches.find("cublasLtMatmul"), std::string::npos) << launches;
  EXPECT_NE(launches.find("cudnnBackendExecute"), std::string::npos) << launches;
  for (const char* own : {"matmul_tiles", "conv2d_direct", "conv2d_backward"}) EXPECT_EQ(launches.find(own), std::string::npos) << own;
}

// By the library, whose stand-in has statistics as cuDNN has them: in f16, of arrays that are all in channels_last.
TEST(CudaStep, ConvolutionsInF16MakeTheStatisticsOfNorms) {
  if (test::on_gpu()) GTEST_SKIP() << "launches are listed by the stand-in driver";
  test::stand_in_device();
  const LoadedRecipe loaded = test::load_text(kCnn, {"device=cuda", "precision={compute: f16, loss_scale: 1024}"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 1);
  test::stand_in_launches();
  at.training.run(1, [&]() -> const Batch& { return at.batch; });
  const std::string launches = test::stand_in_launches();
  EXPECT_NE(launches.find("batch_norm_of_sums"), std::string::npos) << launches;
}

TEST(CudaStep, AStepThatCannotBeRecordedRunsEagerly) {
  test::stand_in_device();
  if (test::on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in driver";
  const LoadedRecipe loaded = test::load_text(kCudaGpt, {"device=cuda", "deterministic=true"});
  const Session session(loaded.recipe);
  const std::map<std::string, Tensor> expected = trained(session, [](int64_t) {});
  constexpr cuda::Result kInvalidated = 901;
  for (const char* function : {"cuLaunchKernel", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"}) {
    const int64_t before = test::stand_in_calls("cuGraphLaunch");
    const std::map<std::string, Tensor> found = trained(session, [&](int64_t step) {
      if (step == 3) test::fail_stand_in(function, 1, kInvalidated);
    });
    EXPECT_EQ(test::stand_in_calls("cuGraphLaunch"), before) << function;
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(bit_equal(tensor, found.at(name))) << name << ", " << function;
  }
}

// A kernel that fails while it runs is named where each is waited for.
TEST(CudaStep, WaitingForEachKernelNamesTheModuleThatFails) {
  test::stand_in_device();
  if (test::on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in driver";
  const LoadedRecipe loaded = test::load_text(kCudaGpt, {"device=cuda"});
  const Session session(loaded.recipe);
  setenv("GALLEY_CUDA_EAGER", "1", 1);
  const std::string message = test::message_of([&] {
    trained(session, [](int64_t step) {
      if (step == 2) test::fail_stand_in("cuStreamSynchronize", 6, 700);
    });
  });
  unsetenv("GALLEY_CUDA_EAGER");
  EXPECT_EQ(message.rfind("CUDA: running the kernels of a stream: ", 0), 0u) << message;
  EXPECT_NE(message.find(") at "), std::string::npos) << message;
}

/// Five steps, with a state to go back to after each.
struct Resumable {
  /// Goes on from the last state.
  void run(const Session& session) {
    test::Stepping at(session, 2, 1);
    for (const auto& [name, tensor] : state) at.training.store().set(name, tensor);
    for (int64_t step = done + 1; step <= 5; ++step) {
      losses[step] = at.training.run(step, [&]() -> const Batch& { return at.batch; }).loss;
      state = at.values();
      done = step;
    }
  }
  int64_t done = 0;
  std::map<std::string, Tensor> state;
  std::map<int64_t, double> losses;
};

constexpr std::string_view kSmallest = R"(
recipe: 1
name: smallest
model: {type: mlp, hidden: [8], num_classes: 4}
loss: {type: cross_entropy}
data: {train: {source: {type: synthetic, samples: 16, shape: [6], classes: 4}}}
train: {duration: 10 steps, batch: 2, optimizer: {type: sgd, lr: 0.05, momentum: 0.9}}
)";

// Out of memory, a launch that fails, or a lost device in each call of five steps, of which three are replayed: the error has the code and,
// where a node starts a kernel, its module; and the run goes on from the step before to the same bits.
TEST(CudaStep, AnErrorOfEachCallLosesNothing) {
  test::stand_in_device();
  if (test::on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in driver";
  constexpr cuda::Result kLaunchFailure = 719, kUnavailable = 46;
  const std::map<std::string, cuda::Result> injected{{"cuMemAlloc", cuda::kOutOfMemory},  {"cuMemHostAlloc", cuda::kOutOfMemory},
                                                     {"cuLaunchKernel", kLaunchFailure},  {"cuGraphLaunch", kLaunchFailure},
                                                     {"cuMemcpyAsync", kUnavailable},     {"cuStreamSynchronize", kUnavailable},
                                                     {"cuEventSynchronize", kUnavailable}};
  const LoadedRecipe loaded = test::load_text(kSmallest, {"device=cuda", "deterministic=true"});
  const Session session(loaded.recipe);
  std::map<std::string, int64_t> counts;
  for (const auto& [function, code] : injected) counts[function] = test::stand_in_calls(function.c_str());
  Resumable whole;
  whole.run(session);
  for (const auto& [function, code] : injected) {
    const int64_t count = test::stand_in_calls(function.c_str()) - counts[function];
    counts[function] = count;
    EXPECT_GE(count, 3) << function;
  }
  for (const auto& [function, code] : injected) {
    for (int64_t number = 1; number <= counts[function]; ++number) {
      SCOPED_TRACE(function + ", call " + std::to_string(number));
      Resumable disturbed;
      test::fail_stand_in(function.c_str(), number, code);
      const std::string message = test::message_of([&] { disturbed.run(session); });
      // Destructors wait too, after the last step.
      const std::string expected = code == cuda::kOutOfMemory ? "memory" : disturbed.done == 5 ? "" : std::to_string(code);
      EXPECT_NE(message.find(expected), std::string::npos) << message;
      EXPECT_TRUE(function != "cuLaunchKernel" || message.find(" at ") != std::string::npos) << message;
      disturbed.run(session);
      EXPECT_EQ(disturbed.losses, whole.losses);
      for (const auto& [name, tensor] : whole.state) EXPECT_TRUE(bit_equal(tensor, disturbed.state.at(name))) << name;
    }
  }
}

// Weights that may stay on the host take memory of the GPU where the host has no more that the GPU can read.
TEST(CudaStep, WeightsGoToTheGpuWithoutPinnedMemory) {
  ParameterStore store(test::stand_in_device());
  if (test::on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in driver";
  const TensorType type{.shape = {3}};
  const auto on_host = [&](const char* name) {
    store.declare(name, type, ValueRole::kParameter, /*on_host=*/true);
    return store.tensor(name).storage()->host_access();
  };
  test::fail_stand_in("cuMemHostAlloc", 1, cuda::kOutOfMemory);
  EXPECT_FALSE(on_host("first"));
  EXPECT_TRUE(on_host("second"));
  for (const char* name : {"first", "second"}) {
    store.set(name, Tensor::of({3}, {1, 2, 3}));
    EXPECT_EQ(store.get(name).to_doubles(), (std::vector<double>{1, 2, 3})) << name;
  }
}

// Models whose operators are few models' only: each has a kernel for the formats that the layout gives. Nothing runs.
TEST(CudaKernels, OfTrainingFlowSegmentationAndDetectionAreFound) {
  test::stand_in_device();
  const std::shared_ptr<const Backend> backend = open_backend("cuda");
  const auto compile_gradients = [&](Graph& graph, const std::vector<ParameterSpec>& specs, const Value& loss) {
    std::vector<ValueId> wanted;
    for (const ParameterSpec& spec : specs)
      if (spec.trainable) wanted.push_back(graph.find_input(spec.name));
    for (const auto& [parameter, gradient] : differentiate(graph, loss.id(), wanted))
      graph.add_output(graph.value(parameter).name + ".grad", graph.at(gradient));
    graph.remove_dead_nodes();
    EXPECT_NO_THROW(compile(std::move(graph), {.backend = backend}));
  };
  for (const std::string type : {"raft_small", "raft_large", "lraspp_mobilenet_v3_large"}) {
    SCOPED_TRACE(type);
    Component model = default_model(type);
    Setter setter("num_flow_updates", {2});
    model.params->options(setter);
    Graph graph;
    Builder b(graph, {.mode = Mode::kTraining});
    NamedValues inputs;
    for (const ModelInput& input : model_info(model).required_inputs())
      inputs.emplace_back(input.name, b.input(input.name, {.shape = {2, 3, 128, 128}}));
    if (inputs.empty()) inputs.emplace_back("input", b.input("input", {.shape = {2, 3, 64, 64}}));
    const Value result = build_model(b, model, inputs).front().second;
    compile_gradients(graph, b.take_parameters(), sum(result, std::vector<int64_t>{}));
  }
  for (const GoldenDetector& detector : golden_detectors()) {
    if (detector.file != "ssdlite" && detector.file != "fasterrcnn_mobilenet") continue;
    SCOPED_TRACE(detector.file);
    CapturedDetector model(detector.component(), Mode::kTraining, detector.input, detector.objects);
    Value loss;
    for (const auto& [name, value] : model.results) {
      if (!name.ends_with(".sum")) continue;
      const Value part = model.loss(name.substr(0, name.size() - 4));
      loss = loss ? add(loss, part) : part;
    }
    ASSERT_TRUE(loss);
    compile_gradients(model.graph, model.specs, loss);
  }
}

}  // namespace
}  // namespace galley
