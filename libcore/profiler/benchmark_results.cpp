#include "libcore/profiler/benchmark_results.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/profiler/benchmark_page.h"
#include "libcore/profiler/html_page.h"
#include "libcore/profiler/machine_limits.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

/// A row's recipe, workload and keys except for the threads.
std::string cell_without_threads(const BenchmarkRow& row) {
  std::string name = cat(row.recipe, " ", row.what);
  for (const auto& [key, value] : row.set) {
    if (key != "threads" && key != "batch") name += cat(" ", key, "=", value);
  }
  return row.batch > 0 ? cat(name, " batch=", row.batch) : name;
}

}  // namespace

std::vector<ScalingRow> thread_scaling(const std::vector<BenchmarkRow>& rows) {
  std::map<std::string, std::vector<const BenchmarkRow*>> groups;
  std::vector<std::string> order;
  for (const BenchmarkRow& row : rows) {
    if (!row.error.empty() || row.time.median <= 0) continue;
    const std::string cell = cell_without_threads(row);
    if (groups[cell].empty()) order.push_back(cell);
    groups[cell].push_back(&row);
  }
  std::vector<ScalingRow> scaling;
  for (const std::string& cell : order) {
    std::vector<const BenchmarkRow*>& group = groups[cell];
    std::stable_sort(group.begin(), group.end(), [](const BenchmarkRow* a, const BenchmarkRow* b) { return a->threads < b->threads; });
    const BenchmarkRow& first = *group.front();
    if (group.back()->threads == first.threads) continue;
    for (const BenchmarkRow* row : group) {
      const double speedup = first.time.median / row->time.median;
      scaling.push_back({cell, row->threads, row->time.median, speedup,
                         speedup * static_cast<double>(first.threads) / static_cast<double>(row->threads)});
    }
  }
  return scaling;
}

Table scaling_table(const std::vector<ScalingRow>& scaling) {
  Table table{{"thread scaling", "threads", "median_ms", "speedup", "efficiency%"}, {}};
  for (const ScalingRow& row : scaling) {
    table.rows.push_back(
        {row.cell, cat(row.threads), human_number(row.median_s * 1e3), fixed(row.speedup, 2), fixed(100 * row.efficiency, 0)});
  }
  return table;
}

Json benchmark_json(const BenchmarkResults& results, const Json& provenance) {
  Json json{{"rows", Json::array()}, {"scaling", Json::array()}, {"remarks", results.remarks}};
  for (const BenchmarkRow& row : results.rows) json["rows"].push_back(row_json(row));
  for (const ScalingRow& row : results.scaling) {
    json["scaling"].push_back({{"cell", row.cell},
                               {"threads", row.threads},
                               {"median_ms", row.median_s * 1e3},
                               {"speedup", row.speedup},
                               {"efficiency", row.efficiency}});
  }
  json["provenance"] = provenance;
  return json;
}

std::string benchmark_lines(const BenchmarkResults& results, const Json& provenance) {
  std::string lines;
  for (const BenchmarkRow& row : results.rows) {
    Json json = row_json(row);
    json["provenance"] = provenance;
    lines += json.dump() + "\n";
  }
  return lines;
}

std::string benchmark_page(const BenchmarkResults& results, const Json& provenance) {
  Json json = benchmark_json(results, provenance);
  json["limits"] = Json::array();
  std::vector<int64_t> threads;
  for (const BenchmarkRow& row : results.rows) {
    if (row.threads > 0 && std::find(threads.begin(), threads.end(), row.threads) == threads.end()) threads.push_back(row.threads);
  }
  Arithmetic work;
  for (const BenchmarkRow& row : results.rows) work += row.executed;
  for (int64_t count : threads) {
    const MachineLimits limits = machine_limits(static_cast<int>(count), results.rows.front().device);
    const auto add_roof = [&](const char* type, double per_s) {
      json["limits"].push_back({{"threads", count}, {"type", type}, {"flops_per_s", per_s}, {"bytes_per_s", limits.bytes_per_s}});
    };
    add_roof("", limits.flops_per_s);
    if (work.bf16 > 0 && limits.bf16_per_s > 0) add_roof(" of bf16", limits.bf16_per_s);
    if (work.int8 > 0 && limits.int8_per_s > 0) add_roof(" of 8-bit integers", limits.int8_per_s);
  }
  return html_page(
      {"Galley benchmark", benchmark_page_body(), json.dump(-1, ' ', false, Json::error_handler_t::replace), benchmark_page_script()});
}

}  // namespace galley
