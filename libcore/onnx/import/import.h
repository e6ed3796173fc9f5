#pragma once
// The nodes of an ONNX file as a model of Galley: what the files of this folder share. The kind "onnx" of the models is in model.cpp.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/nn/builder.h"
#include "libcore/nn/zoo.h"
#include "libcore/onnx/onnx.h"

namespace galley::onnx_import {

struct FileLayout;  // layout.h

/// An open file; its initializers are read once, whatever number of graphs are made of it.
class Source {
 public:
  /// Checks the digest, where the file has one.
  explicit Source(const std::string& path) : file_(path) { file_.verify(); }
  const std::string& path() const { return file_.path(); }
  const OnnxModel& model() const { return file_.model(); }
  Tensor read(const OnnxTensor& tensor) const;
  /// What was found for that key; `find` is asked once.
  std::shared_ptr<const FileLayout> layout(const std::string& key, const std::function<std::shared_ptr<const FileLayout>()>& find) const;

 private:
  OnnxFile file_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const FileLayout>> layouts_;
  mutable std::map<const OnnxTensor*, Tensor> read_;
};

/// A value of the file while its graph is made. Constants become part of the graph where a node on activations reads them: until then they
/// may be folded, transposed, or dequantized.
struct Item {
  Value value;              // where it is in the graph
  Tensor constant;          // where it is known
  bool is_weight = false;   // an initializer of floats: stays a parameter
  bool transposed = false;  // the transpose of the initializer `name`, whose values `constant` holds as they are
  std::string name;         // of the initializer
};

/// A node of the file, or none.
using NodeSet = std::set<const OnnxNode*>;

class Call;
class Importer;
using MakeNode = void (*)(Call& c);
using MakeTable = std::vector<std::pair<std::string_view, MakeNode>>;

/// A node that is being made into operators. What it does not understand it refuses, attributes too.
class Call {
 public:
  Call(Importer& to, const OnnxNode& node) : to(to), node(node) {}

  Importer& to;
  const OnnxNode& node;

  size_t inputs() const { return node.inputs.size(); }
  bool has(size_t i) const { return i < node.inputs.size() && !node.inputs[i].empty(); }
  /// Whether a node or the model reads output i.
  bool needs_output(size_t i) const;
  /// Input i as a value of the graph; throws where it is absent.
  Value x(size_t i) const;
  const Item& item(size_t i) const;
  /// Input i where it is known before the graph runs.
  std::optional<Tensor> constant(size_t i) const;
  std::vector<int64_t> ints(size_t i) const;
  /// The one element of input i; none where it is no known scalar.
  std::optional<double> scalar(size_t i) const;

  int64_t integer(std::string_view attribute, int64_t otherwise);
  double real(std::string_view attribute, double otherwise);
  std::string text(std::string_view attribute, std::string_view otherwise);
  std::vector<int64_t> ints(std::string_view attribute, std::vector<int64_t> otherwise);
  std::vector<std::string> texts(std::string_view attribute);
  const OnnxAttribute* find(std::string_view attribute);
  /// Axes: input i, or the attribute of operators before opset 13 (18).
  std::vector<int64_t> axes(size_t i, std::vector<int64_t> otherwise);
  /// Version of ONNX's operators.
  int64_t opset() const;
  /// Input i, a bool as a number (f32).
  Value number(size_t i) const;
  /// Numbers that the node's operators need, as a value of the graph.
  Value table(const Tensor& values) const;
  /// One number of a dtype, of rank 0.
  Value scalar_value(DType dtype, double value) const;
  /// Throws where the node has an unused attribute.
  void check_attributes() const;

  void set(size_t output, Value value);
  void set(Value value) { set(0, value); }
  void set_constant(Tensor value);
  /// Output 0 is input i itself.
  void pass(size_t i);
  [[noreturn]] void refuse(std::string_view why, std::string_view cure = "") const;

 private:
  std::set<std::string, std::less<>> read_;
};

/// What one capture of a file is told, beside its inputs.
struct ImportOptions {
  std::vector<std::string> outputs;       // of the file, the main one first; nodes that none of them needs are left out
  std::optional<int64_t> batch;           // samples, where the first size of all inputs counts them
  std::optional<int64_t> declared_batch;  // what the file says instead, where it says a number
  bool values = true;                     // of weights; without, the capture is for shapes alone, and no weight is copied
  const NodeSet* spelled =
      nullptr;  // nodes that spell the declared batch in their sizes, as a capture has found them; null: this one finds them
};

class Importer {
 public:
  Importer(Builder& b, std::shared_ptr<const Source> source, ImportOptions options)
      : b_(b), source_(std::move(source)), options_(std::move(options)) {}
  /// Captures the nodes on values of the file's inputs, by their names. Returns the outputs by theirs.
  NamedValues run(const NamedValues& inputs);
  /// Makes one node alone, of known inputs that are inputs "0", "1", ... of the graph, too. Returns its outputs.
  std::vector<Item> run_node(const OnnxNode& node, MakeNode make, const std::vector<Tensor>& inputs);
  /// Nodes that spell the declared batch in their sizes.
  const NodeSet& spelled() const { return spelled_; }
  /// Whether that node does; `fits` is asked where this capture finds them.
  bool spells_batch(const OnnxNode& node, bool fits);

  Builder& builder() { return b_; }
  const OnnxModel& model() const { return source_->model(); }
  Tensor read(const OnnxTensor& tensor) const { return source_->read(tensor); }
  int64_t opset() const { return model().opset(); }
  /// The batch that the file was made for and the graph has not.
  std::optional<int64_t> other_batch() const { return options_.batch == options_.declared_batch ? std::nullopt : options_.declared_batch; }
  std::optional<int64_t> batch() const { return options_.batch; }

  /// Throws where no node before, input or initializer has that name.
  Item& item(const std::string& name);
  /// The transpose of a weight [I,O], as a weight of its own.
  Item& turned(const std::string& name);
  /// The item as a value of the graph.
  Value value(Item& item);
  /// An initializer as a parameter: under its own name where that is one of a module's, else as `leaf` of the node's path.
  Value parameter(Item& item, std::string_view leaf, std::string_view type);
  /// The module that an initializer called MODULE.leaf belongs to; "" where it is called otherwise.
  std::string module_of(const Item& item, std::string_view leaf) const;
  const std::string& path() const { return path_; }
  /// Runs `build` in a module's scope, not below the present node's.
  Value in_module(const std::string& module, const std::function<Value()>& build);
  bool declared(const std::string& name) const { return b_.graph().find_input(name) != kNoValue; }

  void set(const std::string& name, Item item);
  /// The only node that reads a value, where nothing else does; nullptr.
  const OnnxNode* only_reader(const std::string& name) const;
  /// Whether a node reads it, or it is an output of the model.
  bool is_read(const std::string& name) const { return readers_.contains(name) || is_output(name); }
  const OnnxNode* maker(const std::string& name) const;
  std::optional<double> known_scalar(const std::string& name) const;
  /// Numbers under no name of the file, as a value of the graph.
  Value table(const Tensor& values);
  /// The node is part of another, which has been made.
  void skip(const OnnxNode& node) { skipped_.insert(&node); }
  bool skipped(const OnnxNode& node) const { return skipped_.contains(&node); }
  bool is_output(const std::string& name) const { return outputs_.contains(name); }

 private:
  void index();
  void check_version() const;
  void read_initializers();
  NodeSet needed() const;
  void make_checked(const OnnxNode& node);
  void make(const OnnxNode& node);
  NamedValues results();
  std::optional<std::vector<Tensor>> known_inputs(Call& call) const;
  /// Of the layer, where its weight's name says it; else what the node's own name says.
  std::string module_path(const OnnxNode& node) const;

  Builder& b_;
  std::shared_ptr<const Source> source_;
  ImportOptions options_;
  NodeSet spelled_;
  std::string path_;
  std::map<std::string, Item, std::less<>> items_;
  std::map<std::string, std::vector<const OnnxNode*>, std::less<>> readers_;
  std::map<std::string, const OnnxNode*, std::less<>> makers_;
  std::set<std::string, std::less<>> outputs_;
  NodeSet skipped_;
};

MakeTable product_rows();  // convolutions, matrix products
MakeTable norm_rows();
MakeTable pool_rows();
MakeTable resize_rows();
MakeTable recurrent_rows();
MakeTable elementwise_rows();  // functions of one or several values
MakeTable shape_rows();        // what moves elements
MakeTable index_rows();        // elements at indices
MakeTable reduce_rows();
MakeTable loss_rows();
MakeTable quantize_rows();
MakeNode find_row(std::string_view op_type);

/// The result of a node on known values, where it is small and this can tell: sizes, axes, and what is computed of them.
std::optional<Tensor> fold(Call& c, const std::vector<Tensor>& inputs);
/// The results of a node that `fold` does not know, computed by the reference back end, where its inputs and outputs are small.
std::optional<std::vector<Tensor>> evaluate(const OnnxNode& node, MakeNode make, std::shared_ptr<const Source> source,
                                            const std::vector<Tensor>& inputs);
/// Marks the nodes of a function that exporters write out (gelu, silu, hardswish) and makes it; false where this node is none of them.
bool make_pattern(Call& c);

constexpr int64_t kMostKnown = 4096;  // elements of an array that is computed before the model runs
std::vector<int64_t> to_ints(const Tensor& tensor);
Tensor from_ints(const std::vector<int64_t>& values);
/// Input i, a parameter of the layer where the file holds it; absent where it is.
Value weight_of(Call& c, size_t i, std::string_view leaf, std::string_view type);
/// The axis counted from 0; throws where it is out of range.
int axis_in(int64_t axis, int64_t rank);
/// A shape of the file's numbers; throws where it is none.
Shape shape_of(const std::vector<int64_t>& sizes);
/// Throws that `what` is too large where the product of the sizes other than 0 is: then no product of some of them overflows, of an empty
/// array neither.
void check_sizes(const Shape& shape, std::string_view what);
/// The shape without these axes of size 1, all of them where none is named. Throws where an axis has another size or is out of range.
Shape squeezed_shape(const Shape& from, std::vector<int64_t> axes);
/// The shape with these axes of size 1, which count in the result. Throws where one is out of range or named twice.
Shape unsqueezed_shape(const Shape& from, std::vector<int64_t> axes);

}  // namespace galley::onnx_import
