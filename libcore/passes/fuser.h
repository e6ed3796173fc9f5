#pragma once
// Fuser: merges neighbouring nodes of a graph into one, keeping track of who makes and reads each value. What fusion passes and the
// rewrites of back ends are written with.

#include <set>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Works on a copy of the node list; `finish` puts the nodes that are left into the graph. Nodes are named by their index in the list.
class Fuser {
 public:
  explicit Fuser(Graph& graph);

  size_t size() const { return nodes_.size(); }
  Node& node(size_t n) { return nodes_[n]; }
  bool gone(size_t n) const { return gone_[n]; }
  /// The node that makes a value, or -1.
  int producer(ValueId id) const { return id == kNoValue ? -1 : producers_[static_cast<size_t>(id)]; }
  /// The nodes that read a value.
  const std::vector<int>& users(ValueId id) const { return users_[static_cast<size_t>(id)]; }
  bool is_output(ValueId id) const { return outputs_.count(id) > 0; }
  /// Why the value cannot vanish into its reader, or "".
  std::string reason_against(ValueId id) const;
  /// For an output that a merged node has in addition to those of the nodes that it replaces.
  ValueId new_value(TensorType type);

  /// `merged` takes the place of `reader` and makes its output 0; `inner` is removed.
  void merge(size_t reader, size_t inner, Node merged, std::string what);
  /// `merged` takes the place of `inner` and makes output 0 of `reader`, which is removed.
  void merge_into(size_t inner, size_t reader, Node merged, std::string what);
  /// `reader` now reads the inputs of `inner`, which is removed.
  void absorb(size_t reader, size_t inner);
  /// Removes a node whose outputs a merged node makes.
  void remove(size_t n) { gone_[n] = true; }

  /// Puts the remaining nodes into the graph. Readers of values that are made later than before follow them.
  void finish();

  /// `merge` and `merge_into` add to `done`.
  PassReport report;

 private:
  void rename_user(ValueId id, size_t from, size_t to);

  Graph& graph_;
  std::deque<Node> nodes_;
  std::vector<int> producers_;
  std::vector<std::vector<int>> users_;
  std::vector<bool> gone_;
  std::set<ValueId> outputs_;
};

/// Do both inputs of an add (or another binary node) have the shape of its output, so that neither is broadcast?
bool adds_alike(const Graph& graph, const Node& node);

}  // namespace galley
