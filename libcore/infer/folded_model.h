#pragma once
// FoldedModel: a float model as inference runs it, its weights loaded, and the constants of its layers with their batch norms folded in.

#include <map>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"

namespace galley {

class FoldedModel {
 public:
  /// Captures the model on a batch of its usual input and loads the recipe's float weights. Throws as Session::initialize would.
  explicit FoldedModel(const Session& session);

  /// Folded and fused.
  const Graph& graph() const { return graph_; }
  /// Of the float model, loaded.
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  ParameterStore& store() { return engine_.store(); }
  const ParameterStore& store() const { return engine_.store(); }
  /// Weights and biases of the layers ("L.weight"), batch norms folded in.
  const std::map<std::string, Tensor>& constants() const { return constants_; }

 private:
  Graph graph_;
  std::vector<ParameterSpec> parameters_;
  Engine engine_;
  std::map<std::string, Tensor> constants_;
};

}  // namespace galley
