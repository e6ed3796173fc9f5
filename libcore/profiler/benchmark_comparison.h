#pragma once
// Comparison of NEW with BASE for each cell: the result of galley-benchmark --compare.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/profiler/benchmark_rows.h"

namespace galley {

struct CellComparison {
  std::string cell;
  double base_s = 0, new_s = 0;  // median time of one run
  RoundComparison result;
};

/// Compares saved rows of equal cells by their medians and intervals (rounds are not saved). Rows with errors and cells that one side lacks
/// are left out.
std::vector<CellComparison> compare_saved(const std::vector<BenchmarkRow>& base, const std::vector<BenchmarkRow>& changed);

/// Two workloads to be timed in turns (base, new, base again).
struct ComparedWork {
  BenchmarkWork base, changed, again;  // `again`: a separate instance if the base's memory is small
  double min_effect = 0;               // see compare_rounds
};
/// `make_base` creates another instance of the base.
ComparedWork compared_work(BenchmarkWork base, BenchmarkWork changed, const std::function<BenchmarkWork()>& make_base);
CellComparison compare_cell(const std::string& cell, const std::vector<Series>& series, double equal_within, double min_effect);

/// [{"cell","base_ms","new_ms","change","low","high","noise","smallest_effect","verdict"}, ...]
nlohmann::ordered_json comparison_json(const std::vector<CellComparison>& compared);
Table comparison_table(const std::vector<CellComparison>& compared);

}  // namespace galley
