#include "libcore/dist/pipeline.h"

#include <algorithm>
#include <limits>

#include "libcore/base/error.h"

namespace galley {
namespace {

using Passes = std::vector<PipelinePass>;
/// Pass number `number` of the forward (or backward) passes of a stage with several chunks: groups of `stages` micro-batches go through one
/// chunk after the other (Narayanan et al. 2021, section 2.2).
PipelinePass interleaved_pass(int64_t number, bool backward, int64_t stages, int64_t chunks) {
  const int64_t group = number / (stages * chunks), within = number % (stages * chunks), chunk = within / stages;
  return {.micro_batch = group * stages + within % stages, .chunk = backward ? chunks - 1 - chunk : chunk, .backward = backward};
}

Passes interleaved_passes(int64_t stage, int64_t stages, int64_t micro_batches, int64_t chunks) {
  const int64_t total = micro_batches * chunks;
  const int64_t warm_up = micro_batches == stages ? total : std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, total);
  Passes passes;
  for (int64_t i = 0; i < warm_up; ++i) passes.push_back(interleaved_pass(i, false, stages, chunks));
  for (int64_t i = warm_up; i < total; ++i) {
    passes.push_back(interleaved_pass(i, false, stages, chunks));
    passes.push_back(interleaved_pass(i - warm_up, true, stages, chunks));
  }
  for (int64_t i = total - warm_up; i < total; ++i) passes.push_back(interleaved_pass(i, true, stages, chunks));
  return passes;
}

}  // namespace

std::vector<Passes> pipeline_schedule(PipelineSchedule schedule, int64_t stages, int64_t micro_batches, int64_t chunks) {
  GALLEY_ASSERT(stages >= 1 && micro_batches >= 1 && chunks >= 1);
  const bool interleaved = schedule == PipelineSchedule::kInterleaved && chunks > 1 && stages > 1;
  if (interleaved && micro_batches % stages != 0) {
    throw Error(ErrorCode::kRecipe, cat("an interleaved pipeline of ", stages, " stages needs a multiple of ", stages,
                                        " micro-batches, but a step has ", micro_batches))
        .key("sharding.schedule")
        .suggest("change train.batch.micro, or write schedule: 1f1b");
  }
  GALLEY_ASSERT(interleaved || chunks == 1 || stages == 1);
  std::vector<Passes> all;
  for (int64_t stage = 0; stage < stages; ++stage) {
    Passes passes;
    if (interleaved) {
      passes = interleaved_passes(stage, stages, micro_batches, chunks);
    } else {
      const int64_t warm_up = schedule == PipelineSchedule::kGpipe ? micro_batches : std::min(stages - stage - 1, micro_batches);
      int64_t done = 0;
      for (int64_t i = 0; i < micro_batches; ++i) {
        passes.push_back({.micro_batch = i});
        if (i >= warm_up) passes.push_back({.micro_batch = done++, .backward = true});
      }
      while (done < micro_batches) passes.push_back({.micro_batch = done++, .backward = true});
    }
    all.push_back(std::move(passes));
  }
  return all;
}

std::vector<size_t> balanced_cuts(std::span<const double> costs, const std::vector<bool>& may_cut, int64_t parts, const PartFits& fits) {
  const size_t n = costs.size();
  const auto count = static_cast<size_t>(parts);
  GALLEY_ASSERT(parts >= 1 && may_cut.size() == n);
  std::vector<double> sums(n + 1, 0);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // best[k][i]: smallest largest sum of the first i segments in k + 1 parts.
  std::vector<std::vector<double>> best(count, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<size_t>> from(count, std::vector<size_t>(n + 1, 0));
  const auto good = [&](size_t part, size_t begin, size_t end) { return !fits || fits(static_cast<int64_t>(part), begin, end); };
  for (size_t i = 1; i <= n; ++i) {
    const bool ends = i == n || may_cut[i];
    if (ends && good(0, 0, i)) best[0][i] = sums[i];
  }
  std::vector<size_t> places;  // at which parts begin
  for (size_t i = 1; i < n; ++i) {
    if (may_cut[i]) places.push_back(i);
  }
  std::vector<size_t> ends = places;
  ends.push_back(n);
  for (size_t k = 1; k < count; ++k) {
    for (const size_t i : ends) {
      for (size_t at = places.size(); at-- > 0;) {
        const size_t j = places[at];
        if (j >= i || best[k - 1][j] == kNever) continue;
        const double last = sums[i] - sums[j];
        if (last > best[k][i]) break;  // longer parts take longer
        const double largest = std::max(best[k - 1][j], last);
        if (largest <= best[k][i] && good(k, j, i)) {
          best[k][i] = largest;
          from[k][i] = j;
        }
      }
    }
  }
  if (best[count - 1][n] == kNever) return {};
  std::vector<size_t> cuts(count, 0);
  size_t end = n;
  for (size_t k = count; k-- > 1;) {
    cuts[k] = from[k][end];
    end = cuts[k];
  }
  return cuts;
}

}  // namespace galley
