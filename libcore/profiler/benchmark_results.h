#pragma once
// The result of a sweep in all its forms: JSON, JSON lines, the thread-scaling table, and a page.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/benchmark/candidate.h"

namespace galley::tools {

/// How a cell's time falls with the threads.
struct ScalingRow {
  std::string cell;       // what the rows that are compared have in common
  int64_t threads = 0;
  double median_s = 0;
  double speedup = 1;     // over the fewest threads
  double efficiency = 1;  // speedup for each thread that came with it
};

/// A group for every cell that was measured on several numbers of threads.
std::vector<ScalingRow> thread_scaling(const std::vector<Row>& rows);
Table scaling_table(const std::vector<ScalingRow>& scaling);

struct Results {
  std::vector<Row> rows;
  std::vector<ScalingRow> scaling;
  std::vector<std::string> remarks;
  nlohmann::ordered_json provenance;
};

/// {"rows":[...],"scaling":[...],"remarks":[...],"provenance":{...}}
nlohmann::ordered_json results_json(const Results& results);
/// An object a row, each with the provenance.
std::string results_lines(const Results& results);
/// A page that needs nothing else: curves over the swept keys, the roofline, the rows.
std::string results_page(const Results& results);

}  // namespace galley::tools
