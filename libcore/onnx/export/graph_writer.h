#pragma once
// What the operators' rows share: names of values, constants, and shapes of which one size is the batch. Inside onnx/export alone.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/onnx/export/export.h"

namespace galley::onnx_export {

/// A size: `size` samples at the batch that was captured, or `per_sample` times the batch.
struct Dim {
  int64_t size = 0;
  int64_t per_sample = 0;  // 0: fixed
  friend bool operator==(const Dim&, const Dim&) = default;
};

OnnxAttribute attribute(std::string name, int64_t value);
OnnxAttribute attribute(std::string name, double value);
OnnxAttribute attribute(std::string name, std::string_view value);
OnnxAttribute attribute(std::string name, std::vector<int64_t> values);
OnnxAttribute attribute(std::string name, Tensor value);
using Attributes = std::vector<OnnxAttribute>;
using Names = std::vector<std::string>;

class GraphWriter {
 public:
  GraphWriter(const OnnxExport& what, OnnxDocument& document);

  const Graph& graph() const { return *what_.graph; }
  /// The node that is being written, for names and errors.
  void set_node(const Node& node) { node_ = &node; }
  [[noreturn]] void refuse(std::string_view reason) const;

  /// Appends a node and returns its outputs' names, one unless told.
  std::string add(std::string_view op, Names inputs, Attributes attributes = {});
  Names add_many(std::string_view op, Names inputs, Attributes attributes, size_t outputs);
  /// The value of node.inputs or node.outputs as a tensor of the file has this name.
  void set(ValueId id, std::string name) { names_[id] = std::move(name); }
  bool known(ValueId id) const { return names_.contains(id); }
  const std::string& name(ValueId id) const;

  /// Constants, each written once.
  std::string ints(const std::vector<int64_t>& values);
  std::string scalar(double value, DType dtype = DType::kF32);
  std::string constant(const Tensor& tensor);
  std::string uniform(int64_t count, double value);
  /// The array of that name that OnnxExport::values gives.
  std::string array(const std::string& name, DType dtype, const Shape& shape);
  std::string array(const std::string& name, DType dtype, const Shape& shape, std::function<Tensor()> values);

  /// Sizes of a value, and as the i64 [rank] tensor that Expand and ConstantOfShape take.
  std::vector<Dim> dims(ValueId id) const;
  std::string shape(const std::vector<Dim>& dims);
  /// x as an array of these sizes.
  std::string reshape(const std::string& x, const std::vector<Dim>& from, const std::vector<Dim>& to);

  void declare_input(ValueId id);
  /// Gives the graph's results their names.
  void finish_outputs(const std::vector<std::pair<std::string, std::string>>& outputs);

 private:
  std::string fresh(const std::string& wish);
  std::string batch();

  const OnnxExport& what_;
  OnnxDocument& document_;
  const Node* node_ = nullptr;
  std::map<ValueId, std::string> names_;
  std::set<std::string> taken_;
  std::map<std::string, std::string> constants_;  // by type and bytes
  std::set<std::string> arrays_;
  std::map<std::string, int> turns_;
  std::string batch_;
  int64_t samples_ = 0, other_samples_ = 0;
};

/// One operator, to be written: its node, and the names of its inputs ("" where absent), which need not be the graph's.
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

/// Writes the operator; returns the names of its results, "" for those that nothing reads.
using WriteNode = Names (*)(const NodeWriter& n);
using WriteTable = std::vector<std::pair<std::string_view, WriteNode>>;
WriteTable layer_rows();        // conv2d, linear, norms, pools, recurrent
WriteTable elementwise_rows();  // functions of one or two values
WriteTable shape_rows();        // what moves elements; reductions

}  // namespace galley::onnx_export
