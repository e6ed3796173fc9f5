#pragma once
// A model as a graph, before any pass: what a Session and capture_training (train/) give.

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

/// A captured model. For training: forward pass and scalar output "loss"; for evaluation: what the task sums and collects; for prediction:
/// the model's results and what was asked for.
struct CapturedModel {
  Graph graph;
  std::vector<ParameterSpec> parameters;  // in the model's order; trainable is false for buffers and for what the recipe freezes
  ValueId loss = kNoValue;                // training only
  CapturedResults results;                // what the task sums, collects and logs
  PrecisionPolicy precision;              // of the recipe; the graph is still in f32
};

/// What selectors (`match:`) choose from.
std::vector<Selectable> selectables(const std::vector<ParameterSpec>& parameters);

/// What precision.compute and precision.keep_f32 say, by module. Throws (kRecipe) for a pattern that matches nothing.
PrecisionPolicy precision_of(const Recipe& recipe, const std::vector<ParameterSpec>& parameters);

/// What each module of a captured graph gives: the first output of the last node that it, or a module below it, made.
std::map<std::string, ValueId> module_results(const Graph& graph);
/// Declares, under their paths, the results of the modules that a glob matches (`*` crosses dots). Throws (kUsage) where one matches none.
void add_captured_outputs(Graph& graph, const std::vector<std::string>& capture);

}  // namespace galley
