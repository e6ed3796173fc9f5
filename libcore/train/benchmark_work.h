#pragma once
// The work of one benchmark cell, ready to be timed: forward passes, updates, loading of data, loading of weights.

#include <memory>
#include <string>

#include "libcore/profiler/benchmark_rows.h"
#include "libcore/recipe/benchmark_cells.h"
#include "libcore/recipe/recipe.h"

namespace galley {

/// The row of a cell before the measurement, filled from the recipe. `name`: the name of the recipe.
BenchmarkRow benchmark_row(const Recipe& recipe, const std::string& name, const BenchmarkCell& cell);

/// Compiles, allocates memory, runs twice and records the peak of resident memory. Throws Error.
BenchmarkWork benchmark_work(std::unique_ptr<LoadedRecipe> loaded, const std::string& name, const BenchmarkCell& cell);

}  // namespace galley
