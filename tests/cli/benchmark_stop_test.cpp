// Ctrl-C during a sweep, a comparison and a profile: finished results are kept, and the exit code says whether the work can continue.

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// Cells that run until they are stopped, since no interval becomes that narrow.
const char kEndless[] =
    "recipe: 1\n"
    "name: net\n"
    "model: {type: cnn, num_classes: 4, channels: [8, 8]}\n"
    "data: {train: {source: {type: synthetic, samples: 24}, workers: 1}}\n"
    "train: {duration: 2 steps, batch: 8, optimizer: {type: sgd, lr: 0.05}}\n"
    "threads: 1\n"
    "benchmark: {stop: {min_runs: 3, max_time: 300ms, ci: 0.0001%}, warmup: 1}\n"
    "profile: {schedule: {active: 100000}}\n";

TEST(StoppedBenchmark, ASweepGoesOnFromItsJournal) {
  const std::string folder = scratch_folder(), recipe = folder + "/net.yaml", journal = folder + "/journal.jsonl";
  write_text(recipe, kEndless);
  const std::vector<std::string> command{recipe, "batch=1..1000", "-o", journal, "-q"};
  Child child("galley-benchmark", command);
  ASSERT_TRUE(wait_for_lines(journal, 2));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 75);
  std::istringstream lines(read_text(journal));
  size_t cells = 0;
  for (std::string line; std::getline(lines, line); ++cells) EXPECT_FALSE(Json::parse(line)["value"]["median_ms"].is_null()) << line;
  ASSERT_GE(cells, 2u);
  // The second call does not repeat finished cells, and its result contains them.
  Child again("galley-benchmark", command);
  ASSERT_TRUE(wait_for_lines(journal, static_cast<int>(cells) + 1));
  again.signal(SIGTERM);
  EXPECT_EQ(again.wait(), 75);
  std::istringstream more(read_text(journal));
  std::set<int> batches;
  for (std::string line; std::getline(more, line);)
    EXPECT_TRUE(batches.insert(Json::parse(line)["value"]["batch"].get<int>()).second) << line;
  EXPECT_GT(batches.size(), cells);
}

// Calibration on so many samples would take hours.
TEST(StoppedQuantize, WritesNothing) {
  const std::string folder = scratch_folder(), recipe = folder + "/net.yaml";
  write_text(recipe, kEndless);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "-q"}).code, 0);
  Child child("galley-quantize", {folder + "/run", "data.train.source.samples=100000000", "data.calibration.samples=100000000",
                                  "data.calibration.pipeline=train", "-o", folder + "/int8.safetensors", "-q"});
  usleep(700000);
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 143);
  EXPECT_FALSE(std::filesystem::exists(folder + "/int8.safetensors"));
}

TEST(StoppedBenchmark, WithoutAJournalNothingIsLeft) {
  const std::string folder = scratch_folder(), recipe = folder + "/net.yaml";
  write_text(recipe, kEndless);
  const auto stopped = [&](const std::string& tool, const std::vector<std::string>& arguments, int signal) {
    Child child(tool, arguments);
    usleep(700000);  // during its work or at its start; both are valid
    child.signal(signal);
    return child.wait();
  };
  EXPECT_EQ(stopped("galley-benchmark", {recipe, "batch=1..1000", "-q"}, SIGINT), 130);
  EXPECT_EQ(stopped("galley-benchmark", {recipe, "stop.max_time=1000s", "--compare", "batch=1", "batch=2", "-q"}, SIGTERM), 143);
  EXPECT_EQ(stopped("galley-convert-layout", {"--check", recipe, "stop.max_time=1000s", "-q"}, SIGINT), 130);
  EXPECT_EQ(stopped("galley-profile", {recipe, "-o", folder + "/trace.json", "-q"}, SIGINT), 130);
  EXPECT_FALSE(std::filesystem::exists(folder + "/trace.json"));
}

}  // namespace
}  // namespace galley::testing_cli
