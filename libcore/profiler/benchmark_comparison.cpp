#include "libcore/profiler/benchmark_comparison.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

constexpr double kSavedNoise = 0.02;  // assumed noise between two runs of one program, because saved results do not contain it

std::string signed_percent(double share) {
  char text[64];
  std::snprintf(text, sizeof text, "%+.2f %%", 100 * share);
  return text;
}

RoundComparison compare_medians(const Summary& base, const Summary& changed) {
  RoundComparison result;
  result.change = changed.median / base.median - 1;
  result.interval = {changed.interval.low / base.interval.high - 1, changed.interval.high / base.interval.low - 1};
  result.noise = kSavedNoise;
  result.smallest_effect = result.noise + (result.interval.high - result.interval.low) / 2;
  const auto& [low, high] = result.interval;
  result.verdict = low > result.noise                             ? Verdict::kSlower
                   : high < -result.noise                         ? Verdict::kFaster
                   : low >= -result.noise && high <= result.noise ? Verdict::kSame
                                                                  : Verdict::kCannotTell;
  return result;
}

}  // namespace

std::vector<CellComparison> compare_saved(const std::vector<BenchmarkRow>& base, const std::vector<BenchmarkRow>& changed) {
  std::vector<CellComparison> compared;
  for (const BenchmarkRow& row : base) {
    const auto other = std::find_if(changed.begin(), changed.end(), [&](const BenchmarkRow& r) {
      return r.what == row.what && r.batch == row.batch && r.threads == row.threads && r.set == row.set;
    });
    if (other == changed.end() || !row.error.empty() || !other->error.empty()) continue;
    compared.push_back({cat(row.what, " batch=", row.batch), row.time.median, other->time.median, compare_medians(row.time, other->time)});
  }
  return compared;
}

ComparedWork compared_work(BenchmarkWork base, BenchmarkWork changed, const std::function<BenchmarkWork()>& make_base) {
  // If its memory is small, the second base run of a round uses a separate instance. The same instance would run twice in succession (end
  // of one round, begin of the next) with caches that it filled itself, and the position of its memory affects such short times. Both
  // effects belong to the noise.
  constexpr int64_t kSmall = int64_t{256} << 20;
  // Programs that fit in the caches differ by the placement of their pages for as long as they live: instances of cifar_resnet20's forward
  // pass differ by 0.7 % (standard deviation over 15 comparisons). Up to three times that is not counted as a change.
  constexpr int64_t kCached = int64_t{64} << 20;
  const int64_t bytes = base.row.planned_bytes;
  BenchmarkWork again = bytes > 0 && bytes <= kSmall ? make_base() : base;
  return {std::move(base), std::move(changed), std::move(again), bytes > 0 && bytes <= kCached ? 0.02 : 0};
}

CellComparison compare_cell(const std::string& cell, const std::vector<Series>& series, double equal_within, double min_effect) {
  // If a sample repeats its work, the sides may repeat it differently often; times are per repetition, so they are comparable.
  return {cell, summarize(series[0].seconds).median, summarize(series[1].seconds).median,
          compare_rounds(series[0].seconds, series[1].seconds, series[2].seconds, equal_within, min_effect)};
}

nlohmann::ordered_json comparison_json(const std::vector<CellComparison>& compared) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const CellComparison& item : compared) {
    const RoundComparison& r = item.result;
    json.push_back({{"cell", item.cell},
                    {"base_ms", item.base_s * 1e3},
                    {"new_ms", item.new_s * 1e3},
                    {"change", r.change},
                    {"low", r.interval.low},
                    {"high", r.interval.high},
                    {"noise", r.noise},
                    {"smallest_effect", r.smallest_effect},
                    {"verdict", verdict_name(r.verdict)}});
  }
  return json;
}

Table comparison_table(const std::vector<CellComparison>& compared) {
  Table table{{"cell", "base_ms", "new_ms", "change", "95 % interval", "noise", "smallest effect", "verdict"}, {}};
  for (const CellComparison& item : compared) {
    const RoundComparison& r = item.result;
    table.rows.push_back({item.cell, human_number(item.base_s * 1e3), human_number(item.new_s * 1e3), signed_percent(r.change),
                          cat(signed_percent(r.interval.low), " .. ", signed_percent(r.interval.high)), signed_percent(r.noise),
                          signed_percent(r.smallest_effect), std::string(verdict_name(r.verdict))});
  }
  return table;
}

}  // namespace galley
