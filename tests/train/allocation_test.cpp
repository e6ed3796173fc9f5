// Steps allocate no heap memory on any thread: neither training steps after batches of both formats, nor inference after the first call.

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/infer/inference.h"
#include "tests/train/allocations.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

struct Setting {
  std::string name;
  std::string recipe;  // a built-in one
  std::vector<std::string> overrides;
  int64_t micro = 2, accumulation = 1;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

const std::string kResnet = "cifar_resnet20_synthetic", kMobilenet = "mobilenet_v3_large_synthetic", kShakespeare = "tinyshakespeare_lstm",
                  kGpt = "shakespeare_gpt", kSegmentation = "camvid_segmentation";
const std::string kVit =
    "model={type: vit_b_32, num_classes: 10, image_size: 32, patch_size: 8, num_layers: 2, num_heads: 2, hidden_dim: 32, mlp_dim: 64}";
const std::string kSwin =
    "model={type: swin_t, num_classes: 10, image_size: 32, embed_dim: 16, depths: [2, 1], num_heads: [2, 2], window_size: 3}";

const Setting kSettings[] = {
    {.name = "resnet", .recipe = kResnet},
    {.name = "mobilenet_v3", .recipe = kMobilenet, .overrides = {"model.type=mobilenet_v3_small", "data.train.source.shape=[3,64,64]"}},
    {.name = "bf16", .recipe = kResnet, .overrides = {"precision=bf16"}},
    {.name = "contiguous", .recipe = kResnet, .overrides = {"memory_format=contiguous"}},
    {.name = "micro_batches", .recipe = kResnet, .accumulation = 3},
    {.name = "clipping_and_average", .recipe = kResnet, .overrides = {"train.clip=1.0", "train.ema=0.9"}},
    {.name = "adamw", .recipe = kResnet, .overrides = {"optimizer={type: adamw, lr: 0.001}"}},
    {.name = "rounded", .recipe = kResnet, .overrides = {"quantize.method=qat", "quantize.qat.start=0 steps"}},
    {.name = "four_threads", .recipe = kResnet, .overrides = {"threads=4"}},  // loops with fewer parts than threads
    {.name = "language_model", .recipe = kShakespeare, .overrides = {"model.hidden_size=32", "model.sequence_length=16"}},
    {.name = "gpt", .recipe = kGpt, .overrides = {"model.n_layer=2", "model.n_embd=32", "model.block_size=24", "model.dropout=0.1"}},
    {.name = "stored_scores", .recipe = kGpt, .overrides = {"model.n_layer=2", "model.n_embd=32", "model.block_size=24", "attention=math"}},
    {.name = "vit", .recipe = kResnet, .overrides = {kVit}},
    {.name = "swin", .recipe = kResnet, .overrides = {kSwin}},
    {.name = "segmentation", .recipe = kSegmentation},
};

class Allocations : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!counts_allocations()) GTEST_SKIP() << "the sanitizer's allocator cannot be counted";
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 26);
    std::ofstream(folder_ / "text.txt") << text;
  }
  LoadedRecipe load() {
    std::vector<std::string> overrides = GetParam().overrides;
    if (GetParam().recipe == kShakespeare || GetParam().recipe == kGpt)
      overrides.push_back("data.train.source.path=" + (folder_ / "text.txt"));
    return test::load_named(GetParam().recipe, overrides);
  }
  static bool counts_allocations() { return test::counts_allocations(); }

 private:
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Settings, Allocations, testing::ValuesIn(kSettings), [](const auto& info) { return info.param.name; });

TEST_P(Allocations, OfATrainingStepAreNone) {
  const LoadedRecipe loaded = load();
  const Session session(loaded.recipe);
  test::Stepping at(session, GetParam().micro, GetParam().accumulation);
  // Batches in both image formats, since sources differ in their format.
  std::vector<Batch> batches{at.batch, at.batch};
  for (auto& [name, tensor] : batches[1].fields) tensor = tensor.to(MemoryFormat::contiguous());
  size_t given = 0;
  const auto next = [&]() -> const Batch& { return batches[given++ % 2]; };
  for (int64_t step = 1; step <= 2; ++step) at.training.run(step, next);
  test::AllocationCount allocations;
  for (int64_t step = 3; step <= 6; ++step) at.training.run(step, next);
  EXPECT_EQ(allocations.stop(), 0) << allocations.text();
}

TEST_P(Allocations, OfInferenceAreNone) {
  const LoadedRecipe loaded = load();
  const Session session(loaded.recipe);
  const BatchTypes types = session.usual_types(GetParam().micro, false);
  InferenceModel model = inference_model(session, types, nullptr);
  Engine engine(session.backend());
  const auto program =
      engine.program({.mode = "predict", .fields = types.fields}, "test", [&] { return std::move(model.graph); }, ParameterFormats::kLead);
  engine.declare(*program);
  session.initialize(model.parameters, engine.store());
  const std::unique_ptr<Execution> execution = engine.bind(program);
  const Batch batch = random_batch(session, types);
  const auto call = [&] {
    feed_fields(*execution, batch);
    execution->run();
    execution->wait();
  };
  call();
  test::AllocationCount allocations;
  call();
  call();
  EXPECT_EQ(allocations.stop(), 0) << allocations.text();
}

}  // namespace
}  // namespace galley
