// Law: the memory that galley-train plans before the first step is what the run takes, within 5 % and 64 MiB, in each phase: training,
// evaluation, writing a checkpoint, continuing from one, and loading weights. The model is small, but its vocabulary is large, so that one
// more copy of its logits (103 MB), of its state (two arrays of 52 MB) or of its weights is outside these bounds or near them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

constexpr double kRelative = 0.05, kMiB = 1 << 20, kAbsolute = 64 * kMiB;

class PlannedMemory : public testing::Test {
 protected:
  PlannedMemory() {
    std::string text;
    for (int i = 0; i < 60000; ++i) text += static_cast<char>('a' + i * i % 26);
    write_text(folder_ + "/text.txt", text);
    write_text(folder_ + "/gpt.yaml",
               "recipe: 1\n"
               "name: gpt\n"
               "threads: 2\n"
               "model: {type: gpt, n_layer: 1, n_head: 4, n_embd: 256, block_size: 64, vocab_size: 50304, dropout: 0, bias: false}\n"
               "data:\n"
               "  tokenizer: {type: byte}\n"
               "  train: {source: {type: text, path: " +
                   folder_ + "/text.txt}, slice: 0%..90%, workers: 1}\n" +
                   "  val: {from: train, slice: 90%..100%}\n"
                   "train:\n"
                   "  duration: 1 steps\n"
                   "  batch: 8\n"
                   "  validate: {every: 1 steps, samples: 8}\n"
                   "  optimizer: {type: adamw, lr: 0.001}\n"
                   "checkpoint: {every: 1 steps, keep: {last: 1}}\n"
                   "log: {every: 1 step, tensorboard: false}\n");
  }

  /// Trains into the folder `name`, and compares plan and peak of its result.
  void train(const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {folder_ + "/gpt.yaml", "-o", folder_ + "/" + name, "--format", "json", "-q"});
    const Outcome outcome = run("galley-train", more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    compare(folder_ + "/" + name);
  }

  void compare(const std::string& folder) {
    const auto result = nlohmann::json::parse(read_text(folder + "/result.json"));
    const double planned = result["planned_peak_bytes"], peak = result["peak_bytes"];
    expect_near(planned, peak, folder);
    if (!result.contains("peak_bytes_of_ranks")) return;
    const std::vector<double> plans = result["planned_peak_bytes_of_ranks"], peaks = result["peak_bytes_of_ranks"];
    ASSERT_EQ(plans.size(), result["ranks"].get<size_t>());
    ASSERT_EQ(peaks.size(), plans.size());
    for (size_t r = 0; r < peaks.size(); ++r) expect_near(plans[r], peaks[r], folder + ", rank " + std::to_string(r));
  }
  static void expect_near(double planned, double peak, const std::string& what) {
    EXPECT_TRUE(std::abs(peak - planned) <= kRelative * planned + kAbsolute)
        << what << ": planned " << planned / kMiB << " MiB, measured " << peak / kMiB << " MiB";
  }

  const std::string folder_ = scratch_folder();
};

TEST_F(PlannedMemory, OfTraining) { train("run", {"--unset", "data.val", "--unset", "checkpoint"}); }

TEST_F(PlannedMemory, OfEvaluationCheckpointAndResume) {
  train("run", {});
  train("run", {"duration=2 steps"});
}

/// The collector of this metric reads the logits: one batch of them is copied to the host.
TEST_F(PlannedMemory, OfAMetricThatReadsLogits) { train("run", {"metrics=[loss, perplexity, top5]"}); }

/// Without data.val the plan has no room for results, and averages make the state larger than the activations.
TEST_F(PlannedMemory, OfASmallBatchWithAveragesAndItsResume) {
  const std::vector<std::string> small{"--unset", "data.val", "train.batch=2", "train.ema=0.9"};
  train("run", small);
  train("run", {"--unset", "data.val", "train.batch=2", "train.ema=0.9", "duration=2 steps"});
}

/// The first of two stages, under mpirun: its activations, sums of gradients and messages, and the checkpoint.
TEST_F(PlannedMemory, OfAStageOfAPipeline) {
  const std::string mpirun = "timeout -s KILL 120 mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2 ";
  if (shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "mpirun is not installed";
  const std::string sizes = "model.n_layer=4 model.vocab_size=16384 'train.batch={global: 16, micro: 4}'";
  for (const char* schedule : {"1f1b", "interleaved"}) {
    const std::string folder = folder_ + "/" + schedule;
    const Outcome outcome = shell(mpirun + "galley-train " + folder_ + "/gpt.yaml --unset data.val -o " + folder + " -q --threads 1 " +
                                  sizes + " sharding.strategy=pipeline sharding.schedule=" + schedule);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    compare(folder);
  }
}

/// Every rank: parameters or parts of them, buckets or gathered units, and the segments of the others that collectives reach; fsdp writes a
/// checkpoint too. Parameters are 77 MB, of hybrid 52 MB; few tokens make steps short. hybrid: two ranks on each of two machines.
TEST_F(PlannedMemory, OfRanksThatShareMemory) {
  const std::string mpirun = "timeout -s KILL 120 mpirun --allow-run-as-root --oversubscribe --bind-to none ";
  if (shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "mpirun is not installed";
  for (const std::string strategy : {"ddp", "zero2", "fsdp", "tensor", "hybrid"}) {
    const std::string folder = folder_ + "/" + strategy;
    const std::string job = strategy == "hybrid" ? "-x GALLEY_RANKS_PER_NODE=2 -np 4 " : "-np 2 ",
                      more = strategy == "hybrid" ? " model.n_embd=256" : " model.n_embd=384",
                      saved = strategy == "fsdp" ? "" : " --unset checkpoint";
    const Outcome outcome = shell(mpirun + job + "galley-train " + folder_ + "/gpt.yaml --unset data.val -o " + folder +
                                  " -q --threads 1 model.block_size=16 train.batch=4 sharding=" + strategy + more + saved);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    compare(folder);
  }
}

TEST_F(PlannedMemory, OfLoadedWeights) {
  train("first", {"--unset", "data.val", "--unset", "checkpoint", "train.batch=1"});
  train("second", {"--unset", "data.val", "--unset", "checkpoint", "train.batch=1", "weights=" + folder_ + "/first"});
}

}  // namespace
}  // namespace galley::testing_cli
