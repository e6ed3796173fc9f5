#pragma once
// What is timed: one recipe at one cell of a sweep, made ready; and the row that is told of it.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "libcore/profiler/statistics.h"
#include "libcore/profiler/timer.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/machine.h"
#include "tools/benchmark/cells.h"
#include "tools/common/report.h"

namespace galley::tools {

struct Row {
  std::string recipe, what, precision = "f32", memory_format = "auto", device = "cpu";
  int64_t batch = 0, threads = 0;
  Summary time;                // seconds of one run
  double samples = 0;          // of one run
  double flops = 0, bytes = 0; // of one run
  Arithmetic executed;         // fewer where convolutions take Winograd's way: shares of limits are of these
  int64_t peak_bytes = 0;      // of the process, measured
  int64_t planned_bytes = 0;   // of the program: parameters, state, scratch, packed weights, batch; 0: no program
  bool converged = false;
  std::string error;
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<double> seconds; // each run

  /// Share of the machine's rate of such operations.
  double peak_fraction() const;
  /// What bounds the work at best ("compute", "memory", or "" where neither is known), and the share of that limit that was reached.
  std::string bound() const;
  double limit_fraction() const;
};

nlohmann::ordered_json row_json(const Row& row);
Row row_of_json(const nlohmann::ordered_json& json);
Table row_table(const std::vector<Row>& rows);

/// Ready to run: keeps alive whatever it needs.
struct Candidate {
  Row row;                     // all but the time
  std::function<void()> run;
  std::shared_ptr<void> parts;
};

/// Loads nothing: the recipe is given. Compiles, takes memory, runs twice, and notes the peak of resident memory on the way. Throws Error.
Candidate make_candidate(std::unique_ptr<LoadedRecipe> loaded, const std::string& name, const Cell& cell);

/// Puts a series into its row.
void finish(Row& row, const Series& series);

/// A single operator on random inputs; see operators.cpp for how a case is written; `winograd` as precision.winograd.
Candidate make_operator(const std::string& text, bool winograd);
/// The cases of `galley-benchmark op NAME`, or of all operators for "".
std::vector<std::string> operator_cases(const std::string& name);

}  // namespace galley::tools
