#pragma once
// split_stages: the graph of a micro-batch as the programs of pipeline stages: forward and backward pass of each, and the values that they
// hand over.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// A value that goes to another stage.
struct StageMessage {
  std::string name;
  TensorType type;
  int peer = 0;
};

/// Values have the same names as outputs of one graph and as inputs of another.
struct StageGraphs {
  Graph forward, backward;
  std::vector<StageMessage> receive_forward, send_forward;    ///< Before and after the forward pass.
  std::vector<StageMessage> receive_backward, send_backward;  ///< Before and after the backward pass.
};

/// Splits a graph with forward and backward pass. `cuts`: positions at which stages 2, 3, ... begin. Inputs are inputs of each stage that
/// reads them.
std::vector<StageGraphs> split_stages(const Graph& graph, const std::vector<size_t>& cuts);

}  // namespace galley
