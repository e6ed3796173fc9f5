#pragma once
// Nodes around collectives, for passes that divide work among ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// Sets path and phase of the nodes that are added, until the end of the scope.
class CollectiveScope {
 public:
  CollectiveScope(Graph& graph, Phase phase);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  Graph& graph_;
  std::string path_;
  Phase phase_;
};

/// Moves the nodes from `first` on to directly after node `after`. They read nothing that is made later.
void move_nodes(Graph& graph, size_t first, int after);
TensorType flat_type(DType dtype, int64_t elements);
/// The values one after the other, each from its place in `at` on, with zeros between them and up to `elements`.
Value flat_array(Graph& graph, const std::vector<Value>& values, const std::vector<int64_t>& at, DType dtype, int64_t elements);
/// The part of a flat array that is one tensor of it.
Value tensor_of(Value array, int64_t at, const Shape& shape);

}  // namespace galley
