#pragma once
// Rows of galley-benchmark: what was timed, how long it took, and how close that is to the machine's limits.

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
  Summary time;                 // seconds per run
  double samples = 0;           // of one run
  double flops = 0, bytes = 0;  // of one run
  Arithmetic executed;          // executed operations, fewer with Winograd convolutions; shares of limits refer to these
  int64_t peak_bytes = 0;       // peak memory, measured: of the process, or of a device with memory of its own
  int64_t planned_bytes = 0;    // planned by the program: parameters, state, workspace, packed weights, batch; 0: no program
  bool converged = false;
  std::string error;
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<double> seconds;  // time of each run

  /// Fraction of the machine's peak rate for the executed operations.
  double peak_fraction() const;
  /// Which limit applies ("compute", "memory", or "" if the work is unknown), and the fraction of that limit that was reached.
  std::string bound() const;
  double limit_fraction() const;
};

nlohmann::ordered_json row_json(const BenchmarkRow& row);
/// The inverse of row_json. Throws nlohmann::json::exception if the object does not have that form.
BenchmarkRow row_of_json(const nlohmann::ordered_json& json);
/// Leaves out columns in which all rows are equal.
Table row_table(const std::vector<BenchmarkRow>& rows);

/// A workload that is ready to run; keeps alive what it needs.
struct BenchmarkWork {
  BenchmarkRow row;  // everything but the time
  std::function<void()> run;
  std::shared_ptr<void> parts;
};

/// Sets the times of a row.
void finish(BenchmarkRow& row, const Series& series);

}  // namespace galley
