#pragma once
// Advice: a table of rules over a profile. Each says what was seen, which key of the recipe to change, and what it should gain.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/profiler/integer_facts.h"
#include "libcore/profiler/profile.h"

namespace galley {

/// What the rules must know of the recipe and the machine.
struct ProfileFacts {
  bool training = true;
  bool loads_data = false;            // batches come from a loader, not from memory
  int64_t workers = 0, prefetch = 0;  // of that loader
  std::string data_key = "data.train";
  int64_t threads = 1, cores = 1;
  bool contiguous_forced = false;  // memory_format: contiguous
  bool has_convolutions = false;
  bool recompute = false;           // train.recompute is on
  bool fast_low_precision = false;  // the machine is fast in bf16, and the program could compute in it
  int64_t batch = 1, accumulation = 1;
  std::string batch_key = "train.batch";
  int64_t memory_bytes = 0;                   // of the machine; 0: unknown
  std::vector<std::string> fusions_declined;  // "layer1.0.bn1: batch_norm + relu: the value between has 2 readers"
  std::vector<LayoutReport::Reorder> reorders;
  IntegerFacts integers;
};

struct Advice {
  std::string code;
  std::string message;  // what was seen, and what to do
  std::string key;      // of the recipe
  std::string value;    // for that key, as YAML; "": nothing that a fragment could set
  double gain_s = 0;    // of one step
  int64_t gain_bytes = 0;
  bool modelled = true;     // else the gain is time that was measured
  bool requantize = false;  // the key is galley-quantize's: it takes effect in the file that is made next, not in this run
};

struct AdviceRule {
  std::string_view code;
  std::string_view doc;
  std::optional<Advice> (*check)(const Profile& profile, const ProfileFacts& facts);
};

/// All rules.
std::span<const AdviceRule> advice_rules();

/// What the rules find, largest gain first. Gains below `least_share` of a step are not worth a word.
std::vector<Advice> advise(const Profile& profile, const ProfileFacts& facts, double least_share = 0.02);

/// The recipe fragment that follows the advice; "" where none has a value.
std::string advice_fragment(std::span<const Advice> advice);

}  // namespace galley
