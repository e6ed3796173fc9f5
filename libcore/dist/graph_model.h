#pragma once
// The plan model of a captured training graph: units of its modules, segments with the cost of their operators, and the memory of its
// activations.

#include <functional>
#include <string>
#include <vector>

#include "libcore/dist/plan_model.h"
#include "libcore/graph/graph.h"

namespace galley {

/// A parameter of the graph and the module that owns it.
struct GraphParameter {
  std::string name, module;
  bool trained = true;
  int64_t group = 0, order = -1;  ///< PlanParameter
};

/// Which modules are units.
struct WrapRule {
  int64_t parameters = 100'000'000;
  /// If set: whether a module is a unit, instead of the rule by count.
  std::function<bool(const std::string& module)> selects;
};

/// What a graph does not say of itself.
struct GraphModelOptions {
  WrapRule wrap;
  double samples = 1;
  /// Time of each node of the graph; empty, or negative for a node: by the rates of the cluster.
  std::vector<double> node_seconds;
};

/// Units of modules: the paths of the units' modules in order, "" for the parameters that no other unit holds. By count, a module is a unit
/// if it has as many parameters outside of units below it; a list of modules (children with numbers as names) is none, and its
/// consecutive items are put together until they have as many.
struct ModuleUnits {
  std::vector<std::string> names;
  /// The unit of each parameter.
  std::vector<int> of;
};
ModuleUnits module_units(const std::vector<std::pair<std::string, int64_t>>& modules_and_elements, const WrapRule& rule);

/// The model. The graph is differentiated and has its updates; it may be compiled. `parameters`: all named inputs of the role kParameter.
PlanModel graph_model(const Graph& graph, const std::vector<GraphParameter>& parameters, const GraphModelOptions& options);

/// The model of one rank of `ranks` that divide the matrices of blocks, embeddings and head among them, and norms and residual sums along
/// the sequence. Blocks are the items of lists of modules. Throws an Error (kRecipe) if the model has none.
PlanModel tensor_parallel(const PlanModel& model, int64_t ranks);

}  // namespace galley
