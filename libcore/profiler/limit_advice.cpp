#include "libcore/profiler/limit_advice.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "libcore/base/units.h"

namespace galley {
namespace {

// Documented in docs/tools.md, "Advice".
constexpr double kBelowLimit = 0.5;   // a step below this share of the limit gets the advice
constexpr double kShortCall = 2e-5;   // seconds; a shorter call is mostly the cost of starting it
constexpr double kThreadWork = 2e-5;  // seconds of work at the limit per call; with less, threads mostly wait for each other
constexpr double kFixedShare = 0.1;   // least share of a group's time that must not grow with the batch, for a larger batch to be suggested
constexpr double kNamedShare = 0.05;  // a group with less of the time above the limit is not named
constexpr double kDataShare = 0.1;    // waiting for data below this share of a step is not named; as in the rule data_bound
constexpr double kChannelsLastSaved = 0.26;  // share of the time; measured, see kSaved in advice.cpp
constexpr double kThreadEfficiency = 0.8;    // of an additional core, as in the rule threads_few
constexpr size_t kNamed = 5;                 // most groups that are named

/// Time per step of operators with equal type, phase and bound, or of the step outside its operators.
struct Group {
  std::string type, phase, bound;
  double spent_s = 0, limit_s = 0;
  double bf16_s = 0;                   // part of spent_s in operators that precision: bf16 converts
  double spatial_s = 0;                // part of spent_s in operators that prefer channels_last
  double calls = 0;                    // per step
  double compute_s = 0;                // part of spent_s in operators whose arithmetic takes longer than their memory, at the limits
  bool product = false;                // convolutions, matrix products, recurrent layers
  const OperatorRow* worst = nullptr;  // the row with the most time above its limit

  double beyond_s() const { return std::max(0.0, spent_s - limit_s); }
};

struct Remedy {
  std::string key, value, text;
  double gain_s = 0;
};

double beyond(const OperatorRow& row) { return row.self_s - row.limit_s; }

std::string_view bound_of(const OperatorRow& row, const ProfileFacts& facts) {
  const double calls = static_cast<double>(std::max<int64_t>(1, row.calls));
  if (!row.note.empty()) return "kernel";
  if (row.self_s / calls < kShortCall) return "overhead";
  if (facts.threads > facts.cores) return "threads";
  if (facts.threads > 1 && row.limit_s / calls < kThreadWork) return "threads";
  return "";  // compute or memory: decided for the whole group
}

/// The groups of a profile, most time above the limit first.
std::vector<Group> groups_of(const Profile& profile, const ProfileFacts& facts) {
  const double steps = static_cast<double>(profile.steps);
  std::map<std::tuple<std::string, std::string, std::string_view>, Group> found;
  for (const OperatorRow& row : profile.operators) {
    const std::string_view bound = bound_of(row, facts);
    Group& group = found[{row.type, row.phase, bound}];
    group.type = row.type;
    group.phase = row.phase;
    group.bound = bound;
    group.spent_s += row.self_s / steps;
    group.limit_s += row.limit_s / steps;
    group.calls += static_cast<double>(row.calls) / steps;
    if (row.compute_bound) group.compute_s += row.self_s / steps;
    const OpDef* op = operator_of(row);
    group.product |= op != nullptr && op->work == WorkClass::kProduct;
    if (op != nullptr && op->precision != PrecisionRule::kKeepF32 && row.phase != "update" && row.executed.bf16 <= 0 &&
        row.executed.int8 <= 0)
      group.bf16_s += row.self_s / steps;
    if (op != nullptr && op->layout.prefers_channels_last) group.spatial_s += row.self_s / steps;
    if (group.worst == nullptr || beyond(row) > beyond(*group.worst)) group.worst = &row;
  }
  std::vector<Group> groups;
  for (auto& [key, group] : found) {
    if (group.bound.empty()) group.bound = group.compute_s >= group.spent_s / 2 ? "compute" : "memory";
    groups.push_back(std::move(group));
  }
  if (facts.loads_data && profile.data_s >= kDataShare * profile.wall_s)
    groups.push_back({.type = "(waiting for data)", .phase = "", .bound = "data", .spent_s = profile.data_s / steps});
  groups.push_back({.type = "(executor)", .phase = "", .bound = "overhead", .spent_s = profile.gap_s / steps});
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.beyond_s() > b.beyond_s(); });
  return groups;
}

/// Time of a group that does not grow with the batch: the executor, updates, and kShortCall of each other call.
double fixed_s(const Group& group) {
  if (group.worst == nullptr || group.phase == "update") return group.spent_s;
  return std::min(group.spent_s, group.calls * kShortCall);
}

/// Twice the batch, if the memory suffices and a share of the time does not grow with the batch. Halves that time per sample.
std::optional<Remedy> larger_batch(const Profile& profile, const ProfileFacts& facts, const Group& group, std::string text) {
  if (facts.memory_bytes > 0 && 2 * profile.memory.planned_bytes > facts.memory_bytes) return std::nullopt;
  if (fixed_s(group) < kFixedShare * group.spent_s) return std::nullopt;
  if (facts.training) text += " (adapt the learning rate)";
  return Remedy{facts.batch_key, std::to_string(2 * facts.batch), std::move(text), fixed_s(group) / 2};
}

std::optional<Remedy> more_threads(const ProfileFacts& facts, const Group& group) {
  if (facts.threads >= facts.cores) return std::nullopt;
  const double part = static_cast<double>(facts.threads) / static_cast<double>(facts.cores);
  return Remedy{"threads", "auto", cat("the process may use ", facts.cores, " cores, but uses ", facts.threads),
                group.spent_s * (1 - part) * kThreadEfficiency};
}

std::optional<Remedy> bf16(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (!facts.fast_low_precision || group.bf16_s < group.spent_s / 2) return std::nullopt;
  if (group.bound != "compute") return Remedy{"precision", "bf16", "bf16 activations take half of the bytes", group.bf16_s / 2};
  const double ratio = bf16_speed(profile.machine);
  if (ratio < kFasterBf16) return std::nullopt;
  return Remedy{"precision", "bf16", cat("this machine multiplies bf16 ", fixed(ratio, 1), " times as fast as f32"),
                group.bf16_s * (1 - 1 / ratio)};
}

std::optional<Remedy> channels_last(const ProfileFacts& facts, const Group& group) {
  if (!facts.contiguous_forced || group.spatial_s <= 0) return std::nullopt;
  return Remedy{"memory_format", "auto", "it is faster in channels_last than in the contiguous format",
                kChannelsLastSaved * group.spatial_s};
}

Remedy data_remedy(const ProfileFacts& facts, const Group& group) {
  const int64_t workers = std::min(facts.cores, std::max<int64_t>(1, 2 * facts.workers));
  if (workers > facts.workers)
    return {facts.data_key + ".workers", std::to_string(workers),
            facts.workers == 0 ? "a worker prefetches batches while the model computes" : "more workers prefetch batches faster",
            group.spent_s / 2};
  return {facts.data_key + ".pipeline", "", "a worker runs on every core: use a cheaper pipeline or smaller files", group.spent_s / 2};
}

Remedy overhead_remedy(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  const bool executor = group.worst == nullptr;
  if (std::optional<Remedy> remedy = larger_batch(
          profile, facts, group,
          executor ? "fewer steps process the same samples" : "calls are shorter than 20 us; a larger batch gives each more work"))
    return *remedy;
  return {"model", "",
          executor ? "the model has many small operators: fewer layers, each larger, need fewer calls"
                   : "calls are shorter than 20 us: fuse them with their neighbors, or use fewer, larger layers"};
}

Remedy threads_remedy(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (facts.threads > facts.cores)
    return {"threads", "auto", cat(facts.threads, " threads share ", facts.cores, facts.cores == 1 ? " core" : " cores"),
            group.beyond_s() * (1 - static_cast<double>(facts.cores) / static_cast<double>(facts.threads))};
  if (std::optional<Remedy> remedy =
          larger_batch(profile, facts, group, "each call has too little work for its threads, which wait for each other"))
    return *remedy;
  if (facts.disturbed)
    return {"threads", "", "each call has little work for its threads, or other programs took their cores: repeat it on an idle machine"};
  return {"threads", "1", "each call has too little work for its threads, which wait for each other; --verify measures the gain"};
}

/// Operators with long calls and a kernel made for them: compute and memory.
Remedy work_remedy(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (std::optional<Remedy> remedy = channels_last(facts, group)) return *remedy;
  if (std::optional<Remedy> remedy = more_threads(facts, group)) return *remedy;
  if (std::optional<Remedy> remedy = bf16(profile, facts, group)) return *remedy;
  if (group.phase == "update") {
    if (std::optional<Remedy> remedy = larger_batch(profile, facts, group, "fewer updates process the same samples")) return *remedy;
  }
  if (std::optional<Remedy> remedy = larger_batch(profile, facts, group, "calls are short; a larger batch gives each more work"))
    return *remedy;
  if (group.product)
    return {
        "model", "",
        "its calls are long, and no key is known to help: --by layer shows its shapes; channels in multiples of 16 suit the kernels best"};
  return {"model", "",
          facts.fusions_declined.empty()
              ? "it reads and writes whole activations: use fewer or smaller element-wise layers and norms"
              : "it reads and writes whole activations: order layers so that they fuse (--verbose=passes lists why pairs did not)"};
}

Remedy remedy_of(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (group.bound == "data") return data_remedy(facts, group);
  if (group.bound == "overhead") return overhead_remedy(profile, facts, group);
  if (group.bound == "threads") return threads_remedy(profile, facts, group);
  if (group.bound == "kernel") {
    if (std::optional<Remedy> remedy = channels_last(facts, group)) return *remedy;
    return {"model", "", cat("it runs on a fallback kernel: ", group.worst->note)};
  }
  return work_remedy(profile, facts, group);
}

std::string precise_percent(double share) {
  const double value = 100 * share;
  return value > 0 && value < 0.01 ? "less than 0.01 %" : cat(fixed(value, value < 10 ? 1 : 0), " %");
}

/// "a, b and c", each type once.
std::string types_of(const std::vector<BelowLimit>& operators) {
  std::vector<std::string> names;
  for (const BelowLimit& item : operators) {
    if (std::find(names.begin(), names.end(), item.type) == names.end()) names.push_back(item.type);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += cat(i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  return text;
}

}  // namespace

double bf16_speed(const MachineLimits& machine) {
  return machine.flops_per_s > 0 && machine.bf16_per_s > 0 ? machine.bf16_per_s / machine.flops_per_s : 2;
}

std::optional<Advice> below_limit(const Profile& profile, const ProfileFacts& facts) {
  if (profile.work.limit_s <= 0 || profile.work.limit_s >= kBelowLimit * profile.wall_s) return std::nullopt;
  const std::vector<Group> groups = groups_of(profile, facts);
  const double step = profile.wall_s / static_cast<double>(profile.steps);
  double beyond = 0, named = 0;
  for (const Group& group : groups) beyond += group.beyond_s();
  Advice advice;
  std::map<std::pair<std::string, std::string>, double> gains;
  for (const Group& group : groups) {
    if (advice.operators.size() == kNamed || (!advice.operators.empty() && group.beyond_s() < kNamedShare * beyond)) break;
    const Remedy remedy = remedy_of(profile, facts, group);
    named += group.beyond_s();
    gains[{remedy.key, remedy.value}] += remedy.gain_s;
    advice.operators.push_back({.type = group.type,
                                .phase = group.phase,
                                .module = group.worst == nullptr ? "" : group.worst->module,
                                .bound = group.bound,
                                .remedy = remedy.text,
                                .key = remedy.key,
                                .value = remedy.value,
                                .share = group.spent_s / step,
                                .beyond_s = group.beyond_s(),
                                .reached = group.spent_s > 0 ? group.limit_s / group.spent_s : 0});
  }
  // The advice sets the key that gains most, and prefers keys that a recipe fragment can set.
  const auto best = std::max_element(gains.begin(), gains.end(), [](const auto& a, const auto& b) {
    return std::pair(!a.first.second.empty(), a.second) < std::pair(!b.first.second.empty(), b.second);
  });
  std::tie(advice.key, advice.value) = best->first;
  advice.gain_s = best->second;
  advice.message = cat("a step reaches ", precise_percent(profile.work.limit_s / profile.wall_s), " of the machine's limit; ",
                       types_of(advice.operators), advice.operators.size() == 1 ? " accounts for " : " account for ",
                       precise_percent(beyond > 0 ? named / beyond : 0), " of the time above the limit");
  if (facts.disturbed) advice.message += "; the remarks say that the times of this run are uncertain: repeat it on an idle machine";
  return advice;
}

}  // namespace galley
