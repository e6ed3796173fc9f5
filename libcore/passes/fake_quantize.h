#pragma once
// Quantization-aware training: a graph that rounds weights and activations exactly where the converted inference graph will, with gradients
// that pass straight through (Jacob et al. 2018; scales that learn: Esser et al. 2020). One analysis, that of passes/quantize.h, decides
// for both.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/quant/config.h"

namespace galley {

/// How far a training is; each form is a graph of its own.
struct FakeQuantizeForm {
  bool observe = true;  // ranges move with each batch; false: they are fixed
  /// Running statistics are used and kept, folded into the weights as conversion does; false: those of the batch.
  bool freeze_batch_norm = false;
  bool learn_scale = false;  // scales are parameters; zero points stay those of the ranges
};

/// A value that is rounded, and its state: f32 [] each. Ranges begin as [inf, -inf].
struct ObservedValue {
  std::string name;        // quant_name
  std::string statistics;  // the name under which conversion looks for its range: of a view its input's
  ActivationScheme scheme;
  std::string min() const { return name + ".range_min"; }      // ValueRole::kState
  std::string max() const { return name + ".range_max"; }      // ValueRole::kState
  std::string scale() const { return name + ".quant_scale"; }  // ValueRole::kParameter, where scales learn
};

/// A layer's weight, on symmetric integers. Its scale, where it learns, is that of the weight as conversion stores it: a batch norm that
/// will be folded in is in it.
struct RoundedWeight {
  std::string name;  // of the tensor in the converted file: "conv1.weight"
  Shape scales;      // [O] per channel, [] per tensor
  WeightScheme scheme;
  std::string scale() const { return name + ".quant_scale"; }  // ValueRole::kParameter, f32 of that shape
};

/// What is rounded, in the order of the model. The graph takes the inputs that ObservedValue and, where scales learn, RoundedWeight name.
struct RoundedModel {
  std::vector<ObservedValue> values;
  std::vector<RoundedWeight> weights;
};

/// A value that is rounded. `everywhere`: conversion makes it as integers, so every reader gets the rounded value; else only operators on
/// integers do.
struct RoundingSite {
  ObservedValue observed;
  ValueId id = kNoValue;
  bool everywhere = false;
};

/// Where a captured training graph rounds. It is made of the graph as it was captured; `apply` runs after the batch norms are frozen and
/// folded, where they are (passes/pipelines.cpp: rounding_passes).
///
/// Weights are rounded by their present ranges, before the batch norm that conversion will fold in: the scale of a channel then cancels,
/// fake_quantize(w gamma / sigma) sigma / gamma = fake_quantize(w), for symmetric integers with one scale per channel. With one scale per
/// tensor, or with a scale that learns, it does not cancel, and the weight is scaled by gamma / sigma_running, rounded, and scaled back.
/// Either way the batch's own statistics stay in use until they are frozen.
class TrainingRounding {
 public:
  /// `evaluation` is the same model captured for evaluation, `fused` its folded and fused form (inference_passes). `config` is resolved for
  /// `fused`, its method kQat. Throws (kRecipe) as plan_quantization does.
  TrainingRounding(const Graph& training, const Graph& evaluation, const Graph& fused, const QuantizeConfig& config);
  /// Adds the rounding to the graph that this was made of.
  void apply(Graph& training, const FakeQuantizeForm& form) const;
  const RoundedModel& model() const { return model_; }

 private:
  RoundedModel model_;
  // Values of the training graph.
  std::map<ValueId, RoundingSite> sites_;
  std::map<ValueId, RoundedWeight> weights_;  // by the result of the product
  std::set<ValueId> integer_results_;         // of nodes that read rounded values
  std::set<ValueId> scaled_;                  // results of products before a batch norm that conversion folds
};

/// Adds the rounding to a folded and fused inference graph: what evaluation during the training runs, and conversion repeats in integers.
RoundedModel fake_quantize_inference(Graph& fused, const QuantizeConfig& config, bool learn_scale);

/// The scales of the weights' present ranges, where scales begin to learn: a graph of parameters and buffers alone, with an output for each
/// weight of `rounded` (of fake_quantize_inference for this graph), named RoundedWeight::scale().
Graph present_weight_scales(const Graph& fused, const std::vector<RoundedWeight>& rounded);

/// The range that has these parameters: what a file of statistics holds of learned scales. Made from it again the zero point is the same,
/// and the scale but for the rounding of bounds and quotient to float32, two units in the last place at most.
struct FloatRange {
  float min = 0, max = 0;
};
FloatRange range_of_params(const QuantParams& params, bool symmetric);

}  // namespace galley
