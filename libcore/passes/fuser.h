#pragma once
// Fuser: merges neighboring nodes of a graph into one and keeps track of the producer and the readers of each value. Fusion passes and the
// rewrites of back ends use it.

#include <set>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Works on a copy of the list of nodes; `finish` puts the remaining nodes into the graph. Nodes are identified by their index in the list.
class Fuser {
 public:
  explicit Fuser(Graph& graph);

  size_t size() const { return nodes_.size(); }
  Node& node(size_t n) { return nodes_[n]; }
  const Node& node(size_t n) const { return nodes_[n]; }
  bool gone(size_t n) const { return gone_[n]; }
  /// The node that computes a value, or -1.
  int producer(ValueId id) const { return id == kNoValue ? -1 : producers_[static_cast<size_t>(id)]; }
  /// The nodes that read a value.
  const std::vector<int>& users(ValueId id) const { return users_[static_cast<size_t>(id)]; }
  bool is_output(ValueId id) const { return outputs_.count(id) > 0; }
  /// Why its producer and its reader cannot be fused; "": they can.
  std::string reason_against(ValueId id) const;
  /// A value for an additional output of a merged node.
  ValueId new_value(TensorType type);

  /// Replaces `reader` by `merged`, which computes the same output 0; removes `inner`.
  void merge(size_t reader, size_t inner, Node merged, std::string what);
  /// Replaces `inner` by `merged`, which computes output 0 of `reader`; removes `reader`.
  void merge_into(size_t inner, size_t reader, Node merged, std::string what);
  /// `reader` reads the inputs of `inner` instead; removes `inner`.
  void absorb(size_t reader, size_t inner);
  /// Removes a node whose outputs a merged node computes.
  void remove(size_t n) { gone_[n] = true; }

  /// Puts the remaining nodes into the graph. Moves readers after the producers of what they read, and updates of state after such readers
  /// of the old state.
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

/// Do both inputs of a binary node have the shape of its output, so that neither is broadcast?
bool adds_alike(const Graph& graph, const Node& node);

}  // namespace galley
