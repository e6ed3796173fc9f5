#include "libcore/profiler/limit_advice.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "libcore/base/units.h"

namespace galley {
namespace {

// Documented in docs/tools.md, "Advice".
constexpr double kBelowLimit = 0.5;   // a step below this share of the limit gets the advice
constexpr double kReached = 0.5;      // share of the limit that a change of batch is expected to reach at best
constexpr double kShortCall = 2e-5;   // seconds; a shorter call is mostly the cost of starting it
constexpr double kThreadWork = 2e-5;  // seconds of work at the limit per call; with less, threads mostly wait for each other
constexpr double kHeldShare = 0.05;   // a group with less of the time beyond the limit is not named
constexpr double kDataShare = 0.1;    // waiting for data below this share of a step is not named; as in the rule data_bound
constexpr double kFasterBf16 = 1.2;   // least ratio of the limits of bf16 and f32 for which bf16 is suggested
constexpr size_t kNamed = 5;          // most groups that are named

/// Time per step of operators with equal type, phase and bound, or of the step outside its operators.
struct Group {
  std::string type, phase, bound;
  double spent_s = 0, limit_s = 0;
  double bf16_s = 0;                   // part of spent_s in operators that precision: bf16 converts
  double spatial_s = 0;                // part of spent_s in operators that prefer channels_last
  const OperatorRow* worst = nullptr;  // the row with the most time beyond its limit

  double beyond_s() const { return std::max(0.0, spent_s - limit_s); }
};

struct Cure {
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
  return row.compute_bound ? "compute" : "bandwidth";
}

/// The groups of a profile, most time beyond the limit first.
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
    const OpDef* op = operator_of(row);
    if (op != nullptr && op->precision != PrecisionRule::kKeepF32 && row.phase != "update" && row.executed.bf16 <= 0 &&
        row.executed.int8 <= 0)
      group.bf16_s += row.self_s / steps;
    if (op != nullptr && op->layout.prefers_channels_last) group.spatial_s += row.self_s / steps;
    if (group.worst == nullptr || beyond(row) > beyond(*group.worst)) group.worst = &row;
  }
  std::vector<Group> groups;
  for (auto& [key, group] : found) groups.push_back(std::move(group));
  if (facts.loads_data && profile.data_s >= kDataShare * profile.wall_s)
    groups.push_back({.type = "(waiting for data)", .phase = "", .bound = "data", .spent_s = profile.data_s / steps});
  groups.push_back({.type = "(executor)", .phase = "", .bound = "overhead", .spent_s = profile.gap_s / steps});
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.beyond_s() > b.beyond_s(); });
  return groups;
}

/// Twice the batch, if the memory suffices. Its time per sample is that of `group` at best.
std::optional<Cure> larger_batch(const Profile& profile, const ProfileFacts& facts, const Group& group, std::string text) {
  if (facts.memory_bytes > 0 && 2 * profile.memory.planned_bytes > facts.memory_bytes) return std::nullopt;
  if (facts.training) text += " (this changes training: adapt the learning rate)";
  return Cure{facts.batch_key, std::to_string(2 * facts.batch), std::move(text),
              std::min(group.spent_s / 2, std::max(0.0, group.spent_s - group.limit_s / kReached))};
}

std::optional<Cure> more_threads(const ProfileFacts& facts, const Group& group) {
  if (facts.threads >= facts.cores) return std::nullopt;
  const double part = static_cast<double>(facts.threads) / static_cast<double>(facts.cores);
  return Cure{"threads", "auto", cat("the process may use ", facts.cores, " cores, but uses ", facts.threads),
              group.spent_s * (1 - part) * 0.8};
}

std::optional<Cure> bf16(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (!facts.fast_low_precision || group.bf16_s < group.spent_s / 2) return std::nullopt;
  if (group.bound != "compute") return Cure{"precision", "bf16", "bf16 activations take half of the bytes", group.bf16_s / 2};
  const MachineLimits& machine = profile.machine;
  const double ratio = machine.flops_per_s > 0 && machine.bf16_per_s > 0 ? machine.bf16_per_s / machine.flops_per_s : 2;
  if (ratio < kFasterBf16) return std::nullopt;
  return Cure{"precision", "bf16", cat("this machine multiplies bf16 ", fixed(ratio, 1), " times as fast as f32"),
              group.bf16_s * (1 - 1 / ratio)};
}

std::optional<Cure> channels_last(const ProfileFacts& facts, const Group& group) {
  if (!facts.contiguous_forced || group.spatial_s <= 0) return std::nullopt;
  return Cure{"memory_format", "auto", "it is faster in channels_last than in the contiguous format", 0.26 * group.spatial_s};
}

Cure data_cure(const ProfileFacts& facts, const Group& group) {
  const int64_t workers = std::min(facts.cores, std::max<int64_t>(1, 2 * facts.workers));
  if (workers > facts.workers)
    return {facts.data_key + ".workers", std::to_string(workers),
            facts.workers == 0 ? "a worker prefetches batches while the model computes" : "more workers prefetch batches faster",
            group.spent_s / 2};
  return {facts.data_key + ".pipeline", "", "a worker runs on every core: use a cheaper pipeline or smaller files", group.spent_s / 2};
}

Cure overhead_cure(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  const bool executor = group.worst == nullptr;
  if (std::optional<Cure> cure = larger_batch(
          profile, facts, group,
          executor ? "fewer steps process the same samples" : "calls are shorter than 20 us; a larger batch gives each more work"))
    return *cure;
  return {"model", "",
          executor ? "the model has many small operators: fewer layers, each larger, need fewer calls"
                   : "calls are shorter than 20 us: fuse them with their neighbours, or use fewer, larger layers",
          group.beyond_s() / 2};
}

Cure threads_cure(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (facts.threads > facts.cores)
    return {"threads", "auto", cat(facts.threads, " threads share ", facts.cores, facts.cores == 1 ? " core" : " cores"),
            group.beyond_s() / 2};
  if (std::optional<Cure> cure =
          larger_batch(profile, facts, group, "each call has too little work for its threads, which wait for each other"))
    return *cure;
  return {"threads", "1", "each call has too little work for its threads, which wait for each other", group.beyond_s() / 2};
}

/// Operators with long calls and a kernel made for them: compute and bandwidth.
Cure work_cure(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (std::optional<Cure> cure = channels_last(facts, group)) return *cure;
  if (std::optional<Cure> cure = more_threads(facts, group)) return *cure;
  if (std::optional<Cure> cure = bf16(profile, facts, group)) return *cure;
  if (group.phase == "update") {
    if (std::optional<Cure> cure = larger_batch(profile, facts, group, "fewer updates process the same samples")) return *cure;
  }
  if (group.bound == "compute") {
    if (std::optional<Cure> cure = larger_batch(profile, facts, group, "a larger batch makes the products larger")) return *cure;
    return {"model", "", "its shapes are too small or too narrow for the kernel: use layers with more channels, a multiple of 16",
            group.beyond_s() / 2};
  }
  const bool fusions = !facts.fusions_declined.empty();
  return {"model", "",
          fusions ? "it reads and writes whole activations: order layers so that they fuse (--verbose=passes lists why pairs did not)"
                  : "it reads and writes whole activations: use fewer or smaller element-wise layers and norms",
          group.beyond_s() / 2};
}

Cure cure_of(const Profile& profile, const ProfileFacts& facts, const Group& group) {
  if (group.bound == "data") return data_cure(facts, group);
  if (group.bound == "overhead") return overhead_cure(profile, facts, group);
  if (group.bound == "threads") return threads_cure(profile, facts, group);
  if (group.bound == "kernel") {
    if (std::optional<Cure> cure = channels_last(facts, group)) return *cure;
    return {"model", "", cat("it has no fast kernel: ", group.worst->note), group.beyond_s() / 2};
  }
  return work_cure(profile, facts, group);
}

std::string percent(double share) {
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

std::optional<Advice> below_limit(const Profile& profile, const ProfileFacts& facts) {
  if (profile.work.limit_s <= 0 || profile.work.limit_s >= kBelowLimit * profile.wall_s) return std::nullopt;
  const std::vector<Group> groups = groups_of(profile, facts);
  const double step = profile.wall_s / static_cast<double>(profile.steps);
  double beyond = 0, named = 0;
  for (const Group& group : groups) beyond += group.beyond_s();
  Advice advice;
  std::map<std::pair<std::string, std::string>, double> gains;
  for (const Group& group : groups) {
    if (advice.operators.size() == kNamed || (!advice.operators.empty() && group.beyond_s() < kHeldShare * beyond)) break;
    const Cure cure = cure_of(profile, facts, group);
    named += group.beyond_s();
    gains[{cure.key, cure.value}] += cure.gain_s;
    advice.operators.push_back({.type = group.type,
                                .phase = group.phase,
                                .module = group.worst == nullptr ? "" : group.worst->module,
                                .bound = group.bound,
                                .cure = cure.text,
                                .key = cure.key,
                                .value = cure.value,
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
  advice.message =
      cat("a step reaches ", percent(profile.work.limit_s / profile.wall_s), " of the machine's limit; ", types_of(advice.operators),
          advice.operators.size() == 1 ? " holds " : " hold ", percent(beyond > 0 ? named / beyond : 0), " of the time beyond it");
  return advice;
}

}  // namespace galley
