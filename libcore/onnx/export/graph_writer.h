#pragma once
// State shared by the operators' rows: names of values, constants, and shapes with a batch dimension. Private to onnx/export.

#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/onnx/export/export.h"

namespace galley::onnx_export {

/// The size of a dimension: (samples, or 1 if it does not depend on them) * (fixed + tokens * T + past * P), where T is the number of
/// tokens and P that of earlier tokens.
struct Dim {
  int64_t size = 0;  // of the first capture
  bool samples = false;
  int64_t fixed = 0, tokens = 0, past = 0;

  Dim() = default;
  explicit Dim(int64_t known) : size(known), fixed(known) {}
  bool open() const { return samples || tokens != 0 || past != 0; }
  /// This size, `count` times.
  Dim times(int64_t count) const {
    Dim made = *this;
    made.size *= count, made.fixed *= count, made.tokens *= count, made.past *= count;
    return made;
  }
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
  int64_t positions() const { return request_.positions; }
  /// Sets the node being exported, used for names and error messages.
  void set_node(const Node& node) { node_ = &node; }
  /// Throws Error (exit code 3) that the current node cannot be exported.
  [[noreturn]] void refuse(std::string_view reason) const;

  /// Appends a node and returns the names of its outputs.
  std::string add(std::string_view op, Names inputs, Attributes attributes = {});
  Names add_many(std::string_view op, Names inputs, Attributes attributes, size_t outputs);
  /// Appends a Loop of `count` (i64, one value) rounds and returns its result: in axis 0, what `body` returns for each round, whose type
  /// is `each`. The body gets the name of the number of the round, i64 [], and may read other values.
  std::string loop(const std::string& count, const TensorType& each, const std::function<std::string(const std::string& round)>& body);
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
  /// A size that is an attribute of the current node.
  Dim dim(const std::function<int64_t(const Node&)>& attribute) const;
  /// An i64 [1] tensor with a size.
  std::string size(const Dim& dim) { return shape({dim}); }
  std::string shape(const std::vector<Dim>& dims);
  /// Permutes the axes of x. What undoes a permutation is left out.
  std::string transpose(const std::string& x, std::vector<int64_t> order);
  /// Reshapes x.
  std::string reshape(const std::string& x, const std::vector<Dim>& from, const std::vector<Dim>& to);

  void declare_input(ValueId id);
  /// Renames the graph's results to the names of the model's outputs and declares the outputs.
  void finish_outputs(const std::vector<std::pair<std::string, std::string>>& outputs);

 private:
  /// An open size: the other capture, the input and the axis where the size can be read, and its values in both captures.
  struct Symbol {
    const Graph* other = nullptr;
    std::string input;
    int axis = 0;
    int64_t base = 0, step = 0;
    std::string name;  // in the file, of an i64 [1] tensor
  };
  enum SymbolKind { kSamples, kTokens, kPast };

  std::string unique_name(const std::string& wish);
  void find_symbols();
  const std::string& symbol(SymbolKind kind);
  void remove_unread();
  std::string symbol_sum(const Dim& dim);
  /// The size that has these values in the first capture and in those of the symbols.
  Dim fitted(int64_t size, const std::array<int64_t, 3>& others) const;
  std::string text(const Dim& dim) const;
  OnnxDimension declared(const Dim& dim) const;
  std::string composed(const std::string& x, std::vector<int64_t>& order) const;

  const OnnxExport& request_;
  OnnxDocument& document_;
  const Node* node_ = nullptr;
  std::map<ValueId, std::string> names_;
  std::set<std::string> used_names_;
  std::map<std::string, std::string> constants_;  // key: type and bytes
  std::set<std::string> arrays_;
  std::map<std::string, std::pair<std::string, std::vector<int64_t>>> transposed_;  // name -> what it permutes, and how
  std::map<std::string, int> suffixes_;
  std::map<std::string, Names, std::less<>> same_;  // results of nodes, by what determines them
  std::array<Symbol, 3> symbols_;
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
WriteTable rotary_rows();
WriteTable elementwise_rows();  // element-wise operators
WriteTable shape_rows();        // data movement and reductions
WriteTable detection_rows();    // boxes and regions

}  // namespace galley::onnx_export
