#pragma once
// A recipe's work at one cell of a benchmark, ready to be timed: forward passes, updates, reading of data, loading of weights.

#include <memory>
#include <string>

#include "libcore/profiler/benchmark_rows.h"
#include "libcore/recipe/benchmark_cells.h"
#include "libcore/recipe/recipe.h"

namespace galley {

/// The row of a cell before it is measured: what the recipe says of it. `name`: of the recipe.
BenchmarkRow benchmark_row(const Recipe& recipe, const std::string& name, const BenchmarkCell& cell);

/// Compiles, takes memory, runs twice, and notes the peak of resident memory on the way. Throws Error.
BenchmarkWork benchmark_work(std::unique_ptr<LoadedRecipe> loaded, const std::string& name, const BenchmarkCell& cell);

}  // namespace galley
