#pragma once
// Advice: a table of rules over a profile. Each rule reports an observation, the recipe key to change and the expected gain.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/profiler/integer_facts.h"
#include "libcore/profiler/profile.h"

namespace galley {

/// Facts about the recipe and the machine for the rules.
struct ProfileFacts {
  bool training = true;
  bool loads_data = false;            // batches come from a data loader, not from memory
  int64_t workers = 0, prefetch = 0;  // settings of that loader
  std::string data_key = "data.train";
  int64_t threads = 1, cores = 1;
  bool contiguous_forced = false;  // memory_format: contiguous
  bool has_convolutions = false;
  bool recompute = false;           // train.recompute is on
  bool fast_low_precision = false;  // the machine has fast bf16, and the program computes in f32
  int64_t batch = 1, accumulation = 1;
  std::string batch_key = "train.batch";
  bool disturbed = false;                     // the report has remarks on the machine, such as other programs that used it
  int64_t memory_bytes = 0;                   // memory of the machine; 0: unknown
  std::vector<std::string> fusions_declined;  // "layer1.0.bn1: batch_norm + relu: the value between has 2 readers"
  std::vector<LayoutReport::Reorder> reorders;
  IntegerFacts integers;
};

/// Operators of one type, phase and bound, or the step outside its operators: "(waiting for data)", "(executor)".
struct BelowLimit {
  std::string type, phase;
  std::string module;      // of the operator with the most time above its limit
  std::string bound;       // compute, memory, overhead, threads, data or kernel: docs/tools.md
  std::string remedy;      // why the key helps
  std::string key, value;  // as in Advice
  double share = 0;        // of the step's time, 0 to 1
  double beyond_s = 0;     // seconds per step above the machine's limit
  double reached = 0;      // limit divided by time
};

struct Advice {
  std::string code;
  std::string message;  // the observation and the suggestion
  std::string key;      // recipe key to change
  std::string value;    // new value of that key as YAML; "" if no value can be given
  double gain_s = 0;    // seconds per step; 0 if no gain is known
  int64_t gain_bytes = 0;
  bool modeled = true;      // the gain is an estimate; otherwise it is measured time
  bool requantize = false;  // the key belongs to galley-quantize: it takes effect in the next quantized file, not in this run
  std::vector<BelowLimit> operators = {};  // of below_limit: most time above the limit first
};

struct AdviceRule {
  std::string_view code;
  std::string_view doc;
  std::optional<Advice> (*check)(const Profile& profile, const ProfileFacts& facts);
};

/// All rules.
std::span<const AdviceRule> advice_rules();

/// The findings of all rules, largest gain first, without gains below `min_share` of a step; below_limit is never left out.
std::vector<Advice> advise(const Profile& profile, const ProfileFacts& facts, double min_share = 0.02);

/// The recipe fragment that applies the advice; "" if no item has a value.
std::string advice_fragment(std::span<const Advice> advice);

}  // namespace galley
