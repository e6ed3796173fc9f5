#include "libcore/profiler/integer_advice.h"

#include <algorithm>
#include <cstdio>

#include "libcore/base/units.h"

namespace galley {
namespace {

// Measured figures of the models, from docs/performance/notes.md#integers (convolutions of ResNet-50 and
// MobileNetV3-Large). Winograd convolutions are faster than modeled, so the advice against int8 is conservative.
constexpr double kFloatReached = 0.7;     // fraction of the limit that float convolutions reach: 30..43 of 46 GMAC/s
constexpr double kFloatCall = 1e-5;       // fixed seconds of a float call: waking threads, entering a primitive
constexpr double kIntegerReached = 0.85;  // fraction of the ratio of the int8 and f32 limits that ResNet-50 reaches: 1.33..1.64 of 1.6
                                          // with AVX2, 3.1..3.4 of 4 with VNNI
constexpr double kUnknownGain = 1.3;      // if the machine's int8 limit is unknown: the smallest of these
constexpr double kReducedGain = 1.2;      // exact over reduced products: 32 products per cycle instead of 26
constexpr double kConversionBytes = 5;    // bytes per quantized or dequantized value: one byte and a float

/// Ratio of a layer's time in float to its time in int8.
double integer_gain(const MachineLimits& machine) {
  return machine.int8_per_s > 0 && machine.flops_per_s > 0 ? std::max(1.0, kIntegerReached * machine.int8_per_s / machine.flops_per_s)
                                                           : kUnknownGain;
}

double time_of_rows(const Profile& profile, const std::set<RowKey>& keys) {
  double sum = 0;
  for (const OperatorRow& row : profile.operators) {
    if (keys.count(row_key(row)) > 0) sum += row.self_s;
  }
  return profile.per_step(sum);
}

bool is_layer(const OperatorRow& row) {
  const OpDef* op = operator_of(row);
  return op != nullptr && op->work == WorkClass::kProduct && op->integer == IntegerRole::kComputes;
}

/// A list of names in YAML's flow style, quoted.
std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "[" : ", ", "'", name, "'");
  return text + "]";
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) text += cat(i == 0 ? "" : ", ", names[i]);
  return names.size() > kShown ? cat(text, " and ", names.size() - kShown, " more") : text;
}

constexpr const char* kRequantize = "; run galley-quantize to create the new file";

}  // namespace

std::optional<Advice> int8_slower(const Profile& profile, const ProfileFacts& facts) {
  if (!facts.integers.any || profile.machine.flops_per_s <= 0 || profile.machine.bytes_per_s <= 0) return std::nullopt;
  std::vector<std::string> names;
  double gain = 0, spent = 0, modeled = 0;
  for (const OperatorRow& row : profile.operators) {
    if (!is_layer(row) || row.calls == 0) continue;
    // In float every byte becomes four, and the neighbors need conversions unless they become float too.
    const double floating = std::max(row.flops / profile.machine.flops_per_s, 4 * row.bytes / profile.machine.bytes_per_s) / kFloatReached +
                            kFloatCall * static_cast<double>(row.calls);
    const double conversions = kConversionBytes * row.bytes / profile.machine.bytes_per_s;
    if (row.self_s <= 1.1 * (floating + conversions)) continue;
    gain += row.self_s - floating - conversions;
    spent += row.self_s;
    modeled += floating;
    if (std::find(names.begin(), names.end(), row.module) == names.end()) names.push_back(row.module);
  }
  if (names.empty()) return std::nullopt;
  Advice advice;
  advice.key = "quantize.overrides";
  if (!facts.integers.overrides) advice.value = cat("[{match: ", list_text(names), ", keep: float}]");
  advice.requantize = true;
  advice.gain_s = profile.per_step(gain);
  advice.message = cat(names.size(), names.size() == 1 ? " layer takes " : " layers take ", human_seconds(profile.per_step(spent)),
                       " of a step in int8, and would take about ", human_seconds(profile.per_step(modeled)),
                       " in float without conversions: ", some_of(names), kRequantize);
  return advice;
}

std::optional<Advice> int8_float_layers(const Profile& profile, const ProfileFacts& facts) {
  std::vector<std::string> names;
  double gain = 0, spent = 0;
  std::string cause;
  for (const FloatIsland& island : facts.integers.islands) {
    if (island.names.empty()) continue;
    const double layers = time_of_rows(profile, island.layers), conversions = time_of_rows(profile, island.conversions);
    gain += conversions + layers * (1 - 1 / integer_gain(profile.machine));
    spent += conversions + layers;
    names.insert(names.end(), island.names.begin(), island.names.end());
    if (cause.empty()) cause = island.cause;
  }
  if (names.empty()) return std::nullopt;
  Advice advice;
  // They may be in float for a reason, which a fragment must not undo.
  advice.key = "quantize.overrides";
  advice.requantize = true;
  advice.gain_s = gain;
  advice.message =
      cat(names.size(), names.size() == 1 ? " float layer is" : " float layers are",
          " between int8 layers; with the conversions around them they take ", human_seconds(spent), " of a step: ", some_of(names), " (",
          cause, "); int8 saves most of that if the accuracy permits: galley-quantize --sensitivity shows the accuracy cost of each layer");
  return advice;
}

std::optional<Advice> int8_conversions(const Profile& profile, const ProfileFacts& facts) {
  double spent = 0, most = -1;
  int count = 0;
  std::string cause;
  for (const FloatIsland& island : facts.integers.islands) {
    if (!island.names.empty()) continue;
    const double seconds = time_of_rows(profile, island.conversions);
    spent += seconds;
    ++count;
    if (seconds > most) {
      most = seconds;
      cause = island.cause;
    }
  }
  if (count == 0) return std::nullopt;
  Advice advice;
  advice.key = "model";
  advice.gain_s = spent;
  advice.modeled = false;
  advice.message = cat("values are converted from int8 to float and back at ", count, count == 1 ? " place" : " places", ", which takes ",
                       human_seconds(spent), " of a step; the most expensive: ", cause);
  return advice;
}

std::optional<Advice> int8_saturation(const Profile& profile, const ProfileFacts& facts) {
  double spent = 0;
  for (const OperatorRow& row : profile.operators) {
    if (row.implementation.starts_with("exact") && facts.integers.exact.count(row_key(row)) > 0) spent += row.self_s;
  }
  if (spent <= 0) return std::nullopt;
  spent = profile.per_step(spent);
  Advice advice;
  advice.key = "quantize.saturation";
  advice.value = "reduce";
  advice.requantize = true;
  advice.gain_s = spent * (1 - 1 / kReducedGain);
  char share[32];
  std::snprintf(share, sizeof share, "%.0f %%", 100 * spent / profile.mean_step_s());
  advice.message = cat(
      "this machine adds pairs of 8-bit products in 16 bits, which can saturate; exact products, which widen both operands first, take ",
      human_seconds(spent), " of a step (", share, "); 7-bit weights avoid the widening", kRequantize,
      ", with --evaluate to measure the accuracy");
  return advice;
}

}  // namespace galley
