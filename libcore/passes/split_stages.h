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

/// Where stages may begin: for each node of the forward pass, in order, its work, its module, whether one value alone crosses to the
/// nodes from it on, and whether it is the first that reads some parameter.
struct StagePositions {
  std::vector<double> costs;
  std::vector<std::string> paths;
  std::vector<bool> may_begin, first_reads;
};
StagePositions stage_positions(const Graph& graph);

/// Splits a graph with forward and backward pass. `cuts`: positions at which stages 2, 3, ... begin. Inputs are inputs of each stage that
/// reads them.
std::vector<StageGraphs> split_stages(const Graph& graph, const std::vector<size_t>& cuts);

}  // namespace galley
