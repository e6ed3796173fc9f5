// An interrupted and resumed run is bit-identical to one without interruption. Signals, kill -9, changed recipes, threads and workers.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<double> losses_of(const std::string& run_folder) {
  std::istringstream lines(read_text(run_folder + "/metrics.jsonl"));
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    if (row["kind"] == "train") losses.push_back(row["loss"]);
  }
  return losses;
}

// State that the checkpoint must contain or the step number must determine: momentum, average, random numbers of dropout, learning rate.
const std::vector<std::string> kStateful{"duration=900 steps",
                                         "model.dropout=0.1",
                                         "optimizer.lr=0.001",
                                         "train.ema=0.9",
                                         "validate=450 steps",
                                         "schedule=[{type: cosine}]",
                                         "--format",
                                         "json",
                                         "-q"};

TEST(Resume, After20KillsTheWeightsAreThoseOfAnUninterruptedRun) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const std::vector<std::string> cut = with({recipe, "-o", folder + "/cut", "checkpoint.every=6 steps"}, kStateful);
  ASSERT_EQ(run("galley-train", with({recipe, "-o", folder + "/whole", "checkpoint.every=900 steps"}, kStateful)).code, 0);
  constexpr unsigned kSeed = 20;
  std::mt19937 random(kSeed);
  int target = 0;
  for (int kill = 0; kill < 20; ++kill) {
    Child child("galley-train", cut);
    if (kill % 2 == 0) {
      // Kills during the start: opening, compiling, restoring, the first steps.
      usleep(static_cast<useconds_t>(random() % 30000));
    } else {
      // Kills during the steps and the saves between them.
      target += static_cast<int>(1 + random() % 40);
      ASSERT_TRUE(wait_for_lines(folder + "/cut/metrics.jsonl", target)) << "seed " << kSeed << ", kill " << kill;
      usleep(static_cast<useconds_t>(random() % 3000));
    }
    child.signal(SIGKILL);
    ASSERT_EQ(child.wait(), 128 + SIGKILL) << "the run ended before kill " << kill;
  }
  const Outcome last = run("galley-train", cut);
  ASSERT_EQ(last.code, 0) << last.err;
  for (const char* file : {"weights.safetensors", "weights_ema.safetensors"}) {
    EXPECT_EQ(tensor_bytes(folder + "/whole/" + file), tensor_bytes(folder + "/cut/" + file)) << file << ", seed " << kSeed;
    EXPECT_FALSE(tensor_bytes(folder + "/whole/" + file).empty());
  }
  // Every step is logged once, with the same loss, and no temporary files remain.
  EXPECT_EQ(losses_of(folder + "/whole"), losses_of(folder + "/cut"));
  EXPECT_EQ(Json::parse(read_text(folder + "/whole/result.json"))["metrics"],
            Json::parse(read_text(folder + "/cut/result.json"))["metrics"]);
  EXPECT_EQ(shell("ls " + folder + "/cut/checkpoints | grep tmp").out, "");
}

class StopSignal : public testing::TestWithParam<int> {};

TEST_P(StopSignal, WritesACheckpointSaysHowToGoOnAndGoesOn) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", with({recipe, "-o", folder + "/whole", "checkpoint.every=900 steps"}, kStateful)).code, 0);
  const std::vector<std::string> cut = with({recipe, "-o", folder + "/cut", "checkpoint.every=900 steps"}, kStateful);
  {
    Child child("galley-train", cut);
    ASSERT_TRUE(wait_for_lines(folder + "/cut/metrics.jsonl", 3));
    child.signal(GetParam());
    ASSERT_EQ(child.wait(), 75);
  }
  EXPECT_EQ(shell("ls " + folder + "/cut/checkpoints | wc -l").out, "1\n");
  EXPECT_EQ(shell("ls " + folder + "/cut/result.json").code, 2);
  std::vector<std::string> loud = cut;
  loud.back() = "--progress=plain";  // instead of -q
  const Outcome rest = run("galley-train", loud);
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("continuing after step"), std::string::npos) << rest.err;
  EXPECT_EQ(tensor_bytes(folder + "/whole/weights.safetensors"), tensor_bytes(folder + "/cut/weights.safetensors"));
}

// A second signal ends the tool immediately, with a message about temporary files; the next start removes them.
TEST(Resume, ASecondSignalSaysWhatItLeavesAndTheNextStartRemovesIt) {
  const std::string folder = scratch_folder(), run_folder = folder + "/run";
  const std::vector<std::string> command{tiny_recipe(folder),      "-o", run_folder, "duration=1000000 steps", "validate=null",
                                         "checkpoint.every=1 step"};
  {
    // The message goes to a file, apart from the shell's messages about signals.
    std::string line = "exec galley-train";
    for (const std::string& word : command) line += " '" + word + "'";
    write_text(folder + "/train.sh", line + " 2> '" + folder + "/messages'\n");
    int code = 0;
    std::string messages;
    // The second signal must arrive before the first one has ended the run, so try several times.
    for (int tries = 0; tries < 20 && messages.find("stopped at once") == std::string::npos; ++tries) {
      const Outcome outcome =
          shell("rm -rf '" + run_folder + "'; bash '" + folder + "/train.sh' & child=$!; for i in $(seq 400); do [ -s '" + run_folder +
                "/metrics.jsonl' ] && break; sleep 0.02; done; kill -INT $child; kill -TERM $child; wait $child");
      code = outcome.code;
      messages = read_text(folder + "/messages");
    }
    // The handler of the signal that arrived last may run first.
    EXPECT_TRUE(code == 128 + SIGTERM || code == 128 + SIGINT) << code;
    EXPECT_NE(messages.find("a file that was being written may be left under a temporary name"), std::string::npos) << messages;
  }
  write_text(run_folder + "/weights.safetensors.tmp-0123456789abcdef", "unfinished");
  std::filesystem::create_directories(run_folder + "/checkpoints/step-000099.tmp-0123456789abcdef");
  std::vector<std::string> again = command;
  again[3] = "duration=1000001 steps";
  const std::string rows = read_text(run_folder + "/metrics.jsonl");
  const auto before = static_cast<int>(std::count(rows.begin(), rows.end(), '\n'));
  Child child("galley-train", with(again, {"-q"}));
  ASSERT_TRUE(wait_for_lines(run_folder + "/metrics.jsonl", before + 3));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 75);
  EXPECT_EQ(shell("find " + run_folder + " -name '*.tmp-*' | wc -l").out, "0\n");
}

INSTANTIATE_TEST_SUITE_P(Both, StopSignal, testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) { return info.param == SIGINT ? "CtrlC" : "Terminate"; });

// The final evaluation of this recipe would take minutes. The run keeps its steps.
TEST(Resume, ASignalStopsTheFinalEvaluation) {
  const std::string folder = scratch_folder();
  const std::vector<std::string> command{tiny_recipe(folder), "-o", folder + "/run", "duration=2 steps", "-q"};
  Child child("galley-train", with(command, {"data.val.source.samples=5000000", "data.val.batch=1"}));
  ASSERT_TRUE(wait_for_lines(folder + "/run/metrics.jsonl", 2));
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 75);
  EXPECT_FALSE(std::filesystem::exists(folder + "/run/result.json"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/run/checkpoints/step-000002"));
}

TEST(Resume, WithoutCheckpointsASignalEndsWithItsOwnCode) {
  const std::string folder = scratch_folder();
  const std::vector<std::string> command{tiny_recipe(folder), "-o", folder + "/run", "checkpoint=null", "duration=1000000 steps",
                                         "validate=null",     "-q"};
  Child child("galley-train", command);
  ASSERT_TRUE(wait_for_lines(folder + "/run/metrics.jsonl", 2));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_EQ(Json::parse(read_text(folder + "/run/result.json"))["stopped"], "signal");
}

TEST(Resume, ASecondProcessDoesNotTrainIntoTheSameFolder) {
  const std::string folder = scratch_folder();
  const std::vector<std::string> command{tiny_recipe(folder), "-o", folder + "/run", "duration=1000000 steps", "validate=null", "-q"};
  Child child("galley-train", command);
  ASSERT_TRUE(wait_for_lines(folder + "/run/metrics.jsonl", 2));
  const Outcome second = run("galley-train", command);
  EXPECT_EQ(second.code, 7) << second.err;
  EXPECT_NE(second.err.find("is writing to " + folder + "/run"), std::string::npos) << second.err;
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 75);
}

TEST(Resume, Sigusr1SavesAndGoesOn) {
  const std::string folder = scratch_folder();
  const std::vector<std::string> command{
      tiny_recipe(folder), "-o", folder + "/run", "checkpoint.every=900000 steps", "duration=1000000 steps", "validate=null", "-q"};
  Child child("galley-train", command);
  ASSERT_TRUE(wait_for_lines(folder + "/run/metrics.jsonl", 2));
  child.signal(SIGUSR1);
  std::string saved;
  for (int tries = 0; tries < 400 && saved.empty(); ++tries) {
    usleep(5000);
    saved = shell("ls " + folder + "/run/checkpoints 2>/dev/null | grep -v tmp").out;
  }
  EXPECT_EQ(saved.substr(0, 5), "step-");
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 75);
}

TEST(Resume, NamesTheVeryKeysThatChanged) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const std::string run_folder = folder + "/run";
  ASSERT_EQ(run("galley-train", {recipe, "-o", run_folder, "--format", "json", "-q"}).code, 0);
  const auto changed = [&](const std::vector<std::string>& overrides) {
    return run("galley-train", with({recipe, "-o", run_folder, "-q"}, overrides));
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"optimizer.lr=0.07"}, ": train.optimizer.lr differs\n"},
      {{"optimizer.lr=0.07", "seed=3"}, ": seed, train.optimizer.lr differ\n"},
      {{"model.hidden=9"}, ": model.hidden differs\n"},
      {{"optimizer={type: adamw, lr: 0.05}"}, ": train.optimizer.type differs\n"},
      {{"schedule=[{type: cosine}]"}, ": train.schedule differs\n"},
      {{"data.val.source.samples=11"}, ": data.val.source.samples differs\n"}};
  for (const auto& [overrides, message] : cases) {
    const Outcome outcome = changed(overrides);
    EXPECT_EQ(outcome.code, 3) << message;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << "no '" << message << "' in " << outcome.err;
    EXPECT_NE(outcome.err.find("--force to start again"), std::string::npos) << outcome.err;
  }
  // These keys may change: logging, checkpoints, device, threads, and a longer duration.
  EXPECT_EQ(
      changed({"log.every=2 steps", "checkpoint.keep.last=1", "threads=2", "duration=8 steps", "predict.top=1", "profile.schedule.wait=3"})
          .code,
      0);
  // Loading options and the handling of unreadable samples do not affect finished steps.
  for (const char* harmless :
       {"data.val.on_error=skip", "data.train.on_error=skip", "data.train.workers=2", "data.val.prefetch=2", "data.test={from: val}"})
    EXPECT_EQ(changed({"duration=9 steps", harmless}).code, 0) << harmless;
  EXPECT_EQ(changed({"duration=4 steps"}).code, 3);
}

TEST(Resume, AFinishedRunPrintsItsResultAndAsARecipeItGivesItsWeights) {
  const std::string folder = scratch_folder();
  ASSERT_EQ(run("galley-train", {tiny_recipe(folder), "-o", folder + "/first", "--format", "json", "-q"}).code, 0);
  const Outcome again = run("galley-train", {folder + "/first", "--format", "json", "-q"});
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(Json::parse(again.out), Json::parse(read_text(folder + "/first/result.json")));
  // Another output folder: the recipe of the RUN, starting from its weights.
  const Outcome second = run("galley-train", {folder + "/first", "-o", folder + "/second", "train.optimizer.lr=0", "--format", "json"});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("starting from"), std::string::npos) << second.err;
  EXPECT_EQ(tensor_bytes(folder + "/first/weights.safetensors"),
            tensor_bytes(folder + "/second/weights.safetensors"));  // unchanged with a learning rate of 0
  ASSERT_EQ(
      run("galley-train", {folder + "/first", "-o", folder + "/third", "train.optimizer.lr=0", "weights=null", "--format", "json", "-q"})
          .code,
      0);
  EXPECT_NE(tensor_bytes(folder + "/first/weights.safetensors"), tensor_bytes(folder + "/third/weights.safetensors"));
}

TEST(Resume, ARunThatStartedFromWeightsIsReadWithItsOwn) {
  const std::string folder = scratch_folder(), second = folder + "/second";
  ASSERT_EQ(run("galley-train", {tiny_recipe(folder), "-o", folder + "/first", "--format", "json", "-q"}).code, 0);
  ASSERT_EQ(run("galley-train", {folder + "/first", "-o", second, "train.optimizer.lr=0.2", "--format", "json", "-q"}).code, 0);
  const auto loss = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["metrics"]["loss"].get<double>();
  };
  const double trained = Json::parse(read_text(second + "/result.json"))["metrics"]["loss"];
  EXPECT_EQ(loss(run("galley-evaluate", {second, "--format", "json", "-q"})), trained);
  const double start = loss(run("galley-evaluate", {second, "weights=" + folder + "/first/weights.safetensors", "--format", "json", "-q"}));
  EXPECT_NE(start, trained);
  write_text(folder + "/start.yaml", "weights: " + folder + "/first/weights.safetensors\n");
  EXPECT_EQ(loss(run("galley-evaluate", {second, "--with", folder + "/start.yaml", "--format", "json", "-q"})), start)
      << "a fragment names others";
  // Missing weights are an error; the initial weights of the run are never used instead.
  std::filesystem::remove(second + "/weights.safetensors");
  const Outcome unfinished = run("galley-evaluate", {second, "-q"});
  EXPECT_EQ(unfinished.code, 4);
  EXPECT_NE(unfinished.err.find("has no weights.safetensors"), std::string::npos) << unfinished.err;
}

TEST(Repeat, AnyNumberOfDataWorkersGivesTheSameBits) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  for (const char* workers : {"0", "1", "2", "5"}) {
    ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/" + workers, std::string("data.train.workers=") + workers, "checkpoint=null",
                                   "--format", "json", "-q"})
                  .code,
              0);
    EXPECT_EQ(tensor_bytes(folder + "/0/weights.safetensors"), tensor_bytes(folder + "/" + workers + "/weights.safetensors"))
        << workers << " workers";
  }
  EXPECT_FALSE(tensor_bytes(folder + "/0/weights.safetensors").empty());
}

TEST(Repeat, ThreadsGiveTheSameBitsAtTheSameCountAndCloseLossesAtAnother) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  // Convolutions and batch norms, whose sums are divided among threads.
  const auto train = [&](const std::string& name, const std::string& threads) {
    return run("galley-train", {recipe, "-o", folder + "/" + name, "model={type: cnn, num_classes: 4}", "threads=" + threads,
                                "duration=4 steps", "optimizer.lr=0.001", "checkpoint=null", "validate=null", "--format", "json", "-q"})
        .code;
  };
  ASSERT_EQ(train("one", "1"), 0);
  ASSERT_EQ(train("two", "2"), 0);
  ASSERT_EQ(train("two_again", "2"), 0);
  EXPECT_EQ(tensor_bytes(folder + "/two/weights.safetensors"), tensor_bytes(folder + "/two_again/weights.safetensors"));
  const std::vector<double> one = losses_of(folder + "/one"), two = losses_of(folder + "/two");
  ASSERT_EQ(one.size(), 4u);
  ASSERT_EQ(two.size(), 4u);
  // f32 sums in another order, over four steps at a small rate.
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(std::fabs(one[i] - two[i]) <= 1e-4 * std::fabs(one[i])) << "step " << i + 1 << ": " << one[i] << " and " << two[i];
}

}  // namespace
}  // namespace galley::testing_cli
