#pragma once
// Expansion: the argument of a composite's definition, which computes the outputs from the inputs by other operators and adds their nodes
// to the caller's graph. The pass `expand` (passes/expand.h) and the reference kernels run definitions. Both expand emitted composites in
// turn, until only primitives are left.

#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

class Expansion {
 public:
  /// For a node with the attributes and types in `types`. `inputs` are values of `graph` of the same shapes; an input that the node does
  /// not have is absent. `compute`: the floating dtype of the computation.
  Expansion(Graph& graph, const OpDef& op, OpContext types, std::vector<Value> inputs, DType compute);

  Graph& graph() const { return graph_; }
  template <class T>
  const T& attrs() const {
    return types_.attrs<T>();
  }
  DType compute() const { return compute_; }
  bool has(size_t i) const { return i < inputs_.size() && static_cast<bool>(inputs_[i]); }
  size_t input_count() const { return inputs_.size(); }
  /// Types of the node itself; the definition may compute in another dtype.
  const TensorType& type(size_t i) const { return types_.in(static_cast<int>(i)); }
  const TensorType& output_type(size_t i = 0) const { return types_.out(static_cast<int>(i)); }

  /// Input i without dimension names; cast to the compute type where it is floating. Absent where the node does not have it.
  Value in(size_t i);
  /// Input i cast to the compute type, also if it holds integers.
  Value real(size_t i);
  /// A constant of the compute type, a scalar unless a shape is given.
  Value constant(double value, const Shape& shape = {}) const;

  /// Sets output i; `value` has its shape. A floating output may have any floating dtype and no names: the caller casts and names it.
  void set(size_t i, Value value);
  /// Overwrites input `state` with `value` (cast to its dtype), which is output i, unless the operator's gate is closed. Call it last: the
  /// old value must not be read after it.
  void assign(size_t i, size_t state, Value value);
  /// Says that this form of the operator is a primitive, e.g. a convolution without bias, residual and activation.
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

/// f64 if an input or output is f64, else f32: values in low precision are computed in f32 and rounded when they are stored.
DType default_compute_type(const OpContext& types);

}  // namespace galley
