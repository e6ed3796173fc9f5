#pragma once
// Results in an SQLite database that grows from run to run.

#include <string>

#include "libcore/profiler/benchmark_results.h"

namespace galley::tools {

/// Opens the database and makes its tables where it is new: before anything is measured, whatever is wrong with it is told. Throws as
/// below.
void check_database(const std::string& path);
/// Adds a line to the table `runs` and its rows to `rows` (joined by rows.run = runs.id), in one transaction; makes file and
/// tables where they are missing. Throws Error: kInput where the file is no such database, kResource where it cannot be written.
void add_to_database(const std::string& path, const BenchmarkResults& results, const nlohmann::ordered_json& provenance);

}  // namespace galley::tools
