#include "libcore/profiler/advice.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>

#include "libcore/base/units.h"
#include "libcore/profiler/integer_advice.h"

namespace galley {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

double per_step(const Profile& profile, double seconds) { return seconds / static_cast<double>(profile.steps); }
double step_s(const Profile& profile) { return per_step(profile, profile.wall_s); }

/// Sum over the rows that `which` takes, per step.
double time_of(const Profile& profile, const std::function<bool(const OperatorRow&)>& which) {
  double sum = 0;
  for (const OperatorRow& row : profile.operators) {
    if (which(row)) sum += row.self_s;
  }
  return per_step(profile, sum);
}

std::optional<Advice> data_bound(const Profile& profile, const ProfileFacts& facts) {
  constexpr double kShare = 0.1;
  const double wait = per_step(profile, profile.data_s), share = wait / step_s(profile);
  if (!facts.loads_data || share < kShare) return std::nullopt;
  Advice advice;
  advice.key = facts.data_key + ".workers";
  std::vector<double> waits = profile.waits_s;
  std::sort(waits.begin(), waits.end());
  // Waits that come in bursts are evened out by a longer queue; steady ones want more hands.
  const bool bursts = facts.workers > 0 && waits.size() >= 4 && waits[waits.size() / 2] < 0.2 * waits.back();
  const std::string seen = cat("waiting for data takes ", percent(share), " of a step (", facts.workers,
                               facts.workers == 1 ? " worker" : " workers", ", ", facts.prefetch, " batches ahead)");
  if (bursts) {
    advice.key = facts.data_key + ".prefetch";
    advice.value = std::to_string(std::max<int64_t>(4, 2 * facts.prefetch));
    advice.gain_s = wait / 2;
    advice.message = cat(seen, ", in bursts: a longer queue evens them out");
    return advice;
  }
  const int64_t wanted = std::max<int64_t>(1, facts.workers == 0 ? 1 : std::min(2 * facts.workers, facts.cores));
  if (wanted > facts.workers) {
    // Loading overlaps with computing once there is a worker; a loader's throughput grows with its workers.
    const double compute = step_s(profile) - wait, load = facts.workers == 0 ? wait : step_s(profile);
    const double after = std::max(compute, load * static_cast<double>(std::max<int64_t>(1, facts.workers)) / static_cast<double>(wanted));
    advice.gain_s = step_s(profile) - after;
    advice.value = std::to_string(wanted);
    advice.message = cat(seen, facts.workers == 0 ? ": a worker loads while the model computes" : ": more workers load faster");
    return advice;
  }
  advice.key = facts.data_key + ".pipeline";
  advice.gain_s = wait;
  advice.message = cat(seen, ", with a worker on every core: the samples want a cheaper pipeline or smaller files");
  return advice;
}

std::optional<Advice> contiguous_forced(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.contiguous_forced || !facts.has_convolutions) return std::nullopt;
  // Measured: channels_last saves 26 to 76 % of the time of convolutions, norms and pooling; the smaller figure is promised.
  constexpr double kSaved = 0.26;
  const double spatial = time_of(profile, [](const OperatorRow& row) {
    const OpDef* op = operator_of(row);
    return op != nullptr && op->layout.prefers_channels_last;
  });
  Advice advice;
  advice.key = "memory_format";
  advice.value = "auto";
  advice.gain_s = kSaved * spatial;
  advice.message = cat("memory_format is contiguous; convolutions, norms and pooling take ", human_seconds(spatial),
                       " of a step and are faster in channels_last");
  return advice;
}

std::optional<Advice> reorders(const Profile& profile, const ProfileFacts& facts) {
  const double spent = time_of(profile, [](const OperatorRow& row) {
    const OpDef* op = operator_of(row);
    return op != nullptr && op->layout.formats == FormatRule::kReorder && row.phase != "update";
  });
  if (spent <= 0) return std::nullopt;
  Advice advice;
  advice.key = "memory_format";
  if (facts.contiguous_forced) advice.value = "auto";
  advice.gain_s = spent;
  advice.modelled = false;
  int count = 0;
  const LayoutReport::Reorder* largest = nullptr;
  for (const LayoutReport::Reorder& reorder : facts.reorders) {
    if (reorder.free) continue;
    ++count;
    if (largest == nullptr || reorder.bytes > largest->bytes) largest = &reorder;
  }
  advice.message = cat("reorders between memory formats take ", human_seconds(spent), " of a step");
  if (largest != nullptr) {
    advice.message += cat("; the largest of ", count, ": ", largest->path.empty() ? "the model" : largest->path, ", ",
                          human_bytes(static_cast<double>(largest->bytes)), " (", largest->reason, ")");
  }
  return advice;
}

/// Two neighbours that stayed two operators: the last of them, forward and backward, would have vanished.
struct MissedFusion {
  explicit MissedFusion(const std::string& text) : line(text) {
    // "layer1.0.bn1: batch_norm + relu: the value between has 2 readers"
    const size_t first = line.find(": "), second = first == std::string::npos ? first : line.find(": ", first + 2);
    if (second == std::string::npos) return;
    const std::string path = line.substr(0, first), what = line.substr(first + 2, second - first - 2);
    const size_t plus = what.rfind("+ "), dot = path.rfind('.');
    last = plus == std::string::npos ? what : what.substr(plus + 2);
    block = dot == std::string::npos ? "" : path.substr(0, dot);
  }
  /// The operator belongs to the block that the producer is in, or to a module directly in that block.
  bool concerns(const OperatorRow& row) const {
    if (last.empty() || (row.type != last && row.type != last + "_backward")) return false;
    if (row.module == block) return true;
    const std::string prefix = block.empty() ? "" : block + ".";
    return row.module.starts_with(prefix) && row.module.find('.', prefix.size()) == std::string::npos;
  }
  const std::string& line;
  std::string last, block;
};

std::optional<Advice> fusion_missed(const Profile& profile, const ProfileFacts& facts) {
  const std::vector<MissedFusion> missed(facts.fusions_declined.begin(), facts.fusions_declined.end());
  const MissedFusion* largest = nullptr;
  double largest_s = 0;
  for (const MissedFusion& fusion : missed) {
    const double spent = time_of(profile, [&](const OperatorRow& row) { return fusion.concerns(row); });
    if (spent <= largest_s) continue;
    largest_s = spent;
    largest = &fusion;
  }
  if (largest == nullptr) return std::nullopt;
  Advice advice;
  advice.key = "model";
  advice.gain_s = time_of(profile, [&](const OperatorRow& row) {
    return std::any_of(missed.begin(), missed.end(), [&](const MissedFusion& fusion) { return fusion.concerns(row); });
  });
  advice.message = cat(missed.size(), missed.size() == 1 ? " pair of neighbours" : " pairs of neighbours",
                       " could not become one operator; the most time: ", largest->line);
  return advice;
}

std::optional<Advice> slow_kernels(const Profile& profile, const ProfileFacts& facts) {
  // A proper kernel reaches a good third of the limit.
  constexpr double kReached = 0.35;
  double gain = 0, spent = 0;
  const OperatorRow* worst = nullptr;
  for (const OperatorRow& row : profile.operators) {
    if (row.note.empty() || row.flops <= 0) continue;
    spent += row.self_s;
    gain += std::max(0.0, row.self_s - row.limit_s / kReached);
    if (worst == nullptr || row.self_s > worst->self_s) worst = &row;
  }
  if (worst == nullptr) return std::nullopt;
  Advice advice;
  advice.key = facts.contiguous_forced ? "memory_format" : "model";
  if (facts.contiguous_forced) advice.value = "auto";
  advice.gain_s = per_step(profile, gain);
  advice.message = cat("slow kernels take ", human_seconds(per_step(profile, spent)), " of a step; the slowest: ", worst->type,
                       worst->module.empty() ? "" : " at ", worst->module, " ", worst->shape, " on ", worst->backend,
                       worst->implementation.empty() ? "" : " ", worst->implementation, " (", worst->note, ")");
  return advice;
}

std::optional<Advice> recompute_unneeded(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.recompute || facts.memory_bytes <= 0) return std::nullopt;
  const double spent = time_of(profile, [](const OperatorRow& row) { return row.recomputed; });
  int64_t kept = 0;  // what would be kept instead: at most everything that the forward pass makes
  for (const ModuleRow& row : profile.modules) {
    if (row.parent < 0) kept = row.made_bytes;
  }
  if (spent <= 0 || profile.memory.planned_bytes + kept > facts.memory_bytes / 2) return std::nullopt;
  Advice advice;
  advice.key = "train.recompute";
  advice.value = "null";
  advice.gain_s = spent;
  advice.gain_bytes = -kept;
  advice.modelled = false;
  advice.message =
      cat("operators that run again for the backward pass take ", human_seconds(spent),
          " of a step, and without it the run still fits: at most ", human_bytes(static_cast<double>(profile.memory.planned_bytes + kept)),
          " of ", human_bytes(static_cast<double>(facts.memory_bytes)));
  return advice;
}

std::optional<Advice> recompute_cheap(const Profile& profile, const ProfileFacts& facts) {
  // Only where memory is short: what is not a product costs little to run again and holds most of the activations.
  if (!facts.training || facts.recompute || facts.memory_bytes <= 0 || profile.memory.steps.empty()) return std::nullopt;
  if (static_cast<double>(profile.memory.planned_bytes) < 0.8 * static_cast<double>(facts.memory_bytes)) return std::nullopt;
  const double cost = time_of(profile, [](const OperatorRow& row) {
    const OpDef* op = operator_of(row);
    return row.phase == "forward" && (op == nullptr || op->work != WorkClass::kProduct);
  });
  if (cost > 0.15 * step_s(profile)) return std::nullopt;
  const int64_t held = profile.memory.steps[profile.memory.peak][static_cast<size_t>(MemoryCategory::kActivations)];
  Advice advice;
  advice.key = "train.recompute";
  advice.value = "selective";
  advice.gain_s = -cost;
  advice.gain_bytes = held / 2;
  advice.message = cat("the plan takes ", human_bytes(static_cast<double>(profile.memory.planned_bytes)), " of ",
                       human_bytes(static_cast<double>(facts.memory_bytes)), "; activations are ", human_bytes(static_cast<double>(held)),
                       " of it, and running all but the products again costs ", human_seconds(cost), " a step");
  return advice;
}

std::optional<Advice> accumulation(const Profile& profile, const ProfileFacts& facts) {
  if (facts.accumulation <= 1) return std::nullopt;
  // Each pass pays the gaps and the calls that are too short to be busy; one pass pays them once.
  const double calls = time_of(profile, [](const OperatorRow& row) { return row.self_s / static_cast<double>(row.calls) < 5e-5; });
  Advice advice;
  advice.key = "train.batch.micro";
  advice.value = "auto";
  advice.gain_s = (per_step(profile, profile.gap_s) + calls) * (1 - 1 / static_cast<double>(facts.accumulation));
  advice.message = cat("an update is cut into ", facts.accumulation,
                       " passes, each of which pays the fixed costs again (statistics of batch norm are then of the larger batch)");
  return advice;
}

std::optional<Advice> batch_small(const Profile& profile, const ProfileFacts& facts) {
  // What does not grow with the batch: updates, gaps, and calls too short to keep the cores busy.
  constexpr double kShortCall = 2e-5, kLowShare = 30, kFixed = 0.25;
  const double fixed =
      time_of(profile,
              [](const OperatorRow& row) { return row.phase == "update" || row.self_s / static_cast<double>(row.calls) < kShortCall; }) +
      per_step(profile, profile.gap_s);
  const double busy = step_s(profile) - per_step(profile, profile.data_s);
  if (fixed < kFixed * busy || profile.work.limit_percent() > kLowShare) return std::nullopt;
  Advice advice;
  advice.key = facts.batch_key;
  advice.value = std::to_string(2 * facts.batch);
  advice.gain_s = fixed / 2;  // of a step's worth of samples
  advice.message = cat(percent(fixed / busy), " of the computing time does not grow with the batch of ", facts.batch,
                       " (updates, calls below 20 us, the executor), and operators reach ", percent(profile.work.limit_percent() / 100),
                       " of the machine's limit: a larger batch shares it out",
                       facts.training ? " (it is another training: adapt the learning rate)" : "");
  return advice;
}

std::optional<Advice> threads_few(const Profile& profile, const ProfileFacts& facts) {
  if (facts.threads >= facts.cores) return std::nullopt;
  constexpr double kEfficiency = 0.8;  // of an added core
  const double compute = per_step(profile, profile.compute_s);
  const double speedup = 1 + kEfficiency * (static_cast<double>(facts.cores) / static_cast<double>(facts.threads) - 1);
  Advice advice;
  advice.key = "threads";
  advice.value = "auto";
  advice.gain_s = compute * (1 - 1 / speedup);
  advice.message =
      cat("computes on ", facts.threads, facts.threads == 1 ? " thread" : " threads", ", the process may use ", facts.cores, " cores");
  return advice;
}

std::optional<Advice> precision(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.fast_low_precision) return std::nullopt;
  const double products = time_of(profile, [](const OperatorRow& row) {
    const OpDef* op = operator_of(row);
    return op != nullptr && op->precision == PrecisionRule::kLow && row.compute_bound;
  });
  Advice advice;
  advice.key = "precision";
  advice.value = "bf16";
  advice.gain_s = products / 2;
  advice.message = cat("products that arithmetic bounds take ", human_seconds(products),
                       " of a step in f32; this machine multiplies bf16 at least twice as fast");
  return advice;
}

constexpr AdviceRule kRules[] = {
    {"data_bound", "waiting for batches takes more than a tenth of a step", data_bound},
    {"contiguous_forced", "convolutions in contiguous format", contiguous_forced},
    {"reorders", "time in reorders between memory formats", reorders},
    {"fusion_missed", "neighbours that could not be merged, and why", fusion_missed},
    {"slow_kernels", "operators on reference or fallback kernels", slow_kernels},
    {"recompute_unneeded", "recomputation though memory is plentiful", recompute_unneeded},
    {"recompute_cheap", "memory is short, and recomputing would cost little", recompute_cheap},
    {"accumulation", "passes that are smaller than they must be", accumulation},
    {"batch_small", "fixed costs dominate", batch_small},
    {"threads_few", "fewer threads than cores", threads_few},
    {"int8_slower", "layers that integers make slower than float", int8_slower},
    {"int8_float_layers", "layers in float between layers on integers", int8_float_layers},
    {"int8_conversions", "conversions round operators without an integer form", int8_conversions},
    {"int8_saturation", "products on the exact 16-bit way where one bit less is faster", int8_saturation},
    {"precision", "f32 on a machine that is fast in bf16", precision},
};

/// A fragment's keys as a tree, in order of names.
struct Tree {
  std::map<std::string, std::unique_ptr<Tree>> children;
  std::string value;
};

void print_tree(const Tree& tree, const std::string& indent, std::string& text) {
  for (const auto& [key, child] : tree.children) {
    if (child->children.empty()) {
      text += cat(indent, key, ": ", child->value, "\n");
    } else {
      text += cat(indent, key, ":\n");
      print_tree(*child, indent + "  ", text);
    }
  }
}

}  // namespace

std::span<const AdviceRule> advice_rules() { return kRules; }

std::vector<Advice> advise(const Profile& profile, const ProfileFacts& facts, double least_share) {
  std::vector<Advice> found;
  for (const AdviceRule& rule : kRules) {
    std::optional<Advice> advice = rule.check(profile, facts);
    if (!advice || (advice->gain_s < least_share * step_s(profile) && advice->gain_bytes <= 0)) continue;
    advice->code = rule.code;
    found.push_back(std::move(*advice));
  }
  std::stable_sort(found.begin(), found.end(), [](const Advice& a, const Advice& b) { return a.gain_s > b.gain_s; });
  return found;
}

std::string advice_fragment(std::span<const Advice> advice) {
  Tree root;
  std::vector<std::string> seen;
  for (const Advice& item : advice) {
    // The first, which gains most, decides where two speak of one key or of a part of it.
    const bool taken = std::any_of(seen.begin(), seen.end(), [&](const std::string& key) {
      return key == item.key || key.starts_with(item.key + ".") || item.key.starts_with(key + ".");
    });
    if (item.value.empty() || taken) continue;
    seen.push_back(item.key);
    Tree* at = &root;
    for (size_t begin = 0; begin <= item.key.size();) {
      const size_t end = std::min(item.key.find('.', begin), item.key.size());
      std::unique_ptr<Tree>& child = at->children[item.key.substr(begin, end - begin)];
      if (!child) child = std::make_unique<Tree>();
      at = child.get();
      begin = end + 1;
    }
    at->value = item.value;
  }
  std::string text;
  print_tree(root, "", text);
  return text;
}

}  // namespace galley
