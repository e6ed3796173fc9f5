#pragma once
// The order of all passes, from a captured graph until kernels are chosen.

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

/// Quantization-aware training: the fake_quantize nodes of a graph (fake_quantize.h).
struct FakeQuantizePasses {
  Graph evaluation;       ///< The same model captured for evaluation, neither folded nor fused.
  QuantizeConfig config;  ///< Resolved for its folded and fused form; the method is kQat.
  FakeQuantizeForm form;
};
/// A captured training graph -> the same graph with fake_quantize nodes for weights and values. The first passes of training_passes.
FakeQuantizedModel fake_quantize_passes(Graph& graph, const FakeQuantizePasses& options);

struct TrainingPasses {
  PrecisionPolicy precision;
  std::optional<FakeQuantizePasses> fake_quantize;                        ///< Absent: training in float.
  std::function<ValueId(Graph&, ValueId loss)> objective;                 ///< What is differentiated instead of the loss; may be empty.
  std::vector<std::string> trained;                                       ///< Named inputs whose gradients are computed.
  std::function<void(Graph&, const GradientMap&)> updates;                ///< Appends the nodes that use the gradients.
  std::function<RecomputeChoice(const Graph& differentiated)> recompute;  ///< What the backward pass recomputes; may be empty.
  std::function<void(Graph&)> guard;                                      ///< Gates updates by a finite loss; may be empty.
};
/// A captured training graph with the scalar output "loss" -> forward, backward and updates. Returns what was fused and what was declined.
PassReport training_passes(Graph& graph, const Target& target, const TrainingPasses& options);

struct InferencePasses {
  PrecisionPolicy precision;
  std::function<void(Graph&)> capture;        ///< Declares further outputs; may be empty.
  std::function<void(Graph&)> fake_quantize;  ///< Rounds as conversion will (evaluation in quantization-aware training); may be empty.
};
/// A captured evaluation graph -> the folded and fused graph that calibration names and conversion reads, the same on every machine.
/// Returns what was fused and what was declined.
PassReport inference_passes(Graph& graph, const InferencePasses& options = {});

/// The result of inference_passes -> the quantized graph.
ConvertReport conversion_passes(Graph& fused, const QuantizationPlan& plan);

struct CompileReport {
  LayoutReport layout;
  PassReport rewrites;       ///< Of the back end, before and after layout.
  PassReport expansion;      ///< Composites that the back end cannot run, replaced by their definitions.
  size_t prepare_nodes = 0;  ///< The first nodes, which run once.
};
/// Turns any graph into the graph of a program: the back end's rewrites, definitions for composites that it cannot run, the order of
/// updates, memory formats. The memory plan follows when kernels, and so their scratch memory, are chosen.
CompileReport compile_passes(Graph& graph, const Target& target, LayoutOptions layout);

}  // namespace galley
