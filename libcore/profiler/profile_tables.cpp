#include "libcore/profiler/profile_tables.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {

Table operator_table(const Profile& profile, ProfileGroup by, size_t max_rows) {
  const std::vector<OperatorRow> rows = grouped(profile, by);
  const bool modules = by == ProfileGroup::kModule || by == ProfileGroup::kLayer,
             shapes = by == ProfileGroup::kShape || by == ProfileGroup::kLayer, types = by != ProfileGroup::kModule;
  Table table;
  if (modules) table.headings.push_back("module");
  if (types) table.headings.insert(table.headings.end(), {"op", "phase"});
  if (shapes) table.headings.push_back("shape");
  if (types) table.headings.push_back("kernel");
  table.headings.insert(table.headings.end(), {"calls", "self_ms", "percent", "gflops_per_s", "gbytes_per_s", "limit_percent", "bound"});
  const double steps = static_cast<double>(profile.steps);
  const auto add = [&](const OperatorRow& row) {
    std::vector<std::string> cells;
    if (modules) cells.push_back(row.module.empty() ? "(model)" : row.module);
    if (types) cells.insert(cells.end(), {row.type, row.phase});
    if (shapes) cells.push_back(row.shape);
    if (types) cells.push_back(row.backend);
    const bool works = row.flops > 0 || row.bytes > 0;
    cells.insert(cells.end(), {cat(row.calls / profile.steps), fixed(row.self_s * 1e3 / steps, 3), fixed(row.percent, 1),
                               works ? human_number(row.flops_per_s() * 1e-9) : "", works ? human_number(row.bytes_per_s() * 1e-9) : "",
                               works ? fixed(row.limit_percent(), 1) : "", works ? (row.compute_bound ? "compute" : "memory") : ""});
    table.rows.push_back(std::move(cells));
  };
  OperatorRow rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i < max_rows) {
      add(rows[i]);
      continue;
    }
    rest.calls += rows[i].calls;
    rest.self_s += rows[i].self_s;
    rest.percent += rows[i].percent;
  }
  const auto other = [&](const std::string& name, double seconds, int64_t calls) {
    OperatorRow row;
    (types ? row.type : row.module) = name;
    row.self_s = seconds;
    row.calls = calls;
    row.percent = profile.wall_s > 0 ? 100 * seconds / profile.wall_s : 0;
    add(row);
  };
  if (rows.size() > max_rows) other(cat("(", rows.size() - max_rows, " more)"), rest.self_s, rest.calls);
  other("(executor)", profile.gap_s, profile.steps);
  other("(waiting for data)", profile.data_s, profile.steps);
  return table;
}

Table module_table(const Profile& profile, int depth, size_t max_rows) {
  Table table{{"module", "total_ms", "self_ms", "percent", "forward_ms", "backward_ms", "update_ms", "GFLOP", "limit_percent", "parameters",
               "outputs"},
              {}};
  const double steps = static_cast<double>(profile.steps);
  for (const ModuleRow& row : profile.modules) {
    if (row.depth > depth || table.rows.size() >= max_rows) continue;
    const std::string name =
        row.path.empty() ? "(model)" : std::string(static_cast<size_t>(2 * row.depth), ' ') + row.path.substr(row.path.rfind('.') + 1);
    table.rows.push_back({name, fixed(row.total_s * 1e3 / steps, 3), fixed(row.self_s * 1e3 / steps, 3), fixed(row.percent, 1),
                          fixed(row.forward_s * 1e3 / steps, 3), fixed(row.backward_s * 1e3 / steps, 3),
                          fixed(row.update_s * 1e3 / steps, 3), human_number(row.total_flops * 1e-9 / steps),
                          fixed(row.total_s > 0 ? 100 * row.total_limit_s / row.total_s : 0, 1),
                          human_bytes(static_cast<double>(row.parameter_bytes)), human_bytes(static_cast<double>(row.made_bytes))});
  }
  return table;
}

Table memory_table(const Profile& profile) {
  Table table{{"memory", "at_peak", "maximum"}, {}};
  const MemoryTimeline& memory = profile.memory;
  if (memory.steps.empty()) return table;
  for (size_t c = 0; c < kMemoryCategories; ++c) {
    int64_t largest = 0;
    for (const MemorySizes& sizes : memory.steps) largest = std::max(largest, sizes[c]);
    if (largest == 0) continue;
    table.rows.push_back({std::string(category_name(static_cast<MemoryCategory>(c))),
                          human_bytes(static_cast<double>(memory.steps[memory.peak][c])), human_bytes(static_cast<double>(largest))});
  }
  const auto line = [&](const char* name, int64_t bytes) { table.rows.push_back({name, human_bytes(static_cast<double>(bytes)), ""}); };
  line("total at the peak", total(memory.steps[memory.peak]));
  line("planned (with fragmentation)", memory.planned_bytes);
  line("measured", profile.resident_bytes);
  return table;
}

Table below_limit_table(const Advice& advice) {
  Table table{{"op", "phase", "most_at", "percent", "beyond_ms", "limit_percent", "bound", "set", "because"}, {}};
  for (const BelowLimit& item : advice.operators) {
    table.rows.push_back({item.type, item.phase, item.module, fixed(100 * item.share, 1), fixed(item.beyond_s * 1e3, 3),
                          fixed(100 * item.reached, 1), item.bound, item.value.empty() ? item.key : cat(item.key, "=", item.value),
                          item.remedy});
  }
  return table;
}

}  // namespace galley
