#pragma once
// Quantization-aware training (quantize.method: qat): the form of the graph in each step, the additional state, the rounding of
// evaluations, and the statistics for conversion.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "libcore/infer/inference.h"
#include "libcore/infer/session.h"
#include "libcore/passes/pipelines.h"
#include "libcore/quant/calibration.h"

namespace galley {

struct RunLength;
struct StateSpec;
class Engine;
class ParameterStore;

/// A range of steps that run the same graph: from `first` to the start of the next stage.
struct TrainStage {
  int64_t first = 1;
  bool quantized = false;  // false: in float, `form` is unused
  FakeQuantizeForm form;
};

/// Whether the recipe uses quantization-aware training.
bool trains_quantized(const Recipe& recipe);
/// The stages of a run, in order; training in float has one. Converts `start`, `observers_until` and `batch_norm_until` to steps of the
/// whole run. Throws (kRecipe) if ranges would be frozen before they are observed, or if nothing would be quantized.
std::vector<TrainStage> train_stages(const Recipe& recipe, const RunLength& length);

/// The file of trained ranges for a file of weights: RUN/stats.calib for RUN/weights.safetensors, RUN/stats_best.calib for
/// weights_best.
std::string trained_statistics(const std::string& weights);

/// Quantization-aware training of one model.
class QuantizationAware {
 public:
  /// Throws (kRecipe) as plan_quantization does, and for selectors that match nothing.
  QuantizationAware(const Session& session, const BatchTypes& types);

  const std::vector<ObservedValue>& values() const { return rounded_.values; }
  /// How the training graph rounds. The added parameters (learned scales) are not in CapturedModel::parameters.
  FakeQuantizePasses passes(const BatchTypes& types, const FakeQuantizeForm& form) const;
  /// A function that adds fake_quantize nodes to the fused graph of an evaluation. It refers to this object.
  std::function<void(Graph&)> fake_quantize() const;

  /// Names of learned scales; empty if scales are computed from ranges.
  std::vector<std::string> scales() const;
  /// Ranges and learned scales: the state that checkpoints store in addition to the optimizer's.
  std::vector<StateSpec> states() const;
  /// Sets scales and their moving averages to those of the ranges: when learning begins, and for evaluations before that.
  void set_scales(Engine& engine) const;

  /// The trained ranges as a calibration with one batch, for the weights in the store (`suffix` ".ema": for their averages), so that
  /// conversion uses the scales of the training: exactly, unless scales are learned (range_of_params). Throws (kNumeric) for a value
  /// without data.
  Calibration calibration(const ParameterStore& store, const std::string& suffix = "") const;

 private:
  QuantParams params_of(const ObservedValue& value, const ParameterStore& store) const;

  const Session& session_;
  bool learn_scale_;
  QuantizeConfig config_;
  FakeQuantizedModel rounded_;
  Graph weight_scales_;                  // present_weight_scales, for learned scales
  std::string model_;                    // model_digest
  std::vector<std::string> optional_;    // Calibration::inputs
  std::vector<int64_t> input_;           // shape of a sample
  std::vector<std::string> parameters_;  // and buffers of the float model
};

}  // namespace galley
