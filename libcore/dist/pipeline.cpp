#include "libcore/dist/pipeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "libcore/base/error.h"

namespace galley {
namespace {

using Passes = std::vector<PipelinePass>;
/// Identifies a pass of a part of the model: (part, micro-batch, backward).
using PassKey = std::tuple<int64_t, int64_t, bool>;

PassKey key_of(const PipelinePass& pass, int64_t stage, int64_t stages) {
  return {pass.chunk * stages + stage, pass.micro_batch, pass.backward};
}

/// The passes whose results a pass reads.
std::vector<PassKey> needs(const PassKey& key, int64_t parts) {
  const auto [part, micro_batch, backward] = key;
  std::vector<PassKey> result;
  if (!backward && part > 0) result.emplace_back(part - 1, micro_batch, false);
  if (backward) result.emplace_back(part, micro_batch, false);
  if (backward && part + 1 < parts) result.emplace_back(part + 1, micro_batch, true);
  return result;
}

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

std::string check_schedule(const std::vector<Passes>& stages, int64_t micro_batches, int64_t chunks) {
  const auto count = static_cast<int64_t>(stages.size()), parts = count * chunks;
  std::map<PassKey, int> seen;
  for (int64_t s = 0; s < count; ++s) {
    for (const PipelinePass& pass : stages[static_cast<size_t>(s)]) {
      if (pass.micro_batch < 0 || pass.micro_batch >= micro_batches || pass.chunk < 0 || pass.chunk >= chunks)
        return cat("stage ", s, " has a pass of micro-batch ", pass.micro_batch, " of chunk ", pass.chunk, ", which does not exist");
      if (++seen[key_of(pass, s, count)] > 1) return cat("stage ", s, " runs a pass of micro-batch ", pass.micro_batch, " twice");
    }
  }
  if (static_cast<int64_t>(seen.size()) != 2 * parts * micro_batches) return "a pass is missing";
  std::map<PassKey, bool> done;
  std::vector<size_t> next(stages.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      while (next[s] < stages[s].size()) {
        const PassKey key = key_of(stages[s][next[s]], static_cast<int64_t>(s), count);
        const std::vector<PassKey> before = needs(key, parts);
        if (!std::all_of(before.begin(), before.end(), [&](const PassKey& other) { return done.contains(other); })) break;
        done[key] = true;
        ++next[s];
        moved = true;
      }
    }
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    if (next[s] == stages[s].size()) continue;
    const PipelinePass& pass = stages[s][next[s]];
    return cat("deadlock: stage ", s, " waits for the input of the ", pass.backward ? "backward" : "forward", " pass of micro-batch ",
               pass.micro_batch);
  }
  return "";
}

std::vector<std::vector<TimedPass>> time_schedule(const std::vector<Passes>& stages, const StageTimes& times) {
  const auto count = static_cast<int64_t>(stages.size()), parts = static_cast<int64_t>(times.forward.size());
  std::map<PassKey, double> ends;
  std::vector<std::vector<TimedPass>> timed(stages.size());
  std::vector<double> free = times.begin.empty() ? std::vector<double>(stages.size(), 0) : times.begin;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      while (timed[s].size() < stages[s].size()) {
        const PipelinePass& pass = stages[s][timed[s].size()];
        const PassKey key = key_of(pass, static_cast<int64_t>(s), count);
        double begin = free[s];
        bool ready = true;
        for (const PassKey& other : needs(key, parts)) {
          const auto found = ends.find(other);
          ready = ready && found != ends.end();
          if (found == ends.end()) break;
          const bool own = std::get<0>(other) == std::get<0>(key) || count == 1;
          begin = std::max(begin, found->second + (own ? 0 : times.transfer));
        }
        if (!ready) break;
        const auto part = static_cast<size_t>(std::get<0>(key));
        const double end = begin + (pass.backward ? times.backward : times.forward)[part];
        timed[s].push_back({pass, begin, end});
        ends[key] = free[s] = end;
        moved = true;
      }
    }
  }
  for (size_t s = 0; s < stages.size(); ++s) GALLEY_ASSERT(timed[s].size() == stages[s].size(), "the schedule has a deadlock");
  return timed;
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
