#pragma once
// State shared by the operators' rows: names of values, constants, and shapes with a batch dimension. Private to onnx/export.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/onnx/export/export.h"

namespace galley::onnx_export {

/// A dimension size: `size` for the captured batch; proportional to the batch if `per_sample` is not 0.
struct Dim {
  int64_t size = 0;
  int64_t per_sample = 0;  // size per sample; 0: fixed
  friend bool operator==(const Dim&, const Dim&) = default;
};

/// Makes an attribute.
OnnxAttribute attribute(std::string name, int64_t value);
OnnxAttribute attribute(std::string name, double value);
OnnxAttribute attribute(std::string name, std::string_view value);
OnnxAttribute attribute(std::string name, std::vector<int64_t> values);
OnnxAttribute attribute(std::string name, Tensor value);
using Attributes = std::vector<OnnxAttribute>;
using Names = std::vector<std::string>;

/// Collects the nodes and initializers of a file.
class GraphWriter {
 public:
  GraphWriter(const OnnxExport& request, OnnxDocument& document);

  const Graph& graph() const { return *request_.graph; }
  /// Sets the node being exported, used for names and error messages.
  void set_node(const Node& node) { node_ = &node; }
  /// Throws Error (exit code 3) that the current node cannot be exported.
  [[noreturn]] void refuse(std::string_view reason) const;

  /// Appends a node and returns the names of its outputs.
  std::string add(std::string_view op, Names inputs, Attributes attributes = {});
  Names add_many(std::string_view op, Names inputs, Attributes attributes, size_t outputs);
  /// Records the ONNX name of a graph value.
  void set(ValueId id, std::string name) { names_[id] = std::move(name); }
  bool known(ValueId id) const { return names_.contains(id); }
  const std::string& name(ValueId id) const;

  /// Constants; equal ones share a node. Each returns the constant's name.
  std::string ints(const std::vector<int64_t>& values);
  std::string scalar(double value, DType dtype = DType::kF32);
  std::string constant(const Tensor& tensor);
  std::string uniform(int64_t count, double value);
  /// Adds an initializer with the values of OnnxExport::values (or of `values`) once; returns its name.
  std::string array(const std::string& name, DType dtype, const Shape& shape);
  std::string array(const std::string& name, DType dtype, const Shape& shape, std::function<Tensor()> values);

  /// The sizes of a value, and an i64 [rank] tensor of sizes as Expand and ConstantOfShape take it.
  std::vector<Dim> dims(ValueId id) const;
  std::string shape(const std::vector<Dim>& dims);
  /// Reshapes x.
  std::string reshape(const std::string& x, const std::vector<Dim>& from, const std::vector<Dim>& to);

  void declare_input(ValueId id);
  /// Renames the graph's results to the names of the model's outputs and declares the outputs.
  void finish_outputs(const std::vector<std::pair<std::string, std::string>>& outputs);

 private:
  std::string unique_name(const std::string& wish);
  std::string batch();

  const OnnxExport& request_;
  OnnxDocument& document_;
  const Node* node_ = nullptr;
  std::map<ValueId, std::string> names_;
  std::set<std::string> used_names_;
  std::map<std::string, std::string> constants_;  // key: type and bytes
  std::set<std::string> arrays_;
  std::map<std::string, int> suffixes_;
  std::string batch_;
  int64_t samples_ = 0, other_samples_ = 0;
};

/// One operator to export: its node and the ONNX names of its inputs ("" if absent), which may differ from the node's.
struct NodeWriter {
  GraphWriter& to;
  const Node& node;
  const Names& inputs;

  template <class T>
  const T& attrs() const {
    return node.attrs<T>();
  }
  const std::string& in(size_t i) const { return inputs[i]; }
  bool has(size_t i) const { return i < inputs.size() && !inputs[i].empty(); }
  const TensorType& type(size_t i) const { return to.graph().type(node.inputs[i]); }
  const TensorType& result() const { return to.graph().type(node.outputs[0]); }
};

/// Exports an operator; returns the names of its outputs, "" for those that ONNX does not have.
using WriteNode = Names (*)(const NodeWriter& n);
using WriteTable = std::vector<std::pair<std::string_view, WriteNode>>;
WriteTable layer_rows();  // conv2d, linear, norms, pools, recurrent
WriteTable attention_rows();
WriteTable elementwise_rows();  // element-wise operators
WriteTable shape_rows();        // data movement and reductions

}  // namespace galley::onnx_export
