#pragma once
// What a gradient rule works with (vector-Jacobian products). The pass `differentiate` makes one for each node it walks over,
// backwards; contributions to a value used several times are summed by the pass.

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
  /// The forward node's input / output. An input that was not given is an absent Value.
  Value in(size_t i) const { return node_.input(i) == kNoValue ? Value() : graph_.at(node_.input(i)); }
  Value out(size_t i = 0) const { return graph_.at(node_.outputs[i]); }
  /// Gradient of the objective with respect to output i; absent where nothing depends on it.
  Value grad(size_t i = 0) const { return output_gradients_[i]; }
  /// Is the gradient of input i asked for? A rule must not build what is not wanted.
  bool wants(size_t i) const { return i < wanted_.size() && wanted_[i]; }
  /// The gradient with respect to input i: same shape and dtype as the input. Ignored where it is not wanted.
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
