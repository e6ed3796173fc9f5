#pragma once
// Quantization-aware training (quantize.method: qat): which form of the graph each step runs, the state that this adds, the evaluation of
// what will be deployed, and the statistics that conversion reads.

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

/// Steps that run one graph: from `first` to where the next stage begins.
struct TrainStage {
  int64_t first = 1;
  bool quantized = false;  // false: in float, `form` has no meaning
  FakeQuantizeForm form;
};

/// Does galley-train read the recipe's section `quantize`?
bool trains_quantized(const Recipe& recipe);
/// The stages of a run, in order; one of a training in float. `start`, `observers_until` and `batch_norm_until` are told in steps of the
/// whole run. Throws (kRecipe) where no range would be observed before it is frozen, or nothing be quantized.
std::vector<TrainStage> train_stages(const Recipe& recipe, const RunLength& length);

/// The file of trained ranges that belongs to a file of weights: RUN/stats.calib to RUN/weights.safetensors, RUN/stats_best.calib to
/// weights_best.
std::string trained_statistics(const std::string& weights);

class QuantizationAware {
 public:
  /// Throws (kRecipe) as plan_quantization does, and for selectors that match nothing.
  QuantizationAware(const Session& session, const BatchTypes& types);

  const std::vector<ObservedValue>& values() const { return rounded_.values; }
  /// How the training graph of that capture rounds. The parameters that this adds (scales that learn) are not among the capture's own.
  RoundingPasses passes(const BatchTypes& types, const FakeQuantizeForm& form) const;
  /// Rewrites the fused graph of an evaluation, rounding where conversion will. Calls this object.
  std::function<void(Graph&)> rounding() const;

  /// Names of scales that learn; none where scales follow ranges.
  std::vector<std::string> scales() const;
  /// Ranges, and scales that learn: what a checkpoint carries beside the optimizer's state.
  std::vector<StateSpec> states() const;
  /// Scales, and moving averages of them, become those of the ranges: where they begin to learn, and for evaluations before that.
  void set_scales(Engine& engine) const;

  /// The trained ranges as a calibration with one batch, of the weights in the store (with `suffix` ".ema": of their averages), so that
  /// conversion has the scales of the training: exactly, where they do not learn (passes/fake_quantize.h). Throws (kNumeric) for a value
  /// that saw no data.
  Calibration calibration(const ParameterStore& store, const std::string& suffix = "") const;

 private:
  QuantParams params_of(const ObservedValue& value, const ParameterStore& store) const;

  const Session& session_;
  bool learn_scale_;
  QuantizeConfig config_;
  RoundedModel rounded_;
  Graph weight_scales_;                  // present_weight_scales, where scales learn
  std::string model_;                    // model_digest
  std::vector<int64_t> input_;           // shape of a sample
  std::vector<std::string> parameters_;  // and buffers of the float model
};

}  // namespace galley
