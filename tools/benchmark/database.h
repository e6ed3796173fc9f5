#pragma once
// Stores results of several runs in an SQLite database.

#include <string>

#include "libcore/profiler/benchmark_results.h"

namespace galley::tools {

/// Opens the database and creates its tables if it is new, so that problems are reported before anything is measured. Throws as
/// add_to_database.
void check_database(const std::string& path);
/// Adds a row to the table `runs` and the results to `rows` (joined by rows.run = runs.id) in one transaction; creates the file and tables
/// if necessary. Throws Error: kInput if the file is another kind of file, kResource if it cannot be written.
void add_to_database(const std::string& path, const BenchmarkResults& results, const nlohmann::ordered_json& provenance);

}  // namespace galley::tools
