#pragma once
// The recipe's keys for calibration and quantization: data.calibration and quantize. quantize/quantize_config.h resolves them for each
// layer.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"
#include "libcore/quant/config.h"

namespace galley {

class Error;

/// data.calibration: the samples for calibration, drawn from a split with the recipe's seed.
struct CalibrationSection : OptionsOf<CalibrationSection> {
  void options(OptionVisitor& v) override;
  std::string from = "train";
  int64_t samples = 512;
  std::string pipeline = "val";  ///< Name of a split, or from_weights.
  AutoCount batch;
};

/// auto | true | false.
struct AutoBool : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return !value ? "auto" : *value ? "true" : "false"; }
  std::string_view grammar() const override { return "auto, true or false"; }
  std::optional<bool> value;  ///< Empty: auto.
};

/// An observer with its parameters; parameters not written have the defaults of ObserverSpec.
struct ObserverSection : OptionsOf<ObserverSection> {
  ObserverSection() = default;
  explicit ObserverSection(ObserverType t) : type(t) {}
  void options(OptionVisitor& v) override;
  ObserverSpec spec() const;
  ObserverType type = ObserverType::kMinMax;
  std::optional<Percentage> value;
  std::optional<double> averaging_constant;
};

enum class WeightSchemeName { kPerChannelSymmetric, kPerChannelAffine, kPerTensorSymmetric, kPerTensorAffine };
enum class ActivationSchemeName { kPerTensorAffine, kPerTensorSymmetric };

/// quantize.weights.
struct QuantizeWeightsSection : OptionsOf<QuantizeWeightsSection> {
  void options(OptionVisitor& v) override;
  QuantDType dtype = QuantDType::kInt8;
  WeightSchemeName scheme = WeightSchemeName::kPerChannelSymmetric;
  ObserverSection observer;
  std::optional<int64_t> group_size;
};

/// quantize.activations.
struct QuantizeActivationsSection : OptionsOf<QuantizeActivationsSection> {
  void options(OptionVisitor& v) override;
  QuantDType dtype = QuantDType::kUint8;
  ActivationSchemeName scheme = ActivationSchemeName::kPerTensorAffine;
  ObserverSection observer{ObserverType::kAuto};
  AutoBool reduce_range;
};

/// The keys of quantize.weights for some layers. Empty: the value of quantize.weights.
struct WeightsOverride : OptionsOf<WeightsOverride> {
  void options(OptionVisitor& v) override;
  std::optional<QuantDType> dtype;
  std::optional<WeightSchemeName> scheme;
  std::optional<ObserverSection> observer;
  std::optional<int64_t> group_size;
};

/// The keys of quantize.activations for some layers. Empty: the value of quantize.activations.
struct ActivationsOverride : OptionsOf<ActivationsOverride> {
  void options(OptionVisitor& v) override;
  std::optional<QuantDType> dtype;
  std::optional<ActivationSchemeName> scheme;
  std::optional<ObserverSection> observer;
  std::optional<AutoBool> reduce_range;
};

enum class KeepType { kFloat, kInteger };

/// An item of quantize.overrides: settings of the layers that match.
struct QuantizeOverride : OptionsOf<QuantizeOverride> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> match, except;
  std::optional<KeepType> keep;
  std::optional<WeightsOverride> weights;
  std::optional<ActivationsOverride> activations;
};

/// A largest drop of a metric: "0.5" in the metric's unit, or "1%" relative to its value.
struct Drop : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return number_text(value) + (relative ? "%" : ""); }
  std::string_view grammar() const override { return "0.5 (in the metric's unit), or 1% (of its value)"; }
  double value = 0;
  bool relative = false;
};

enum class GoalObjective { kLatency, kSize };

/// quantize.goal.
struct GoalSection : OptionsOf<GoalSection> {
  void options(OptionVisitor& v) override;
  std::string metric;
  std::optional<Drop> max_drop;
  std::optional<double> min;
  GoalObjective objective = GoalObjective::kLatency;
  Duration time_budget{600, DurationUnit::kSeconds};
};

/// quantize.qat: quantization-aware training.
struct QatSection : OptionsOf<QatSection> {
  void options(OptionVisitor& v) override;
  Duration start{0, DurationUnit::kSteps};
  Duration observers_until{4, DurationUnit::kEpochs};
  Duration batch_norm_until{3, DurationUnit::kEpochs};
  bool learn_scale = false;
};

/// How tables of embeddings are stored.
enum class EmbeddingStorage : uint8_t { kAuto, kInt8, kFloat };

/// quantize.
struct QuantizeSection : OptionsOf<QuantizeSection> {
  void options(OptionVisitor& v) override;
  QuantMethod method = QuantMethod::kStatic;
  std::optional<std::string> calibration;
  QuantizeWeightsSection weights;
  QuantizeActivationsSection activations;
  EmbeddingStorage embeddings = EmbeddingStorage::kAuto;
  OptionList overrides;  ///< QuantizeOverride
  QuantFallback fallback = QuantFallback::kError;
  SaturationRule saturation = SaturationRule::kExact;
  std::optional<GoalSection> goal;
  QatSection qat;
};

/// Checks keys that depend on each other and adds the errors to `errors`. Called by check_recipe.
void check_quantize(const QuantizeSection& quantize, std::vector<Error>& errors);

}  // namespace galley
