#pragma once
// What the definition of a composite operator works with: it computes the outputs from the inputs by other operators, whose nodes go into
// the caller's graph. The pass `expand` (passes/expand.h) and the reference kernels run definitions; both expand again what a definition
// emits until only primitives are left.

#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

class Expansion {
 public:
  /// Of a node with these attributes and types (inputs and outputs). `inputs` are values of `graph` of the same shapes; an input that the
  /// node does not have is absent. `compute`: the floating type of the computation.
  Expansion(Graph& graph, const OpDef& op, OpContext types, std::vector<Value> inputs, DType compute);

  Graph& graph() const { return graph_; }
  template <class T>
  const T& attrs() const {
    return types_.attrs<T>();
  }
  DType compute() const { return compute_; }
  bool has(size_t i) const { return i < inputs_.size() && static_cast<bool>(inputs_[i]); }
  size_t input_count() const { return inputs_.size(); }
  /// Types of the node itself, whatever the definition computes in.
  const TensorType& type(size_t i) const { return types_.in(static_cast<int>(i)); }
  const TensorType& output_type(size_t i = 0) const { return types_.out(static_cast<int>(i)); }

  /// Input i without dimension names; cast to the compute type where it is floating. Absent where the node does not have it.
  Value in(size_t i);
  /// Input i in the compute type, integers too.
  Value real(size_t i);
  /// A constant of the compute type, a scalar unless a shape is given.
  Value constant(double value, const Shape& shape = {}) const;

  /// The node's output i, of its shape. A floating output may have any floating type and no names: the caller casts and names it.
  void set(size_t i, Value value);
  /// Input `state` is overwritten by `value` (cast to its type), which is output i, unless the operator's gate is closed. The last nodes of
  /// a definition: they end the old value.
  void assign(size_t i, size_t state, Value value);
  /// This form of the operator is a primitive: a convolution without bias, residual and activation.
  void keep() { kept_ = true; }

  bool kept() const { return kept_; }
  const std::vector<Value>& result() const { return result_; }

 private:
  Graph& graph_;
  const OpDef& op_;
  OpContext types_;
  std::vector<Value> inputs_;  // as given
  std::vector<Value> read_;    // as the definition reads them
  DType compute_;
  bool kept_ = false;
  std::vector<Value> result_;
};

/// f64 where an input or output is f64, else f32: low precision is an agreement on memory, not on arithmetic.
DType default_compute_type(const OpContext& types);

}  // namespace galley
