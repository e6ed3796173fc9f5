#include "libcore/profiler/advice.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>

#include "libcore/base/units.h"
#include "libcore/profiler/integer_advice.h"
#include "libcore/profiler/limit_advice.h"

namespace galley {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

/// Time per step of the rows for which `which` is true.
double time_of(const Profile& profile, const std::function<bool(const OperatorRow&)>& which) {
  double sum = 0;
  for (const OperatorRow& row : profile.operators) {
    if (which(row)) sum += row.self_s;
  }
  return profile.per_step(sum);
}

std::optional<Advice> data_bound(const Profile& profile, const ProfileFacts& facts) {
  constexpr double kShare = 0.1;
  const double wait = profile.per_step(profile.data_s), share = wait / profile.mean_step_s();
  if (!facts.loads_data || share < kShare) return std::nullopt;
  Advice advice;
  advice.key = facts.data_key + ".workers";
  std::vector<double> waits = profile.waits_s;
  std::sort(waits.begin(), waits.end());
  // A longer queue evens out waits in bursts; steady waits need more workers.
  const bool bursts = facts.workers > 0 && waits.size() >= 4 && waits[waits.size() / 2] < 0.2 * waits.back();
  const std::string seen = cat("waiting for data takes ", percent(share), " of a step (", facts.workers,
                               facts.workers == 1 ? " worker" : " workers", ", ", facts.prefetch, " batches prefetched)");
  if (bursts) {
    advice.key = facts.data_key + ".prefetch";
    advice.value = std::to_string(std::max<int64_t>(4, 2 * facts.prefetch));
    advice.gain_s = wait / 2;
    advice.message = cat(seen, ", in bursts: a longer prefetch queue evens them out");
    return advice;
  }
  const int64_t wanted = std::max<int64_t>(1, facts.workers == 0 ? 1 : std::min(2 * facts.workers, facts.cores));
  if (wanted > facts.workers) {
    // Loading overlaps with computation once there is a worker; throughput grows with the number of workers.
    const double compute = profile.mean_step_s() - wait, load = facts.workers == 0 ? wait : profile.mean_step_s();
    const double after = std::max(compute, load * static_cast<double>(std::max<int64_t>(1, facts.workers)) / static_cast<double>(wanted));
    advice.gain_s = profile.mean_step_s() - after;
    advice.value = std::to_string(wanted);
    advice.message = cat(seen, facts.workers == 0 ? ": a worker loads while the model computes" : ": use more workers");
    return advice;
  }
  advice.key = facts.data_key + ".pipeline";
  advice.gain_s = wait;
  advice.message = cat(seen, ", with a worker on every core: use a cheaper pipeline or smaller files");
  return advice;
}

std::optional<Advice> contiguous_forced(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.contiguous_forced || !facts.has_convolutions) return std::nullopt;
  // Measured: channels_last saves 26 to 76 % of the time of convolutions, norms and pooling; this is the lower figure.
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
  advice.modeled = false;
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

/// Two consecutive operators that were not fused. Fusing them would have removed the second one, forward and backward.
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
  /// Whether the row is the second operator, in the block of the first one or in a module directly in that block.
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
  advice.message = cat(missed.size(), missed.size() == 1 ? " pair of operators" : " pairs of operators",
                       " could not be fused; the most expensive: ", largest->line);
  return advice;
}

std::optional<Advice> slow_kernels(const Profile& profile, const ProfileFacts& facts) {
  // A good kernel reaches at least about a third of the limit.
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
  advice.gain_s = profile.per_step(gain);
  advice.message = cat("slow kernels take ", human_seconds(profile.per_step(spent)), " of a step; the slowest: ", worst->type,
                       worst->module.empty() ? "" : " at ", worst->module, " ", worst->shape, " on ", worst->backend,
                       worst->implementation.empty() ? "" : " ", worst->implementation, " (", worst->note, ")");
  return advice;
}

std::optional<Advice> recompute_unneeded(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.recompute || facts.memory_bytes <= 0) return std::nullopt;
  const double spent = time_of(profile, [](const OperatorRow& row) { return row.recomputed; });
  int64_t kept = 0;  // upper bound of the additional memory: all outputs of the forward pass
  for (const ModuleRow& row : profile.modules) {
    if (row.parent < 0) kept = row.made_bytes;
  }
  if (spent <= 0 || profile.memory.planned_bytes + kept > facts.memory_bytes / 2) return std::nullopt;
  Advice advice;
  advice.key = "train.recompute";
  advice.value = "null";
  advice.gain_s = spent;
  advice.gain_bytes = -kept;
  advice.modeled = false;
  advice.message = cat(
      "recomputed operators take ", human_seconds(spent), " of a step, and without recomputation the run still fits: at most ",
      human_bytes(static_cast<double>(profile.memory.planned_bytes + kept)), " of ", human_bytes(static_cast<double>(facts.memory_bytes)));
  return advice;
}

std::optional<Advice> recompute_cheap(const Profile& profile, const ProfileFacts& facts) {
  // Only if memory is short: operators other than products are cheap to recompute and hold most activations.
  if (!facts.training || facts.recompute || facts.memory_bytes <= 0 || profile.memory.steps.empty()) return std::nullopt;
  if (static_cast<double>(profile.memory.planned_bytes) < 0.8 * static_cast<double>(facts.memory_bytes)) return std::nullopt;
  const double cost = time_of(profile, [](const OperatorRow& row) {
    const OpDef* op = operator_of(row);
    return row.phase == "forward" && (op == nullptr || op->work != WorkClass::kProduct);
  });
  if (cost > 0.15 * profile.mean_step_s()) return std::nullopt;
  const int64_t held = profile.memory.steps[profile.memory.peak][static_cast<size_t>(MemoryCategory::kActivations)];
  Advice advice;
  advice.key = "train.recompute";
  advice.value = "selective";
  advice.gain_s = -cost;
  advice.gain_bytes = held / 2;
  advice.message = cat("the plan takes ", human_bytes(static_cast<double>(profile.memory.planned_bytes)), " of ",
                       human_bytes(static_cast<double>(facts.memory_bytes)), "; activations are ", human_bytes(static_cast<double>(held)),
                       " of it, and recomputing everything except products costs ", human_seconds(cost), " per step");
  return advice;
}

std::optional<Advice> accumulation(const Profile& profile, const ProfileFacts& facts) {
  if (facts.accumulation <= 1) return std::nullopt;
  // Each pass has its own gaps and calls too short to use the cores; a single pass has them once.
  const double calls = time_of(profile, [](const OperatorRow& row) { return row.self_s / static_cast<double>(row.calls) < 5e-5; });
  Advice advice;
  advice.key = "train.batch.micro";
  advice.value = "auto";
  advice.gain_s = (profile.per_step(profile.gap_s) + calls) * (1 - 1 / static_cast<double>(facts.accumulation));
  advice.message = cat("an update is split into ", facts.accumulation,
                       " micro-batches, each with its own fixed costs (note: batch norm then uses the statistics of the larger batch)");
  return advice;
}

std::optional<Advice> batch_small(const Profile& profile, const ProfileFacts& facts) {
  // Costs that do not grow with the batch: updates, gaps, and calls too short to keep the cores busy.
  constexpr double kShortCall = 2e-5, kLowShare = 30, kFixed = 0.25;
  const double fixed =
      time_of(profile,
              [](const OperatorRow& row) { return row.phase == "update" || row.self_s / static_cast<double>(row.calls) < kShortCall; }) +
      profile.per_step(profile.gap_s);
  const double busy = profile.mean_step_s() - profile.per_step(profile.data_s);
  if (fixed < kFixed * busy || profile.work.limit_percent() > kLowShare) return std::nullopt;
  Advice advice;
  advice.key = facts.batch_key;
  advice.value = std::to_string(2 * facts.batch);
  advice.gain_s = fixed / 2;  // for the samples of one step
  advice.message = cat(percent(fixed / busy), " of the compute time does not depend on the batch size (", facts.batch,
                       "): updates, calls shorter than 20 us, the executor. Operators reach ", percent(profile.work.limit_percent() / 100),
                       " of the machine's limit. A larger batch amortizes the fixed part",
                       facts.training ? " (this changes training: adapt the learning rate)" : "");
  return advice;
}

std::optional<Advice> threads_few(const Profile& profile, const ProfileFacts& facts) {
  if (facts.threads >= facts.cores) return std::nullopt;
  constexpr double kEfficiency = 0.8;  // parallel efficiency of an additional core
  const double compute = profile.per_step(profile.compute_s);
  const double speedup = 1 + kEfficiency * (static_cast<double>(facts.cores) / static_cast<double>(facts.threads) - 1);
  Advice advice;
  advice.key = "threads";
  advice.value = "auto";
  advice.gain_s = compute * (1 - 1 / speedup);
  advice.message =
      cat("the run uses ", facts.threads, facts.threads == 1 ? " thread" : " threads", ", but the process may use ", facts.cores, " cores");
  return advice;
}

std::optional<Advice> precision(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.fast_low_precision) return std::nullopt;
  const double products = time_of(profile, [](const OperatorRow& row) {
    const OpDef* op = operator_of(row);
    return op != nullptr && op->precision == PrecisionRule::kLow && row.compute_bound;
  });
  const double ratio = bf16_speed(profile.machine);
  if (ratio < kFasterBf16) return std::nullopt;
  Advice advice;
  advice.key = "precision";
  advice.value = "bf16";
  advice.gain_s = products * (1 - 1 / ratio);
  advice.message = cat("compute-bound products take ", human_seconds(products), " of a step in f32; this machine multiplies bf16 ",
                       fixed(ratio, 1), " times as fast");
  return advice;
}

constexpr AdviceRule kRules[] = {
    {"data_bound", "waiting for batches takes more than a tenth of a step", data_bound},
    {"contiguous_forced", "convolutions use the contiguous format", contiguous_forced},
    {"reorders", "reorders between memory formats take time", reorders},
    {"fusion_missed", "consecutive operators could not be fused, and why", fusion_missed},
    {"slow_kernels", "operators use reference or fallback kernels", slow_kernels},
    {"recompute_unneeded", "recomputation although memory is sufficient", recompute_unneeded},
    {"recompute_cheap", "memory is short, and recomputation would be cheap", recompute_cheap},
    {"accumulation", "micro-batches are smaller than necessary", accumulation},
    {"batch_small", "fixed costs dominate", batch_small},
    {"threads_few", "fewer threads than cores", threads_few},
    {"int8_slower", "layers are slower in int8 than in float", int8_slower},
    {"int8_float_layers", "float layers between int8 layers", int8_float_layers},
    {"int8_conversions", "conversions around operators without an int8 kernel", int8_conversions},
    {"int8_saturation", "products use the exact 16-bit path where 7-bit weights are faster", int8_saturation},
    {"precision", "f32 on a machine with fast bf16", precision},
    {"below_limit", "a step reaches less than half of the machine's limit: where the time is, and what bounds it", below_limit},
};

/// The keys of a recipe fragment as a tree, sorted by name.
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

std::vector<Advice> advise(const Profile& profile, const ProfileFacts& facts, double min_share) {
  std::vector<Advice> found;
  for (const AdviceRule& rule : kRules) {
    std::optional<Advice> advice = rule.check(profile, facts);
    if (!advice) continue;
    const bool small = advice->gain_s < min_share * profile.mean_step_s() && advice->gain_bytes <= 0;
    if (small && advice->operators.empty()) continue;
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
    // If two items set the same key or a part of it, the first one, which gains more, is used.
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
