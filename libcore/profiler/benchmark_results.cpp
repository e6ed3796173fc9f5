#include "tools/benchmark/results.h"

#include <algorithm>
#include <map>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/profiler/html_page.h"
#include "tools/benchmark/results_page.h"
#include "tools/common/machine_limits.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// A row's recipe, work and keys but the threads.
std::string cell_without_threads(const Row& row) {
  std::string name = cat(row.recipe, " ", row.what);
  for (const auto& [key, value] : row.set) {
    if (key != "threads" && key != "batch") name += cat(" ", key, "=", value);
  }
  return row.batch > 0 ? cat(name, " batch=", row.batch) : name;
}

}  // namespace

std::vector<ScalingRow> thread_scaling(const std::vector<Row>& rows) {
  std::map<std::string, std::vector<const Row*>> groups;
  std::vector<std::string> order;
  for (const Row& row : rows) {
    if (!row.error.empty() || row.time.median <= 0) continue;
    const std::string cell = cell_without_threads(row);
    if (groups[cell].empty()) order.push_back(cell);
    groups[cell].push_back(&row);
  }
  std::vector<ScalingRow> scaling;
  for (const std::string& cell : order) {
    std::vector<const Row*>& group = groups[cell];
    std::stable_sort(group.begin(), group.end(), [](const Row* a, const Row* b) { return a->threads < b->threads; });
    const Row& first = *group.front();
    if (group.back()->threads == first.threads) continue;
    for (const Row* row : group) {
      const double speedup = first.time.median / row->time.median;
      scaling.push_back({cell, row->threads, row->time.median, speedup, speedup * static_cast<double>(first.threads) / static_cast<double>(row->threads)});
    }
  }
  return scaling;
}

Table scaling_table(const std::vector<ScalingRow>& scaling) {
  Table table{{"thread scaling", "threads", "median_ms", "speedup", "efficiency%"}, {}};
  for (const ScalingRow& row : scaling) {
    table.rows.push_back({row.cell, cat(row.threads), human_number(row.median_s * 1e3), fixed(row.speedup, 2), fixed(100 * row.efficiency, 0)});
  }
  return table;
}

Json results_json(const Results& results) {
  Json json{{"rows", Json::array()}, {"scaling", Json::array()}, {"remarks", results.remarks}};
  for (const Row& row : results.rows) json["rows"].push_back(row_json(row));
  for (const ScalingRow& row : results.scaling) {
    json["scaling"].push_back({{"cell", row.cell}, {"threads", row.threads}, {"median_ms", row.median_s * 1e3}, {"speedup", row.speedup}, {"efficiency", row.efficiency}});
  }
  json["provenance"] = results.provenance;
  return json;
}

std::string results_lines(const Results& results) {
  std::string lines;
  for (const Row& row : results.rows) {
    Json json = row_json(row);
    json["provenance"] = results.provenance;
    lines += json.dump() + "\n";
  }
  return lines;
}

std::string results_page(const Results& results) {
  Json json = results_json(results);
  json["limits"] = Json::array();
  std::vector<int64_t> threads;
  for (const Row& row : results.rows) {
    if (row.threads > 0 && std::find(threads.begin(), threads.end(), row.threads) == threads.end()) threads.push_back(row.threads);
  }
  Arithmetic work;
  for (const Row& row : results.rows) work += row.executed;
  for (int64_t count : threads) {
    const MachineLimits limits = machine_limits(static_cast<int>(count));
    const auto add_roof = [&](const char* type, double per_s) { json["limits"].push_back({{"threads", count}, {"type", type}, {"flops_per_s", per_s}, {"bytes_per_s", limits.bytes_per_s}}); };
    add_roof("", limits.flops_per_s);
    if (work.bf16 > 0 && limits.bf16_per_s > 0) add_roof(" of bf16", limits.bf16_per_s);
    if (work.int8 > 0 && limits.int8_per_s > 0) add_roof(" of 8-bit integers", limits.int8_per_s);
  }
  return html_page({"Galley benchmark", results_page_body(), json.dump(-1, ' ', false, Json::error_handler_t::replace), results_page_script()});
}

}  // namespace galley::tools
