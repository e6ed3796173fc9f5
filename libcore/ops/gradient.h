#pragma once
// GradientBuilder: the argument of an operator's gradient rule (a vector-Jacobian product). The pass `differentiate` makes one
// for each node, in reverse order, and sums the gradients of a value that several nodes read.

#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

class GradientBuilder {
 public:
  GradientBuilder(Graph& graph, const Node& node, std::vector<Value> output_gradients, std::vector<bool> wanted)
      : graph_(graph),
        node_(node),
        output_gradients_(std::move(output_gradients)),
        wanted_(std::move(wanted)),
        result_(node.inputs.size()) {}

  const Node& node() const { return node_; }
  template <class T>
  const T& attrs() const {
    return node_.attrs<T>();
  }
  /// Inputs and outputs of the forward node. An input that was not given is an absent Value.
  Value in(size_t i) const { return node_.input(i) == kNoValue ? Value() : graph_.at(node_.input(i)); }
  Value out(size_t i = 0) const { return graph_.at(node_.outputs[i]); }
  /// Gradient of the objective with respect to output i; absent where nothing depends on it.
  Value grad(size_t i = 0) const { return output_gradients_[i]; }
  /// Is the gradient of input i needed? A rule must not emit nodes for gradients that are not.
  bool wants(size_t i) const { return i < wanted_.size() && wanted_[i]; }
  /// Sets the gradient of input i, with the shape and dtype of the input. Ignored if it is not needed.
  void set(size_t i, Value gradient);
  const std::vector<Value>& result() const { return result_; }

 private:
  Graph& graph_;
  const Node& node_;
  std::vector<Value> output_gradients_;
  std::vector<bool> wanted_;
  std::vector<Value> result_;
};

}  // namespace galley
