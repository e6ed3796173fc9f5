#include "libcore/profiler/benchmark_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/profiler/machine_limits.h"

namespace galley {

double BenchmarkRow::peak_fraction() const {
  return time.median > 0 && flops > 0 ? executed.seconds_at(machine_limits(static_cast<int>(threads), device)) / time.median : 0;
}

std::string BenchmarkRow::bound() const {
  if (flops <= 0 && bytes <= 0) return "";
  const MachineLimits limits = machine_limits(static_cast<int>(threads), device);
  return executed.seconds_at(limits) >= bytes / limits.bytes_per_s ? "compute" : "memory";
}

double BenchmarkRow::limit_fraction() const {
  if (time.median <= 0 || (flops <= 0 && bytes <= 0)) return 0;
  const MachineLimits limits = machine_limits(static_cast<int>(threads), device);
  return std::max(executed.seconds_at(limits), bytes / limits.bytes_per_s) / time.median;
}

nlohmann::ordered_json row_json(const BenchmarkRow& row) {
  nlohmann::ordered_json json{{"recipe", row.recipe},   {"what", row.what},           {"batch", row.batch},
                              {"threads", row.threads}, {"precision", row.precision}, {"memory_format", row.memory_format},
                              {"device", row.device}};
  if (row.error.empty()) {
    const auto ms = [](double seconds) { return seconds * 1e3; };
    json["median_ms"] = ms(row.time.median);
    json["mean_ms"] = ms(row.time.mean);
    json["min_ms"] = ms(row.time.min);
    json["p10_ms"] = ms(row.time.p10);
    json["p90_ms"] = ms(row.time.p90);
    json["p99_ms"] = ms(row.time.p99);
    json["median_low_ms"] = ms(row.time.interval.low);
    json["median_high_ms"] = ms(row.time.interval.high);
    json["runs"] = row.time.count;
    json["outliers"] = row.time.outliers;
    json["converged"] = row.converged;
    json["samples_per_s"] = row.time.median > 0 ? row.samples / row.time.median : 0;
    json["flops"] = row.flops;
    json["executed_flops"] = row.executed.total();
    json["executed_bf16_flops"] = row.executed.bf16;
    json["executed_int8_flops"] = row.executed.int8;
    json["bytes"] = row.bytes;
    json["peak_bytes"] = row.peak_bytes;
    json["planned_bytes"] = row.planned_bytes;
    json["peak_fraction"] = row.peak_fraction();
    json["bound"] = row.bound();
    json["limit_fraction"] = row.limit_fraction();
    json["error"] = nullptr;
  } else {
    for (const char* key :
         {"median_ms", "mean_ms", "min_ms", "p10_ms", "p90_ms", "p99_ms", "runs", "samples_per_s", "flops", "executed_flops",
          "executed_bf16_flops", "executed_int8_flops", "bytes", "peak_bytes", "planned_bytes", "peak_fraction"})
      json[key] = nullptr;
    json["error"] = row.error;
  }
  json["set"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : row.set) json["set"][key] = value;
  if (!row.seconds.empty()) {
    constexpr size_t kMost = 400;  // enough for a later comparison; taken at equal distances
    json["runs_ms"] = nlohmann::ordered_json::array();
    const size_t shown = std::min(kMost, row.seconds.size());
    for (size_t i = 0; i < shown; ++i) json["runs_ms"].push_back(row.seconds[i * row.seconds.size() / shown] * 1e3);
  }
  return json;
}

BenchmarkRow row_of_json(const nlohmann::ordered_json& json) {
  BenchmarkRow row;
  row.recipe = json.at("recipe");
  row.what = json.at("what");
  row.batch = json.at("batch");
  row.threads = json.at("threads");
  row.precision = json.at("precision");
  row.memory_format = json.at("memory_format");
  row.device = json.at("device");
  for (const auto& [key, value] : json.at("set").items()) row.set.emplace_back(key, value);
  if (!json.at("error").is_null()) {
    row.error = json.at("error");
    return row;
  }
  row.time.median = json.at("median_ms").get<double>() / 1e3;
  row.time.mean = json.at("mean_ms").get<double>() / 1e3;
  row.time.min = json.at("min_ms").get<double>() / 1e3;
  row.time.p10 = json.at("p10_ms").get<double>() / 1e3;
  row.time.p90 = json.at("p90_ms").get<double>() / 1e3;
  row.time.p99 = json.at("p99_ms").get<double>() / 1e3;
  row.time.interval = {json.at("median_low_ms").get<double>() / 1e3, json.at("median_high_ms").get<double>() / 1e3};
  row.time.count = json.at("runs");
  row.time.outliers = json.at("outliers");
  row.converged = json.at("converged");
  row.samples = json.at("samples_per_s").get<double>() * row.time.median;
  row.flops = json.at("flops");
  row.executed = {0, json.value("executed_bf16_flops", 0.0), json.value("executed_int8_flops", 0.0)};
  row.executed.f32 = json.value("executed_flops", row.flops) - row.executed.total();
  row.bytes = json.at("bytes");
  row.peak_bytes = json.at("peak_bytes");
  row.planned_bytes = json.value("planned_bytes", int64_t{0});
  if (json.contains("runs_ms")) {
    for (const auto& value : json.at("runs_ms")) row.seconds.push_back(value.get<double>() / 1e3);
  }
  return row;
}

Table row_table(const std::vector<BenchmarkRow>& rows) {
  const auto differ = [&](const auto& get) {
    return std::any_of(rows.begin(), rows.end(), [&](const BenchmarkRow& row) { return get(row) != get(rows.front()); });
  };
  const bool recipes = differ([](const BenchmarkRow& row) { return row.recipe; }),
             threads = differ([](const BenchmarkRow& row) { return row.threads; });
  const bool batches = std::any_of(rows.begin(), rows.end(), [](const BenchmarkRow& row) { return row.batch > 0; });
  std::vector<std::string> keys;
  for (const BenchmarkRow& row : rows) {
    for (const auto& [key, value] : row.set) {
      if (key != "threads" && key != "batch" && std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  Table table;
  if (recipes) table.headings.push_back("recipe");
  table.headings.push_back("what");
  for (const std::string& key : keys) table.headings.push_back(key);
  if (batches) table.headings.push_back("batch");
  if (threads) table.headings.push_back("threads");
  for (const char* heading : {"median_ms", "+-%", "p90_ms", "runs", "samples/s", "GFLOP/s", "GB/s", "peak%", "bound", "limit%", "MiB"})
    table.headings.push_back(heading);
  if (std::any_of(rows.begin(), rows.end(), [](const BenchmarkRow& row) { return !row.error.empty(); })) table.headings.push_back("error");
  for (const BenchmarkRow& row : rows) {
    std::vector<std::string> cells;
    if (recipes) cells.push_back(row.recipe);
    cells.push_back(row.what);
    for (const std::string& key : keys) {
      const auto found = std::find_if(row.set.begin(), row.set.end(), [&](const auto& item) { return item.first == key; });
      cells.push_back(found == row.set.end() ? "" : found->second);
    }
    if (batches) cells.push_back(row.batch > 0 ? cat(row.batch) : "");
    if (threads) cells.push_back(cat(row.threads));
    if (!row.error.empty()) {
      cells.resize(table.headings.size() - 1);
      cells.push_back(row.error);
    } else {
      const double t = row.time.median;
      cells.push_back(human_number(t * 1e3));
      cells.push_back(row.time.count < 2 ? "?" : fixed(100 * row.time.relative_error(), 1));  // one run has no spread
      cells.push_back(human_number(row.time.p90 * 1e3));
      cells.push_back(cat(row.time.count));
      cells.push_back(row.samples > 0 && t > 0 ? human_number(row.samples / t) : "");
      cells.push_back(row.flops > 0 && t > 0 ? human_number(row.flops / t / 1e9) : "");
      cells.push_back(row.bytes > 0 && t > 0 ? human_number(row.bytes / t / 1e9) : "");
      cells.push_back(row.flops > 0 ? fixed(100 * row.peak_fraction(), 1) : "");
      cells.push_back(row.bound());
      cells.push_back(row.bound().empty() ? "" : fixed(100 * row.limit_fraction(), 1));
      cells.push_back(row.peak_bytes > 0 ? human_number(static_cast<double>(row.peak_bytes) / (1 << 20)) : "");
    }
    cells.resize(table.headings.size());
    table.rows.push_back(std::move(cells));
  }
  return table;
}

void finish(BenchmarkRow& row, const Series& series) {
  row.time = summarize(series.seconds);
  row.converged = series.converged;
  row.seconds = series.seconds;
}

}  // namespace galley
