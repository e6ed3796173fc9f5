// Benchmark results compared with hand-computed figures: saved results read back, saved results compare by their intervals, threads scale.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/profiler/benchmark_comparison.h"
#include "libcore/profiler/benchmark_results.h"

namespace galley {
namespace {

BenchmarkRow row(const std::string& what, int64_t batch, int64_t threads, double median, double half = 0.001) {
  BenchmarkRow row;
  row.recipe = "net";
  row.what = what;
  row.batch = batch;
  row.threads = threads;
  row.samples = static_cast<double>(batch);
  row.time.count = 9;
  row.time.median = row.time.mean = median;
  row.time.interval = {median - half, median + half};
  return row;
}

TEST(BenchmarkRows, ReadBackWhatWasSaved) {
  BenchmarkRow written = row("forward", 16, 2, 0.25);
  written.set = {{"threads", "2"}, {"precision", "bf16"}};
  written.flops = 4e9;
  written.executed = {1e9, 2e9, 0};
  written.bytes = 3e6;
  written.planned_bytes = 1234;
  written.peak_bytes = 99;
  written.seconds = {0.2, 0.25, 0.5};
  const BenchmarkRow read = row_of_json(nlohmann::ordered_json::parse(row_json(written).dump()));
  EXPECT_EQ(read.set, written.set);
  EXPECT_EQ(read.batch, 16);
  EXPECT_DOUBLE_EQ(read.time.median, 0.25);
  EXPECT_DOUBLE_EQ(read.time.interval.high, 0.251);
  EXPECT_DOUBLE_EQ(read.samples, 16);
  EXPECT_EQ(read.executed.f32, 1e9);
  EXPECT_EQ(read.executed.bf16, 2e9);
  EXPECT_EQ(read.planned_bytes, 1234);
  EXPECT_EQ(read.seconds.size(), 3u);
  BenchmarkRow failed = row("forward", 1, 1, 0);
  failed.error = "no memory";
  EXPECT_EQ(row_of_json(row_json(failed)).error, "no memory");
  EXPECT_TRUE(row_json(failed)["median_ms"].is_null());
}

TEST(BenchmarkRows, TablesShowWhatDiffers) {
  BenchmarkRow failed = row("data", 4, 1, 0);
  failed.error = "no data";
  const Table table = row_table({row("forward", 4, 1, 0.5), failed});
  EXPECT_EQ(std::count(table.headings.begin(), table.headings.end(), "recipe"), 0);
  EXPECT_EQ(std::count(table.headings.begin(), table.headings.end(), "threads"), 0);
  EXPECT_EQ(table.headings[1], "batch");
  EXPECT_EQ(table.rows[0][2], "500.0");
  EXPECT_EQ(table.rows[0][6], "8.000");  // samples per second
  EXPECT_EQ(table.headings.back(), "error");
  EXPECT_EQ(table.rows[1].back(), "no data");
  EXPECT_EQ(table.rows[1].size(), table.headings.size());
}

TEST(BenchmarkComparison, SavedResultsCompareByTheirIntervals) {
  const std::vector<BenchmarkRow> base{row("forward", 1, 2, 1, 0.002), row("forward", 2, 2, 1, 0.002), row("forward", 4, 2, 1, 0.002),
                                       row("forward", 8, 2, 1, 0.05), row("data", 1, 2, 1)};
  const std::vector<BenchmarkRow> changed{row("forward", 4, 2, 1.005, 0.002), row("forward", 1, 2, 1.2, 0.002),
                                          row("forward", 2, 2, 0.8, 0.002), row("forward", 8, 2, 1.02, 0.05), row("data", 1, 1, 1)};
  const std::vector<CellComparison> compared = compare_saved(base, changed);
  ASSERT_EQ(compared.size(), 4u);  // `data` used another number of threads
  EXPECT_EQ(compared[0].result.verdict, Verdict::kSlower);
  EXPECT_EQ(compared[1].result.verdict, Verdict::kFaster);
  EXPECT_EQ(compared[2].result.verdict, Verdict::kSame);
  EXPECT_EQ(compared[3].result.verdict, Verdict::kCannotTell);
  EXPECT_NEAR(compared[0].result.change, 0.2, 1e-12);
  EXPECT_NEAR(compared[0].result.interval.low, 1.198 / 1.002 - 1, 1e-12);
  const nlohmann::ordered_json json = comparison_json(compared);
  EXPECT_EQ(json[1]["verdict"], "faster");
  EXPECT_DOUBLE_EQ(json[0]["new_ms"], 1200);
  EXPECT_EQ(comparison_table(compared).rows[0][3], "+20.00 %");
}

TEST(BenchmarkComparison, TheBaseRunsTwiceInAnInstanceOfItsOwnWhereItIsSmall) {
  const auto work = [](int64_t bytes, double mark) {
    BenchmarkWork made;
    made.row.planned_bytes = bytes;
    made.row.samples = mark;
    return made;
  };
  const auto again = [&](int64_t bytes) { return compared_work(work(bytes, 1), work(bytes, 2), [&] { return work(bytes, 3); }); };
  EXPECT_EQ(again(int64_t{1} << 20).again.row.samples, 3);
  EXPECT_EQ(again(int64_t{1} << 20).min_effect, 0.02);
  EXPECT_EQ(again(int64_t{100} << 20).again.row.samples, 3);
  EXPECT_EQ(again(int64_t{100} << 20).min_effect, 0);
  EXPECT_EQ(again(int64_t{1} << 30).again.row.samples, 1);
}

TEST(BenchmarkResults, ThreadsScale) {
  const std::vector<ScalingRow> scaling = thread_scaling({row("forward", 1, 4, 0.5), row("forward", 1, 1, 1.5), row("data", 1, 1, 2)});
  ASSERT_EQ(scaling.size(), 2u);
  EXPECT_EQ(scaling[0].threads, 1);
  EXPECT_DOUBLE_EQ(scaling[1].speedup, 3);
  EXPECT_DOUBLE_EQ(scaling[1].efficiency, 0.75);
}

}  // namespace
}  // namespace galley
