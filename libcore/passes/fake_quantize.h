#pragma once
// Quantization-aware training: a graph that rounds weights and activations exactly where the converted inference graph does, with
// straight-through gradients (Jacob et al. 2018; learned scales: Esser et al. 2020). The analysis of passes/quantize.h decides for both
// graphs.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/quant/config.h"

namespace galley {

/// The form of the training graph in one stage of a training.
struct FakeQuantizeForm {
  bool observe = true;  // ranges move with each batch; false: they are fixed
  /// Batch norms use their running statistics, which do not change, and are folded into the weights as in conversion; false: they use
  /// those of the batch.
  bool freeze_batch_norm = false;
  bool learn_scale = false;  // scales are parameters; zero points come from the ranges
};

/// A value that is rounded, and its state: f32 [] each. Ranges begin as [inf, -inf].
struct ObservedValue {
  std::string name;        // quant_name
  std::string statistics;  // the name of its range for conversion; for a view the name of its input
  ActivationScheme scheme;
  std::string min() const { return name + ".range_min"; }      // ValueRole::kState
  std::string max() const { return name + ".range_max"; }      // ValueRole::kState
  std::string scale() const { return name + ".quant_scale"; }  // ValueRole::kParameter, with learn_scale
};

/// A layer's weight, on symmetric integers. A learned scale is that of the weight as conversion stores it, with its batch norm folded in.
struct FakeQuantizedWeight {
  std::string name;  // of the tensor in the converted file: "conv1.weight"
  Shape scales;      // [O] per channel, [] per tensor
  WeightScheme scheme;
  std::string scale() const { return name + ".quant_scale"; }  // ValueRole::kParameter, f32 of that shape
};

/// What is rounded, in the order of the model. The graph has the inputs that ObservedValue and, with learn_scale, FakeQuantizedWeight name.
struct FakeQuantizedModel {
  std::vector<ObservedValue> values;
  std::vector<FakeQuantizedWeight> weights;
};

/// A value that is rounded. `everywhere`: conversion makes it as integers, so every reader gets the rounded value; else only operators on
/// integers do.
struct FakeQuantizeSite {
  ObservedValue observed;
  ValueId id = kNoValue;
  bool everywhere = false;
};

/// Where a captured training graph rounds. It is made of the graph as it was captured; `apply` runs after the batch norms are frozen and
/// folded, where they are (passes/pipelines.cpp: fake_quantize_passes).
///
/// Weights are rounded by their present ranges, before the batch norm that conversion will fold in: the scale of a channel then cancels,
/// fake_quantize(w gamma / sigma) sigma / gamma = fake_quantize(w), for symmetric integers with one scale per channel. With one scale per
/// tensor, or with a scale that learns, it does not cancel, and the weight is scaled by gamma / sigma_running, rounded, and scaled back.
/// Either way the batch's own statistics stay in use until they are frozen.
class TrainingFakeQuantize {
 public:
  /// `evaluation` is the same model captured for evaluation, `fused` its folded and fused form (inference_passes). `config` is resolved for
  /// `fused`, its method kQat. Throws (kRecipe) as plan_quantization does.
  TrainingFakeQuantize(const Graph& training, const Graph& evaluation, const Graph& fused, const QuantizeConfig& config);
  /// Adds fake_quantize nodes to the graph that this was made of.
  void apply(Graph& training, const FakeQuantizeForm& form) const;
  const FakeQuantizedModel& model() const { return model_; }

 private:
  FakeQuantizedModel model_;
  // Values of the training graph.
  std::map<ValueId, FakeQuantizeSite> sites_;
  std::map<ValueId, FakeQuantizedWeight> weights_;  // by the result of the product
  std::set<ValueId> integer_results_;               // of nodes that read rounded values
  std::set<ValueId> scaled_;                        // results of products before a batch norm that conversion folds
};

/// Adds fake_quantize nodes to a folded and fused inference graph: what evaluation during the training runs, and conversion repeats in
/// integers.
FakeQuantizedModel fake_quantize_inference(Graph& fused, const QuantizeConfig& config, bool learn_scale);

/// A graph that computes the scales of the weights from their present ranges: the initial values of learned scales. It reads parameters and
/// buffers only, and has an output FakeQuantizedWeight::scale() for each weight of `rounded` (from fake_quantize_inference for this graph).
Graph present_weight_scales(const Graph& fused, const std::vector<FakeQuantizedWeight>& rounded);

/// The range that gives these parameters: how a file of statistics stores learned scales. The range gives the same zero point again, and
/// the same scale up to two units in the last place, since bounds and quotient are rounded to float32.
struct FloatRange {
  float min = 0, max = 0;
};
FloatRange range_of_params(const QuantParams& params, bool symmetric);

}  // namespace galley
