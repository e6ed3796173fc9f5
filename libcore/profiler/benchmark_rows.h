#pragma once
// Rows of galley-benchmark: what was timed, how long it took, and how close to the machine's limits that is.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "libcore/base/table.h"
#include "libcore/profiler/statistics.h"
#include "libcore/profiler/timer.h"
#include "libcore/runtime/machine.h"

namespace galley {

struct BenchmarkRow {
  std::string recipe, what, precision = "f32", memory_format = "auto", device = "cpu";
  int64_t batch = 0, threads = 0;
  Summary time;                 // seconds of one run
  double samples = 0;           // of one run
  double flops = 0, bytes = 0;  // of one run
  Arithmetic executed;          // fewer where convolutions take Winograd's way: shares of limits are of these
  int64_t peak_bytes = 0;       // of the process, measured
  int64_t planned_bytes = 0;    // of the program: parameters, state, scratch, packed weights, batch; 0: no program
  bool converged = false;
  std::string error;
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<double> seconds;  // each run

  /// Share of the machine's rate of such operations.
  double peak_fraction() const;
  /// What bounds the work at best ("compute", "memory", or "" where neither is known), and the share of that limit that was reached.
  std::string bound() const;
  double limit_fraction() const;
};

nlohmann::ordered_json row_json(const BenchmarkRow& row);
/// Reads it back. Throws nlohmann::json::exception where it is not such an object.
BenchmarkRow row_of_json(const nlohmann::ordered_json& json);
/// Columns that are equal in all rows are left out.
Table row_table(const std::vector<BenchmarkRow>& rows);

/// Ready to run: keeps alive whatever it needs.
struct BenchmarkWork {
  BenchmarkRow row;  // all but the time
  std::function<void()> run;
  std::shared_ptr<void> parts;
};

/// Puts a series into its row.
void finish(BenchmarkRow& row, const Series& series);

}  // namespace galley
