#pragma once
// The result of a sweep in all its forms: JSON, JSON lines, the thread-scaling table, and a page.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/profiler/benchmark_rows.h"

namespace galley {

/// How a cell's time falls with the threads.
struct ScalingRow {
  std::string cell;  // what the rows that are compared have in common
  int64_t threads = 0;
  double median_s = 0;
  double speedup = 1;     // over the fewest threads
  double efficiency = 1;  // speedup for each thread that came with it
};

/// A group for every cell that was measured on several numbers of threads.
std::vector<ScalingRow> thread_scaling(const std::vector<BenchmarkRow>& rows);
Table scaling_table(const std::vector<ScalingRow>& scaling);

struct BenchmarkResults {
  std::vector<BenchmarkRow> rows;
  std::vector<ScalingRow> scaling;
  std::vector<std::string> remarks;
};

/// {"rows":[...],"scaling":[...],"remarks":[...],"provenance":{...}}
nlohmann::ordered_json benchmark_json(const BenchmarkResults& results, const nlohmann::ordered_json& provenance);
/// An object a row, each with the provenance.
std::string benchmark_lines(const BenchmarkResults& results, const nlohmann::ordered_json& provenance);
/// A page that needs nothing else: curves over the swept keys, the roofline, the rows.
std::string benchmark_page(const BenchmarkResults& results, const nlohmann::ordered_json& provenance);

}  // namespace galley
