#pragma once
// The order of passes. What becomes of a captured graph until kernels are chosen is decided here and nowhere else.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libcore/passes/assign_layout.h"
#include "libcore/passes/assign_precision.h"
#include "libcore/passes/fake_quantize.h"
#include "libcore/passes/quantize.h"
#include "libcore/passes/recompute.h"
#include "libcore/passes/target.h"

namespace galley {

/// Gradients of named inputs, by their ids.
using GradientMap = std::map<ValueId, ValueId>;

/// Quantization-aware training: how a graph rounds (fake_quantize.h).
struct RoundingPasses {
  Graph evaluation;       ///< The same model captured for evaluation, neither folded nor fused.
  QuantizeConfig config;  ///< Resolved for its folded and fused form; the method is kQat.
  FakeQuantizeForm form;
};
/// A captured training graph -> the same graph, which rounds weights and values. The first passes of training_passes.
RoundedModel rounding_passes(Graph& graph, const RoundingPasses& how);

struct TrainingPasses {
  PrecisionPolicy precision;
  std::optional<RoundingPasses> rounding;                                 ///< Absent: a training in float.
  std::vector<std::string> trained;                                       ///< Named inputs whose gradients are taken.
  std::function<void(Graph&, const GradientMap&)> updates;                ///< Appends what is done with the gradients.
  std::function<RecomputeChoice(const Graph& differentiated)> recompute;  ///< What is computed again in the backward pass; may be empty.
  std::function<void(Graph&)> guard;  ///< Puts updates under the condition that the loss is finite; may be empty.
};
/// A captured training graph with the scalar output "loss" -> forward, backward and updates. Returns what was fused and what declined.
PassReport training_passes(Graph& graph, const Target& target, const TrainingPasses& how);

struct InferencePasses {
  PrecisionPolicy precision;
  std::function<void(Graph&)> capture;  ///< Declares further outputs; may be empty.
  std::function<void(Graph&)> round;    ///< Rounds where conversion will (evaluation of a quantization-aware training); may be empty.
};
/// A captured evaluation graph -> the folded and fused graph that calibration names and conversion reads, the same on every machine.
/// Returns what was fused and what declined.
PassReport inference_passes(Graph& graph, const InferencePasses& how = {});

/// The result of inference_passes -> its form on integers.
ConvertReport conversion_passes(Graph& fused, const QuantizationPlan& plan);

struct CompileReport {
  LayoutReport layout;
  PassReport rewrites;       ///< The back end's, before and after layout.
  PassReport expansion;      ///< Composites that the back end cannot run, replaced by their definitions.
  size_t prepare_nodes = 0;  ///< The first nodes, which run once.
};
/// Any graph -> the graph of a program: the back end's rewrites, definitions for composites that it cannot run, the order of updates,
/// memory formats. The memory plan follows when kernels, and so their scratch memory, are chosen.
CompileReport compile_passes(Graph& graph, const Target& target, LayoutOptions layout);

}  // namespace galley
