#pragma once
// NEW against BASE, cell by cell: the result of galley-benchmark --compare.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/profiler/benchmark_rows.h"

namespace galley {

struct CellComparison {
  std::string cell;
  double base_s = 0, new_s = 0;  // medians of one run
  RoundComparison result;
};

/// Saved rows against saved rows of the same cells: medians with their intervals, since rounds are not known. Rows with errors, and cells
/// that one side lacks, are left out.
std::vector<CellComparison> compare_saved(const std::vector<BenchmarkRow>& base, const std::vector<BenchmarkRow>& changed);

/// Two works in turns (base, new, base again): how they are timed, and what is told of it.
struct ComparedWork {
  BenchmarkWork base, changed, again;  // `again`: an instance of its own where the base's memory is small
  double least_effect = 0;             // compare_rounds
};
/// `make_base`: makes another instance of the base.
ComparedWork compared_work(BenchmarkWork base, BenchmarkWork changed, const std::function<BenchmarkWork()>& make_base);
CellComparison compare_cell(const std::string& cell, const std::vector<Series>& series, double equal_within, double least_effect);

/// [{"cell","base_ms","new_ms","change","low","high","noise","smallest_effect","verdict"}, ...]
nlohmann::ordered_json comparison_json(const std::vector<CellComparison>& compared);
Table comparison_table(const std::vector<CellComparison>& compared);

}  // namespace galley
