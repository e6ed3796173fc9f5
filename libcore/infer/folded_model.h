#pragma once
// FoldedModel: the inference graph of a float model with loaded weights, and the layers' constants with folded batch norms.

#include <map>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"

namespace galley {

/// A float model with its loaded weights.
class FoldedModel {
 public:
  /// Captures the model for its default input and loads the recipe's float weights. Throws as Session::initialize.
  explicit FoldedModel(const Session& session);

  /// The folded and fused graph.
  const Graph& graph() const { return graph_; }
  /// Parameters and buffers of the float model; `store` has their values.
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  ParameterStore& store() { return engine_.store(); }
  const ParameterStore& store() const { return engine_.store(); }
  /// Weights and biases of the layers ("L.weight") after folding of batch norms.
  const std::map<std::string, Tensor>& constants() const { return constants_; }

 private:
  Graph graph_;
  std::vector<ParameterSpec> parameters_;
  Engine engine_;
  std::map<std::string, Tensor> constants_;
};

}  // namespace galley
