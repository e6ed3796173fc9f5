// Tools that measure report that other programs ran at the same time, on stderr and in their output.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/cli/small_net.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

class SharedMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    write_text(folder + "/net.yaml", kSmallNet);
  }
  /// Runs a tool together with a process that computes all the time. Other programs only add to the load that the tool must detect. It
  /// measures for at least 0.4 s, since the kernel counts in ticks.
  Outcome beside_busy(const std::string& command) const {
    return shell("cd " + folder + "\n(while :; do :; done) & busy=$!\n" + command +
                 "\ncode=$?\nkill $busy\nwait $busy 2>/dev/null\nexit $code");
  }
  static void expect_said(const Outcome& outcome) {
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("other programs used"), std::string::npos) << outcome.err;
    bool said = false;
    const Json json = Json::parse(outcome.out);
    for (const Json& remark : json["remarks"]) said = said || remark.get<std::string>().starts_with("other programs used");
    EXPECT_TRUE(said) << outcome.out;
  }

  std::string folder;
};

TEST_F(SharedMachine, IsSaidByTheBenchmarkAndInItsPage) {
  expect_said(
      beside_busy("galley-benchmark net.yaml what=forward stop.min_runs=200 stop.max_time=2s stop.ci=0.001% --threads 1 --html page.html "
                  "--format json"));
  EXPECT_NE(read_text(folder + "/page.html").find("other programs used"), std::string::npos);
}

TEST_F(SharedMachine, IsSaidByAComparison) {
  const Outcome outcome = beside_busy(
      "galley-benchmark net.yaml --compare batch=8 batch=8 what=forward stop.ci=0.001% stop.max_time=500ms --threads 1 --format json; "
      "true");
  expect_said(outcome);
}

TEST_F(SharedMachine, IsSaidByTheProfilerAndInItsPage) {
  expect_said(beside_busy("galley-profile net.yaml what=forward profile.schedule.active=3000 --threads 1 --html page.html --format json"));
  EXPECT_NE(read_text(folder + "/page.html").find("other programs used"), std::string::npos);
}

TEST_F(SharedMachine, IsSaidByTheCheckOfLayouts) {
  expect_said(beside_busy(
      "galley-convert-layout --check net.yaml benchmark.stop.ci=0.01% benchmark.stop.max_time=500ms --threads 1 --format json"));
}

}  // namespace
}  // namespace galley::testing_cli
