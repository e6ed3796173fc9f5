// Several ranks of a tool: as threads, and under mpirun, where ranks are killed and stopped.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// mpirun on any machine: as root, with more ranks than cores, unbound. Its processes end with the test.
constexpr const char* kMpirun =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
    "mpi() { timeout -s KILL 120 mpirun --oversubscribe --bind-to none \"$@\"; }\n"
    "processes() { for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" = $NAME ] && echo ${p#/proc/}; done; }\n";

bool has_mpirun() { return shell("command -v mpirun >/dev/null").code == 0; }

#define SKIP_WITHOUT_MPIRUN() \
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed"

void expect_rows(const std::string& text, int ranks, const std::string& transport) {
  const Json json = Json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << text;
  EXPECT_EQ(json["ranks"], ranks);
  EXPECT_EQ(json["transport"], transport);
  ASSERT_EQ(json["rows"].size(), 8u);  // two collectives, two sizes, two kinds of memory
  std::set<std::string> seen;
  for (const Json& row : json["rows"]) {
    seen.insert(row["what"].get<std::string>() + " " + std::to_string(row["bytes"].get<int>()) + " " + row["memory"].get<std::string>());
    EXPECT_GT(row["median_us"].get<double>(), 0);
    EXPECT_LE(row["min_us"].get<double>(), row["median_us"].get<double>());
    EXPECT_GT(row["gb_per_s"].get<double>(), 0);
    EXPECT_GE(row["runs"].get<int>(), 5);
  }
  EXPECT_EQ(seen.size(), 8u);
  EXPECT_EQ(json["provenance"]["tool"], "galley-benchmark");
}

TEST(Ranks, ThreadsTimeCollectives) {
  const Outcome outcome = run(
      "galley-benchmark", {"collectives", "what=all_reduce,all_gather", "sizes=4KiB,256KiB", "--simulate-ranks", "3", "--format", "json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_rows(outcome.out, 3, "threads");
}

TEST(Ranks, CollectivesRefuseWhatTheyDoNotKnow) {
  EXPECT_EQ(run("galley-benchmark", {"collectives", "what=all_reduc"}).code, 2);
  EXPECT_NE(run("galley-benchmark", {"collectives", "what=all_reduc"}).err.find("did you mean 'all_reduce'"), std::string::npos);
  EXPECT_EQ(run("galley-benchmark", {"collectives", "batch=3"}).code, 2);
  EXPECT_EQ(run("galley-benchmark", {"machine", "--simulate-ranks", "2"}).code, 2);
}

TEST(Ranks, RanksOfMpirunTimeCollectives) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome =
      shell(std::string(kMpirun) + "mpi -np 3 galley-benchmark collectives what=all_reduce,all_gather sizes=4KiB,256KiB --format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_rows(outcome.out, 3, "shared memory");  // and rank 0 alone prints
}

TEST(Ranks, AToolForOneProcessIsRefused) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = shell(std::string(kMpirun) + "mpi -np 2 galley-recipes ls");
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("galley-recipes runs as one process"), std::string::npos) << outcome.err;
}

Json result_of(const std::string& run) { return Json::parse(read_text(run + "/result.json"), nullptr, false); }

TEST(Ranks, TrainingHasTheSameBitsOnThreadsAndUnderMpirun) {
  SKIP_WITHOUT_MPIRUN();
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const Outcome one = run("galley-train", {recipe, "-o", folder + "/one"});
  ASSERT_EQ(one.code, 0) << one.err;
  struct Case {
    std::string strategy, threads;
    int ranks;  // 4: as if on two machines, which are the groups of hybrid
  };
  for (const auto& [strategy, of_threads, ranks] :
       {Case{"zero1", "zero1", 2}, Case{"zero2", "zero2", 2}, Case{"fsdp", "fsdp", 2}, Case{"ddp", "ddp", 4}, Case{"fsdp", "fsdp", 4},
        Case{"hybrid", "{strategy: hybrid, mesh: {data: 2, shard: 2}}", 4}}) {
    const std::string number = std::to_string(ranks), name = strategy + number;
    const std::string in_threads = folder + "/threads_" + name, in_processes = folder + "/processes_" + name;
    const Outcome threads = run("galley-train", {recipe, "-o", in_threads, "--simulate-ranks", number, "sharding=" + of_threads});
    ASSERT_EQ(threads.code, 0) << threads.err;
    const Outcome processes = shell(std::string(kMpirun) + "mpi " + (ranks == 4 ? "-x GALLEY_RANKS_PER_NODE=2" : "") + " -np " + number +
                                    " galley-train " + recipe + " sharding=" + strategy + " -o " + in_processes);
    ASSERT_EQ(processes.code, 0) << processes.err;
    EXPECT_NE(processes.err.find(ranks == 4 ? "4 ranks, shared memory and messages (MPI)" : "2 ranks, shared memory,"), std::string::npos)
        << processes.err;
    const Json a = result_of(in_threads), b = result_of(in_processes);
    EXPECT_EQ(a["digest"], b["digest"]) << name;
    for (const Json& result : {a, b}) {
      EXPECT_EQ(result["ranks"], ranks);
      EXPECT_EQ(result["strategy"], strategy);
      EXPECT_EQ(result["micro"], 8 / ranks);
      EXPECT_NEAR(result["metrics"]["loss"].get<double>(), result_of(folder + "/one")["metrics"]["loss"].get<double>(), 1e-4);
    }
    // Rank 0 alone prints the result, and writes one line for each step.
    EXPECT_EQ(processes.out.find("trained"), processes.out.rfind("trained"));
    const std::string rows = read_text(in_processes + "/metrics.jsonl");
    EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 8);  // six steps and two evaluations
    EXPECT_NE(read_text(in_processes + "/logs/rank-0001.log").find(number + " ranks"), std::string::npos);
  }
}

TEST(Ranks, DeterministicTrainingHasTheBitsOfOneProcess) {
  SKIP_WITHOUT_MPIRUN();
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder, "deterministic: true\n");
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/one"}).code, 0);
  const Json one = result_of(folder + "/one");
  // Three ranks divide neither the batch nor the replicas. Stages of a pipeline, and their copies, are on two machines.
  for (const auto& [ranks, strategy] : {std::pair<std::string, std::string>("-np 3", "ddp"),
                                        {"-np 3", "zero1"},
                                        {"-np 3", "fsdp"},
                                        {"-x GALLEY_RANKS_PER_NODE=2 -np 4", "'{strategy: pipeline, mesh: {data: 2, pipe: 2}}'"}}) {
    const std::string in = folder + "/run";
    const Outcome processes =
        shell(std::string(kMpirun) + "mpi " + ranks + " galley-train " + recipe + " sharding=" + strategy + " --force -o " + in);
    ASSERT_EQ(processes.code, 0) << processes.err;
    EXPECT_EQ(result_of(in)["digest"], one["digest"]) << strategy;
    EXPECT_EQ(result_of(in)["metrics"], one["metrics"]) << strategy;
  }
  const Outcome plain = run("galley-train", {recipe, "-o", folder + "/plain", "deterministic=false"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_NE(result_of(folder + "/plain")["digest"], one["digest"]);
}

/// Two ranks divide the matrices, and two pairs on a mesh.
TEST(Ranks, DivideMatricesOnThreadsAndUnderMpirun) {
  SKIP_WITHOUT_MPIRUN();
  const std::string folder = scratch_folder(), recipe = folder + "/gpt.yaml";
  write_text(recipe,
             "recipe: 1\n"
             "name: gpt\n"
             "model: {type: gpt, n_layer: 2, n_head: 4, n_embd: 32, vocab_size: 50, block_size: 16, dropout: 0.1}\n"
             "data: {train: {source: {type: synthetic, samples: 32, values: integer, high: 50}}}\n"
             "train: {duration: 3 steps, batch: 4, optimizer: {type: sgd, lr: 0.1}, clip: 1.0}\n"
             "threads: 1\n");
  const auto losses = [&](const std::string& run) {
    std::vector<double> all;
    std::istringstream lines(read_text(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line).at("loss").get<double>());
    return all;
  };
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/one", "log.every=1 step"}).code, 0);
  for (const auto& [ranks, sharding] : {std::pair<int, std::string>{2, "sharding=tensor"},
                                        {4, "sharding={strategy: tensor, mesh: {data: 2, tensor: 2}, sequence_parallel: true}"}}) {
    const std::string number = std::to_string(ranks), threads = folder + "/threads" + number, processes = folder + "/processes" + number;
    const Outcome simulated = run("galley-train", {recipe, "-o", threads, "log.every=1 step", "--simulate-ranks", number, sharding});
    ASSERT_EQ(simulated.code, 0) << simulated.err;
    const Outcome started = shell(std::string(kMpirun) + "mpi -np " + number + " galley-train " + recipe + " 'log.every=1 step' '" +
                                  sharding + "' -o " + processes);
    ASSERT_EQ(started.code, 0) << started.err;
    EXPECT_EQ(result_of(threads)["digest"], result_of(processes)["digest"]);
    EXPECT_EQ(result_of(processes)["strategy"], "tensor");
    const std::vector<double> one = losses(folder + "/one"), many = losses(processes);
    ASSERT_EQ(one.size(), many.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], many[i], 1e-5);
  }
  const Outcome refused = run("galley-train", {recipe, "-o", folder + "/three", "--simulate-ranks", "3", "sharding=tensor"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("has 4 heads, which 3 ranks cannot divide equally"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("sharding=tensor"), std::string::npos) << "the override is shown: " << refused.err;
}

TEST(Ranks, DifferentRecipesAreRefused) {
  SKIP_WITHOUT_MPIRUN();
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const Outcome outcome = shell(std::string(kMpirun) + "mpi -np 1 galley-train " + recipe + " -o " + folder + "/run : -np 1 galley-train " +
                                recipe + " train.optimizer.lr=0.07 -o " + folder + "/run");
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("train.optimizer.lr is 0.05 on rank 0, but 0.07 on rank 1"), std::string::npos) << outcome.err;
}

TEST(Ranks, AFileStopsARunWhichContinuesWithEqualBits) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/whole", "--simulate-ranks", "2"}).code, 0);
  std::filesystem::create_directories(folder + "/parts");
  write_text(folder + "/parts/stop", "");
  const Outcome stopped = run("galley-train", {recipe, "-o", folder + "/parts", "--simulate-ranks", "2"});
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_FALSE(std::filesystem::exists(folder + "/parts/stop"));
  const Outcome continued = run("galley-train", {recipe, "-o", folder + "/parts", "--simulate-ranks", "2"});
  ASSERT_EQ(continued.code, 0) << continued.err;
  EXPECT_EQ(result_of(folder + "/parts")["digest"], result_of(folder + "/whole")["digest"]);
}

/// Runs as threads, so that the launcher's absence skips nothing.
TEST(Ranks, ACheckpointInPartsIsUsedAsWeightsAndConverted) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder), run_folder = folder + "/run";
  const Outcome trained = run("galley-train", {recipe, "-o", run_folder, "--simulate-ranks", "2", "sharding=fsdp"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::string newest = shell("ls -d " + run_folder + "/checkpoints/step-* | tail -1").out;
  newest.pop_back();
  ASSERT_TRUE(std::filesystem::exists(newest + "/part-0001.safetensors"));
  const Outcome converted = run("galley-weights", {"convert", newest, "-o", folder + "/one.safetensors"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  // The last checkpoint has the final parameters.
  const Outcome same =
      run("galley-weights", {"diff", folder + "/one.safetensors", run_folder + "/weights.safetensors", "--format", "json"});
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(Json::parse(same.out)["equal"], true) << same.out;
  const Outcome direct = run("galley-weights", {"diff", newest, run_folder + "/weights.safetensors", "--format", "json"});
  ASSERT_EQ(direct.code, 0) << direct.err;
  EXPECT_EQ(Json::parse(direct.out)["equal"], true) << direct.out;
  std::string by_weights, by_checkpoint;
  for (const auto& [weights, text] : {std::pair(run_folder + "/weights.safetensors", &by_weights), std::pair(newest, &by_checkpoint)}) {
    const Outcome evaluated = run("galley-evaluate", {recipe, "weights=" + weights, "--format", "json"});
    ASSERT_EQ(evaluated.code, 0) << evaluated.err;
    *text = Json::parse(evaluated.out)["metrics"].dump();
  }
  EXPECT_EQ(by_checkpoint, by_weights);
  const Outcome part = run("galley-evaluate", {recipe, "weights=" + newest + "/part-0000.safetensors"});
  EXPECT_EQ(part.code, 4);
  EXPECT_NE(part.err.find("galley-weights convert " + newest), std::string::npos) << part.err;
  std::filesystem::remove(newest + "/part-0001.safetensors");
  const Outcome missing = run("galley-weights", {"verify", newest});
  EXPECT_EQ(missing.code, 4);
  EXPECT_NE(missing.err.find("part-0001.safetensors is missing: 2 ranks wrote this checkpoint"), std::string::npos) << missing.err;
}

TEST(Ranks, ShardingMustFit) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const Outcome none = run("galley-train", {recipe, "-o", folder + "/a", "--simulate-ranks", "2", "sharding=none"});
  EXPECT_EQ(none.code, 3);
  EXPECT_NE(none.err.find("sharding: none trains on one rank, but there are 2"), std::string::npos) << none.err;
  const Outcome odd = run("galley-train", {recipe, "-o", folder + "/b", "--simulate-ranks", "3"});
  EXPECT_EQ(odd.code, 3);
  EXPECT_NE(odd.err.find("is not a multiple of the 3 ranks"), std::string::npos) << odd.err;
  const Outcome stages = run("galley-train", {recipe, "--simulate-ranks", "2", "sharding=pipeline", "train.batch.global=24", "--dry-run"});
  EXPECT_NE(stages.out.find("24 (8 micro-batches of 3)"), std::string::npos) << stages.out << stages.err;
}

constexpr const char* kLongBenchmark =
    "galley-benchmark collectives what=all_reduce sizes=64MiB,65MiB,66MiB,67MiB,68MiB,69MiB,70MiB,71MiB -q";

/// Starts a job of three ranks that runs for long, and does something to the process of rank 1, to the rank itself and not to its
/// supervising parent, a second after `ready` is true. Prints the exit code of mpirun last, and what is left of the job.
Outcome with_rank_1(const std::string& action, const std::string& command = kLongBenchmark, const std::string& ready = "true") {
  const std::string name = command.substr(0, std::min<size_t>(command.find(' '), 15));  // as /proc shows it
  return shell("NAME=" + name + "\n" + kMpirun + "(mpi -np 3 " + command +
               " >/dev/null; echo \"code $?\") &\n"
               "job=$!\n"
               "rank=\n"
               "for try in $(seq 200); do\n"
               "  sleep 0.1\n"
               "  for p in $(processes); do\n"
               "    tr '\\0' '\\n' < /proc/$p/environ 2>/dev/null | grep -qx OMPI_COMM_WORLD_RANK=1 || continue\n"
               "    tr '\\0' '\\n' < /proc/$p/environ | grep -qx GALLEY_TEST=$TEST_ID || continue\n"
               "    parent=$(cut -d' ' -f4 /proc/$p/stat)\n"
               "    [ \"$(cat /proc/$parent/comm)\" = $NAME ] && rank=$p\n"
               "  done\n"
               "  [ -n \"$rank\" ] && [ -e /proc/$rank/task ] && [ $(ls /proc/$rank/task | wc -l) -gt 2 ] && " +
               ready +
               " && break\n"
               "done\n"
               "sleep 1\n" +
               action +
               " $rank\n"
               "wait $job\n"
               "sleep 0.5\n"
               "for p in $(processes); do\n"
               "  tr '\\0' '\\n' < /proc/$p/environ 2>/dev/null | grep -qx GALLEY_TEST=$TEST_ID && echo \"left $p\"\n"
               "done\n"
               "exit 0\n");
}

class RankFaults : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_MPIRUN();
    const std::string id = std::to_string(getpid());
    setenv("TEST_ID", id.c_str(), 1);
    setenv("GALLEY_TEST", id.c_str(), 1);  // marks the processes of this test; mpirun passes its environment on
  }
};

TEST_F(RankFaults, AKilledRankEndsTheJobAndIsNamed) {
  const Outcome outcome = with_rank_1("kill -9");
  EXPECT_EQ(outcome.out, "code 8\n") << outcome.err;
  EXPECT_NE(outcome.err.find("galley: error: rank 1 was killed by signal 9 (Killed) before step 1, collective "), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find(")\n"), std::string::npos) << outcome.err;  // its last collective
}

TEST_F(RankFaults, ATrainingWhoseRankIsKilledContinuesWithOtherRanks) {
  const std::string folder = scratch_folder(), saved = folder + "/run/checkpoints";
  const std::string recipe = tiny_recipe(folder, "sharding: zero1\n");
  const std::string arguments = recipe + " train.batch=12 train.validate=null log.every=1000steps checkpoint.every=500steps " +
                                "train.duration=100000000steps -q -o " + folder + "/run";
  const Outcome killed = with_rank_1("kill -9", "galley-train " + arguments, "ls " + saved + " 2>/dev/null | grep -q step-");
  EXPECT_EQ(killed.out, "code 8\n") << killed.err.substr(0, 2000);
  EXPECT_NE(killed.err.find("galley: error: rank 1 was killed by signal 9 (Killed) in step "), std::string::npos)
      << killed.err.substr(0, 2000);
  EXPECT_NE(killed.err.find(", collective "), std::string::npos) << killed.err.substr(0, 2000);
  write_text(folder + "/run/stop", "");
  const Outcome continued = shell("galley-train " + arguments + " --simulate-ranks 2 sharding=ddp");
  EXPECT_EQ(continued.code, 75) << continued.err.substr(0, 2000);
}

TEST_F(RankFaults, AStoppedRankIsFoundAndNamed) {
  const auto began = std::chrono::steady_clock::now();
  const Outcome outcome = with_rank_1("kill -STOP");
  EXPECT_EQ(outcome.out, "code 8\n") << outcome.err;
  EXPECT_NE(outcome.err.find("galley: error: rank 1 does not answer for "), std::string::npos) << outcome.err;
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

TEST_F(RankFaults, RanksWithOtherOptionsAreRefused) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const auto job = [&](const std::string& first, const std::string& second) {
    const std::string rank = "-np 1 galley-train " + recipe + " -q -o ";
    return shell(std::string(kMpirun) + "mpi " + rank + folder + first + " : " + rank + folder + second);
  };
  const std::string other = job("/a", "/b").err;
  EXPECT_NE(other.find("-o is " + folder + "/a on rank 0, but " + folder + "/b on rank 1"), std::string::npos) << other;
  const std::string dry = job("/a", "/a --dry-run").err;
  EXPECT_NE(dry.find("--dry-run is not given on rank 0, but given on rank 1"), std::string::npos) << dry;
  ASSERT_EQ(run("galley-train", {recipe, "-q", "-o", folder + "/a"}).code, 0);
  const std::string again = job("/a", "/a --force").err;
  EXPECT_NE(again.find("--force is not given on rank 0, but given on rank 1"), std::string::npos) << again;
}

/// The short form of scripts/rank-faults: the kinds of faults that the tests above do not have.
TEST_F(RankFaults, ARankThatEndsOrLoopsAtARandomMomentIsNamedAndTheRunContinues) {
  const Outcome outcome = shell("bin=$(dirname $(command -v galley-train)); python3 " GALLEY_SOURCE_DIR
                                "/scripts/rank-faults --kinds exit,loop --times 2 --seed 3 --seconds 2 --strategies zero1 --bin $bin");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("2 of 2 trials passed"), std::string::npos) << outcome.out;
}

TEST(Ranks, AStoppedRunNamesTheCommandThatContinuesIt) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  std::filesystem::create_directories(folder + "/run");
  write_text(folder + "/run/stop", "");
  const Outcome stopped = run("galley-train", {recipe, "-o", folder + "/run", "--simulate-ranks", "2"});
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_NE(stopped.err.find("the same command continues: galley-train " + folder + "/run --simulate-ranks 2"), std::string::npos)
      << stopped.err;
}

}  // namespace
}  // namespace galley::testing_cli
