#pragma once
// ExtentBuilder: how an operator treats extents (ops/extents.h). The pass apply_extents makes one for each node that reads images [N,C,H,W]
// which may be smaller than their arrays. The rule says which pixels outside the extents the operator would use, and what
// extents its result has.

#include <array>
#include <map>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/ops/extents.h"

namespace galley {

/// What the pass knows about the values of a graph.
struct KnownExtents {
  bool training = false;                                   ///< A backward pass will keep the values of layers.
  std::map<ValueId, Value> of;                             ///< Extents of each image.
  std::map<ValueId, ValueId> zeroed;                       ///< Of each image that was filled with zeros outside: the result.
  std::map<std::pair<ValueId, std::string>, Value> after;  ///< Extents by those that they were computed from, and how.
};

class ExtentBuilder {
 public:
  ExtentBuilder(Graph& graph, Node& node, KnownExtents& known) : graph_(graph), node_(node), known_(known) {}

  const Node& node() const { return node_; }
  template <class T>
  const T& attrs() const {
    return node_.attrs<T>();
  }
  Value in(size_t i) const { return node_.input(i) == kNoValue ? Value() : graph_.at(node_.input(i)); }
  Value out(size_t i = 0) const { return graph_.at(node_.outputs[i]); }
  size_t input_count() const { return node_.inputs.size(); }
  /// Extents of input i; absent where it is not an image, or fills its array.
  Value extents(size_t i = 0) const;

  /// The operator reads input i with zeros outside, and so does every later reader.
  void zero_outside(size_t i = 0);
  /// The operator alone reads it with that value outside.
  void fill_outside(size_t i, double value);
  /// The operator reads this value as input i, which may be an optional one.
  void read(size_t i, Value value);
  /// Extents after a layer, computed once for equal arguments.
  Value after(Value extents, const ExtentsAfterAttrs& attrs);

  /// Throws Error (kRecipe): this form of the operator cannot take images that are smaller than their arrays.
  [[noreturn]] void refuse(std::string_view form) const;

  /// Output 0 is an image with these extents. Without this call it is not an image.
  void set(Value extents) { known_.of[node_.outputs[0]] = extents; }
  /// Readers of output i read this value instead. Once called for all outputs that are read, the node itself is dropped.
  void replace(size_t i, Value value) { replaced_[node_.outputs[i]] = value.id(); }
  const std::map<ValueId, ValueId>& replaced() const { return replaced_; }
  /// Outside, output 0 has values that are not finite: readers get it with zeros there. set() comes first.
  void clear_result() { clears_ = true; }
  bool clears_result() const { return clears_; }

 private:
  /// Input i with zeros outside. In training that of an activation with f(0) = 0 is f of zeros: then one array is kept for the backward
  /// pass, of the layer and of the activation.
  Value filled_in(size_t i);

  Graph& graph_;
  Node& node_;
  KnownExtents& known_;
  std::map<ValueId, ValueId> replaced_;
  bool clears_ = false;
};

/// Applies the rule of the node's operator. Throws Error (kRecipe) if it has none.
void apply_extent_rule(ExtentBuilder& b);

}  // namespace galley
