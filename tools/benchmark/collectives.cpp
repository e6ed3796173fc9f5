// galley-benchmark collectives: times collectives between ranks.
#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/comm/local.h"
#include "tools/benchmark/benchmark.h"
#include "tools/common/ranks.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kTimeOfCase = 1.0;  // seconds
constexpr int64_t kMostRuns = 2000;
constexpr int64_t kLeastRuns = 5;

struct CollectiveCase {
  CollectiveKind kind;
  int64_t bytes;  // of the whole array
  bool direct;    // the array is in memory that other ranks reach
};

struct CollectiveRow {
  CollectiveCase what;
  double median_us = 0, least_us = 0;
  int64_t runs = 0;
  /// Bytes of the array per second.
  double gb_per_s() const { return median_us > 0 ? static_cast<double>(what.bytes) / median_us * 1e-3 : 0; }
};

std::vector<std::string> items_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

CollectiveKind kind_of(const std::string& word) {
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
                                       CollectiveKind::kBroadcast, CollectiveKind::kBarrier};
  std::vector<std::string> known;
  for (const CollectiveKind kind : kKinds) {
    if (word == collective_name(kind)) return kind;
    known.emplace_back(collective_name(kind));
  }
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  const std::string near = nearest(word, known);
  throw Error(ErrorCode::kUsage, cat("what=", word, " is not a collective; known: ", list))
      .suggest(near.empty() ? "" : cat("did you mean '", near, "'?"));
}

int64_t bytes_of(const std::string& size) {
  constexpr int64_t kMost = int64_t{16} << 30;
  int64_t bytes = 0;
  try {
    bytes = parse_bytes(size);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, cat("sizes=", size, ": ", error.message())).suggest("sizes=4KiB,25MiB");
  }
  if (bytes < 4 || bytes > kMost) throw Error(ErrorCode::kUsage, cat("sizes=", size, " must be from 4 bytes to ", human_bytes(kMost)));
  return bytes;
}

std::vector<CollectiveCase> cases_of(const std::vector<std::string>& given) {
  std::string what = "all_reduce,reduce_scatter,all_gather", sizes = "4KiB,1MiB,25MiB,100MiB";
  for (const std::string& word : given) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "what") {
      what = value;
    } else if (key == "sizes") {
      sizes = value;
    } else {
      throw Error(ErrorCode::kUsage, cat("'collectives' takes no override '", word, "'"))
          .suggest("what=all_reduce,all_gather sizes=4KiB,25MiB");
    }
  }
  std::vector<CollectiveCase> cases;
  for (const std::string& word : items_of(what)) {
    const CollectiveKind kind = kind_of(word);
    if (kind == CollectiveKind::kBarrier) {
      cases.push_back({kind, 0, true});
      continue;
    }
    for (const std::string& size : items_of(sizes)) {
      const int64_t bytes = bytes_of(size);
      for (const bool direct : {true, false}) cases.push_back({kind, bytes / 4 * 4, direct});
    }
  }
  return cases;
}

/// Times one case on this rank. All ranks run it equally often: rank 0 says how often.
CollectiveRow time_case(Communicator& comm, const CollectiveCase& what, std::byte* direct, std::vector<float>& ordinary) {
  const int64_t count = what.bytes / 4;
  if (!what.direct) ordinary.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
  float* array = what.direct ? reinterpret_cast<float*>(direct) : ordinary.data();
  std::fill(array, array + count, 1.0f / 1024);  // sums of a few ranks stay finite however often they are summed again
  const Segment own = segment_of(count, comm.size(), comm.rank());
  const Collective call{.kind = what.kind,
                        .name = "benchmark",
                        .input = what.kind == CollectiveKind::kAllGather ? array + own.begin : array,
                        .output = what.kind == CollectiveKind::kReduceScatter ? array + own.begin : array,
                        .count = count};
  const auto timed = [&] {
    comm.barrier("benchmark");
    const auto began = Clock::now();
    comm.run(call);
    return std::chrono::duration<double>(Clock::now() - began).count();
  };
  timed();
  const auto began = Clock::now();
  for (int i = 0; i < 3; ++i) timed();
  const double each = std::chrono::duration<double>(Clock::now() - began).count() / 3;  // with the barrier
  auto runs = static_cast<int64_t>(std::clamp(kTimeOfCase / std::max(each, 1e-7), double{kLeastRuns}, double{kMostRuns}));
  comm.broadcast("benchmark", &runs, 1, DType::kI64, 0);
  std::vector<double> seconds;
  for (int64_t i = 0; i < runs; ++i) {
    seconds.push_back(timed());
    if (i % 64 == 63) std::fill(array, array + count, 1.0f / 1024);
  }
  std::sort(seconds.begin(), seconds.end());
  return {what, seconds[seconds.size() / 2] * 1e6, seconds.front() * 1e6, runs};
}

std::vector<CollectiveRow> time_cases(Communicator& comm, const std::vector<CollectiveCase>& cases) {
  int64_t most = 4;
  for (const CollectiveCase& each : cases) most = std::max(most, each.bytes);
  const std::shared_ptr<std::byte> direct = comm.allocate(most);
  std::vector<float> ordinary;
  std::vector<CollectiveRow> rows;
  for (const CollectiveCase& each : cases) {
    int32_t stop = stop_signal() != 0;
    comm.all_reduce("stop", &stop, &stop, 1, DType::kI32, ReduceOp::kMax);
    if (stop != 0) break;
    rows.push_back(time_case(comm, each, direct.get(), ordinary));
  }
  return rows;
}

/// Ranks as threads of this process; returns the rows of rank 0.
std::vector<CollectiveRow> time_threads(int ranks, const std::vector<CollectiveCase>& cases) {
  auto communicators = local_communicators(ranks);
  std::vector<std::vector<CollectiveRow>> rows(static_cast<size_t>(ranks));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  const int share = std::max(1, compute_threads() / ranks);
  for (size_t r = 0; r < rows.size(); ++r) {
    threads.emplace_back([&, r] {
      const ThreadShare own(share);
      try {
        rows[r] = time_cases(*communicators[r], cases);
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        communicators[r]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return rows.front();
}

}  // namespace

int BenchmarkTool::measure_collectives(const std::vector<std::string>& given) {
  const std::vector<CollectiveCase> cases = cases_of(given);
  if (dry_run_) {
    Table table{{"collective", "bytes"}, {}};
    Json list = Json::array();
    for (const CollectiveCase& each : cases) {
      if (!each.direct) continue;
      table.rows.push_back({std::string(collective_name(each.kind)), cat(each.bytes)});
      list.push_back({{"what", collective_name(each.kind)}, {"bytes", each.bytes}});
    }
    report_object({{"cases", list}, {"provenance", provenance_json(run_provenance())}}, table);
    return kExitDone;
  }
  Ranks* job = Ranks::open();
  if (job != nullptr && simulated_ranks_ > 0)
    fail(ErrorCode::kUsage, "--simulate-ranks makes ranks of its own; start it without mpirun or srun");
  if (job != nullptr && threads_ == 0) set_compute_threads(job->cores());
  const int ranks = job != nullptr ? job->communicator().size() : simulated_ranks_ > 0 ? static_cast<int>(simulated_ranks_) : 2;
  const std::string transport = job != nullptr ? job->communicator().transport() : "threads";
  log(LogLevel::kInfo,
      job != nullptr ? job->str() : cat(counted(ranks, "rank"), ranks == 1 ? ", a thread" : ", threads", " of this process"));
  const std::vector<CollectiveRow> rows = job != nullptr ? time_cases(job->communicator(), cases) : time_threads(ranks, cases);
  if (stop_signal() != 0) return 128 + stop_signal();
  if (own_rank() != 0) return kExitDone;
  Table table{{"collective", "size", "memory", "median_us", "min_us", "GB/s", "runs"}, {}};
  Json list = Json::array();
  for (const CollectiveRow& row : rows) {
    const std::string memory = row.what.kind == CollectiveKind::kBarrier ? "" : row.what.direct ? "direct" : "ordinary";
    table.rows.push_back({std::string(collective_name(row.what.kind)), human_bytes(static_cast<double>(row.what.bytes)), memory,
                          fixed(row.median_us, 1), fixed(row.least_us, 1), fixed(row.gb_per_s(), 2), cat(row.runs)});
    list.push_back({{"what", collective_name(row.what.kind)},
                    {"bytes", row.what.bytes},
                    {"memory", memory},
                    {"median_us", row.median_us},
                    {"min_us", row.least_us},
                    {"gb_per_s", row.gb_per_s()},
                    {"runs", row.runs}});
  }
  report_object({{"ranks", ranks},
                 {"transport", transport},
                 {"threads", compute_threads()},
                 {"rows", list},
                 {"provenance", provenance_json(run_provenance())}},
                table);
  return kExitDone;
}

}  // namespace galley::tools
