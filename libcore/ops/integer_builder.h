#pragma once
// IntegerBuilder: the argument of an operator's integer form (OpDef::integer_form, dynamic_form, f8_form, channel_scale). It holds a node
// of the float graph, and the values of its inputs in the quantized graph, into which the form emits operators on integers.
// passes/convert_quantized.cpp makes one builder for each node.

#include <utility>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/quant_params.h"

namespace galley {

/// A weight as it is stored: integers with zero point 0, or f8_e4m3.
struct IntegerWeight {
  Value values;          // i8 or f8_e4m3, of the weight's shape; of kScale [C,1,1,1]
  Value scale;           // f32 [O]
  bool reduced = false;  // the sum of two products fits 16 bits: |w| <= 64, or activations in 0..127
};

class IntegerBuilder {
 public:
  /// `inputs` has a value for each input of the node (absent inputs included), `maps` the scale and zero point of each integer input, else
  /// nullptr. Both graphs and all maps must outlive the builder.
  struct Operands {
    std::vector<Value> inputs;
    std::vector<const QuantParams*> maps;
    const QuantParams* result = nullptr;  // of output 0; nullptr: the result is real
    std::vector<IntegerWeight> weights;   // one for each port of kind kWeight, in order; one for kScale
    Value bias;                           // of a layer, f32 [O], or absent
  };
  IntegerBuilder(const Graph& real, const Node& node, Operands operands)
      : real_(real), node_(node), operands_(std::move(operands)), results_(node.outputs.size()) {}

  const Node& node() const { return node_; }
  template <class T>
  const T& attrs() const {
    return node_.attrs<T>();
  }
  /// Types in the float graph.
  const TensorType& in_type(size_t i) const { return real_.type(node_.inputs[i]); }
  const TensorType& out_type(size_t i = 0) const { return real_.type(node_.outputs[i]); }

  size_t inputs() const { return node_.inputs.size(); }
  /// Input i: integers with the map `map(i)`, or real values. Absent if the node has none, and for weights and biases of layers.
  Value in(size_t i) const { return i < operands_.inputs.size() ? operands_.inputs[i] : Value(); }
  /// Scale and zero point of input i, which holds integers; for f8_form the scale of x, which is real.
  const QuantParams& map(size_t i) const {
    GALLEY_ASSERT(i < operands_.maps.size() && operands_.maps[i] != nullptr, node_.op->name, ": input ", i, " has no map");
    return *operands_.maps[i];
  }
  /// Scale and zero point that output 0 must have; nullptr: it must be real.
  const QuantParams* result_map() const { return operands_.result; }
  const IntegerWeight& weight(size_t i = 0) const { return operands_.weights[i]; }
  Value bias() const { return operands_.bias; }

  void set(Value result) { set(0, result); }
  void set(size_t output, Value result) {
    if (output >= results_.size()) results_.resize(output + 1);  // channel_scale sets two values for a node with one output
    results_[output] = result;
  }
  /// Absent where the form set none.
  const std::vector<Value>& results() const { return results_; }

 private:
  const Graph& real_;
  const Node& node_;
  Operands operands_;
  std::vector<Value> results_;
};

/// Emits the operator on integers that replaces the node: by its integer_form; the same operator for kPassThrough, a look-up for kTable.
void build_integer_form(IntegerBuilder& builder);

/// Sets the maps of input 0 and of the result in the attributes.
template <class Attrs>
void set_input_and_result(const IntegerBuilder& b, Attrs& attrs) {
  attrs.set_input(b.map(0));
  if (b.result_map() != nullptr) attrs.set_output(*b.result_map());
}

}  // namespace galley
