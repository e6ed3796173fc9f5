#pragma once
// Output formats of a sweep: JSON, JSON lines, the thread-scaling table and an HTML page.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/profiler/benchmark_rows.h"

namespace galley {

/// Time of a cell for one number of threads.
struct ScalingRow {
  std::string cell;  // what the compared rows have in common
  int64_t threads = 0;
  double median_s = 0;
  double speedup = 1;     // relative to the row with the fewest threads
  double efficiency = 1;  // speedup divided by the ratio of threads
};

/// Rows for every cell that was measured with several numbers of threads.
std::vector<ScalingRow> thread_scaling(const std::vector<BenchmarkRow>& rows);
Table scaling_table(const std::vector<ScalingRow>& scaling);

struct BenchmarkResults {
  std::vector<BenchmarkRow> rows;
  std::vector<ScalingRow> scaling;
  std::vector<std::string> remarks;
};

/// {"rows":[...],"scaling":[...],"remarks":[...],"provenance":{...}}
nlohmann::ordered_json benchmark_json(const BenchmarkResults& results, const nlohmann::ordered_json& provenance);
/// One JSON object per line and row, each with the provenance.
std::string benchmark_lines(const BenchmarkResults& results, const nlohmann::ordered_json& provenance);
/// A self-contained HTML page: curves over the swept keys, the roofline, the rows.
std::string benchmark_page(const BenchmarkResults& results, const nlohmann::ordered_json& provenance);

}  // namespace galley
