// galley-benchmark op, machine, memory_order; collectives.cpp has collectives.
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/infer/operator_work.h"
#include "libcore/profiler/device_limits.h"
#include "libcore/profiler/machine_limits.h"
#include "libcore/profiler/machine_report.h"
#include "tools/benchmark/benchmark.h"
#include "tools/common/signals.h"

namespace galley::tools {

using Json = nlohmann::ordered_json;

/// Runs the verbs without a recipe: machine, memory_order and op.
int BenchmarkTool::measure_machine(const std::string& verb, const std::vector<std::string>& rest, const std::vector<std::string>& given) {
  if (!output_.empty())
    throw Error(ErrorCode::kUsage, cat("-o is only for sweeps: ", verb, " has no journal"))
        .suggest("use --save json:FILE to save the result");
  if (threads_ != 0) set_compute_threads(static_cast<int>(threads_));
  if (verb == "collectives") {
    if (!rest.empty()) throw Error(ErrorCode::kUsage, cat("'collectives' takes what= and sizes=, got '", rest.front(), "'"));
    return measure_collectives(given);
  }
  bool winograd = true;
  std::string device;
  for (const std::string& word : given) {
    constexpr std::string_view kDevice = "device=";
    if (verb == "machine" && word.starts_with(kDevice)) {
      device = word.substr(kDevice.size());
      continue;
    }
    const bool known = verb == "op" && (word == "precision.winograd=true" || word == "precision.winograd=false");
    if (!known)
      throw Error(ErrorCode::kUsage, cat("'", verb, "' takes no recipe and no override '", word, "'"))
          .suggest(verb == "op" ? "--threads N, or precision.winograd=false" : "--threads N");
    winograd = word == "precision.winograd=true";
  }
  if (verb == "op") return measure_operators(rest, winograd);
  if (!rest.empty()) throw Error(ErrorCode::kUsage, cat("'", verb, "' takes no arguments, got '", rest.front(), "'"));
  if (verb == "machine" && !device.empty() && device != "cpu") return measure_device_limits(device);
  return verb == "machine" ? measure_machine_parts() : measure_memory_order();
}

int BenchmarkTool::measure_device_limits(const std::string& device) {
  const DeviceLimits limits = measure_device(device);
  Json json = device_json(limits);
  const std::string store = machine_store(device);
  make_folders(store.substr(0, store.rfind('/')));
  write_file(store, json.dump() + "\n");
  log(LogLevel::kInfo, cat("stored in ", store, " for comparison with later results"));
  json["provenance"] = provenance_json(run_provenance());
  report_object(json, device_table(limits));
  return kExitDone;
}

int BenchmarkTool::measure_operators(const std::vector<std::string>& cases, bool winograd) {
  std::vector<std::string> all;
  for (const std::string& text : cases.empty() ? std::vector<std::string>{""} : cases) {
    if (text.find(':') != std::string::npos) {
      all.push_back(text);
    } else {
      for (std::string& item : operator_cases(text)) all.push_back(std::move(item));
    }
  }
  if (dry_run_) {
    Table table{{"case"}, {}};
    for (const std::string& text : all) table.rows.push_back({text});
    report_object({{"cases", all}, {"provenance", provenance_json(run_provenance())}}, table);
    return kExitDone;
  }
  const MachineWatch watch;
  Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
  std::vector<BenchmarkRow> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    progress.update(static_cast<double>(i) / static_cast<double>(all.size()), cat("[", i + 1, "/", all.size(), "] ", all[i]),
                    Json{{"case", all[i]}}.dump());
    BenchmarkWork work = device_.empty() ? operator_work(all[i], winograd) : operator_work(all[i], winograd, device_);
    const std::vector<std::function<void()>> works{work.run};
    finish(work.row, time_interleaved(works, stoppable({.relative_error = 0.02, .min_runs = 10, .max_time_s = 3})).front());
    if (stop_signal() != 0) {
      progress.clear();
      return stopped(i, all.size(), false);
    }
    rows.push_back(work.row);
  }
  progress.clear();
  report(rows, watch.remarks(compute_threads()));
  return kExitDone;
}

int BenchmarkTool::measure_machine_parts() {
  const MachineWatch watch;
  const MachineReport machine = measure_machine_report();
  Json json = machine_json(machine);
  json["remarks"] = watch.remarks(machine.threads);
  json["provenance"] = provenance_json(run_provenance());
  for (const std::string& doubt : machine.doubts) log(LogLevel::kWarning, "doubtful: " + doubt);
  for (const std::string& remark : watch.remarks(machine.threads)) log(LogLevel::kWarning, remark);
  if (machine.doubts.empty()) {
    const std::string store = machine_store(machine.threads);
    make_folders(store.substr(0, store.rfind('/')));
    write_file(store, json.dump() + "\n");
    log(LogLevel::kInfo, "stored in " + store + " for comparison with later results");
  } else {
    log(LogLevel::kWarning, "not stored: run it again on an idle machine");
  }
  report_object(json, machine_table(machine));
  return kExitDone;
}

int BenchmarkTool::measure_memory_order() {
  constexpr int64_t kSide = 4000;
  std::vector<float> matrix(static_cast<size_t>(kSide * kSide), 1.0f);
  volatile float keep = 0;
  const std::vector<std::function<void()>> works{[&] {
                                                   float sum = 0;
                                                   for (int64_t row = 0; row < kSide; ++row)
                                                     for (int64_t column = 0; column < kSide; ++column)
                                                       sum += matrix[static_cast<size_t>(row * kSide + column)];
                                                   keep = sum;
                                                 },
                                                 [&] {
                                                   float sum = 0;
                                                   for (int64_t column = 0; column < kSide; ++column)
                                                     for (int64_t row = 0; row < kSide; ++row)
                                                       sum += matrix[static_cast<size_t>(row * kSide + column)];
                                                   keep = sum;
                                                 }};
  const MachineWatch watch;
  const std::vector<Series> series = time_interleaved(works, stoppable({.relative_error = 0.02, .min_runs = 10, .max_time_s = 10}));
  if (stop_signal() != 0) return stopped(0, 1, false);
  static_cast<void>(keep);
  std::vector<BenchmarkRow> rows(2);
  for (size_t i = 0; i < 2; ++i) {
    rows[i].recipe = "memory_order";
    rows[i].what = i == 0 ? "row by row" : "column by column";
    rows[i].threads = 1;
    rows[i].bytes = 4.0 * kSide * kSide;
    finish(rows[i], series[i]);
  }
  std::vector<std::string> remarks = watch.remarks(1);
  report(rows, remarks);
  log(LogLevel::kInfo, cat("columns take ", human_number(rows[1].time.median / rows[0].time.median),
                           " times as long as rows: a 4000 x 4000 matrix, f32, one thread"));
  return kExitDone;
}

}  // namespace galley::tools
