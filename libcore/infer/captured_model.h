#pragma once
// A model as a graph before any pass, as Session and capture_training (train/) return it.

#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/nn/parameter.h"
#include "libcore/passes/assign_precision.h"
#include "libcore/recipe/sections.h"
#include "libcore/recipe/selector.h"
#include "libcore/tasks/capture.h"

namespace galley {

/// A captured model. Outputs for training: the scalar "loss" and its parts; for evaluation: metrics and results of the task; for
/// prediction: the model's results and the captured modules.
struct CapturedModel {
  Graph graph;
  std::vector<ParameterSpec> parameters;  ///< In the model's order. Buffers and frozen parameters are not trainable.
  ValueId loss = kNoValue;                ///< For training only.
  CapturedResults results;                ///< Outputs that the task sums, collects and logs.
  PrecisionPolicy precision;              ///< Of the recipe; the graph itself is in f32.
};

/// The items that selectors (`match:`) select from.
std::vector<Selectable> selectables(const std::vector<ParameterSpec>& parameters);

/// The dtype of an array in files of weights and checkpoints: f32 for running statistics that the run holds in low precision
/// (precision.buffers).
DType dtype_in_files(const ParameterSpec& spec);

/// The precision of each module by precision.compute and precision.keep_f32. Throws (kRecipe) for a pattern that matches nothing.
PrecisionPolicy precision_of(const Recipe& recipe, const std::vector<ParameterSpec>& parameters);

/// The result of each module of a captured graph: the first output of the last node of the module or a module in it.
std::map<std::string, ValueId> module_results(const Graph& graph);
/// Adds the results of modules whose paths match a glob (`*` matches dots) as outputs named by these paths. Throws (kUsage) for a glob that
/// matches none.
void add_captured_outputs(Graph& graph, const std::vector<std::string>& capture);

}  // namespace galley
