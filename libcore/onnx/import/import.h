#pragma once
// Import of an ONNX file as a model: declarations shared by the files of this folder. The model kind "onnx" is in model.cpp.

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

namespace galley {
struct AttentionInputs;
struct AttentionAttrs;
}  // namespace galley

namespace galley::onnx_import {

struct FileLayout;  // layout.h

/// An open file. Its initializers are read once and shared by all graphs made from it. Thread-safe.
class Source {
 public:
  /// Opens the file and checks its digest if it has one.
  explicit Source(const std::string& path) : file_(path) { file_.verify(); }
  const std::string& path() const { return file_.path(); }
  const OnnxModel& model() const { return file_.model(); }
  Tensor read(const OnnxTensor& tensor) const;
  /// The cached layout for `key`; `find` computes it on the first call.
  std::shared_ptr<const FileLayout> layout(const std::string& key, const std::function<std::shared_ptr<const FileLayout>()>& find) const;

 private:
  OnnxFile file_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const FileLayout>> layouts_;
  mutable std::map<const OnnxTensor*, Tensor> read_;
};

/// A value of the file during import. A constant becomes part of the graph when a node reads it together with activations; until then it
/// can be folded, transposed or dequantized.
struct Item {
  Value value;              // if it is in the graph
  Tensor constant;          // if it is constant
  bool is_weight = false;   // a float initializer, which becomes a parameter
  bool transposed = false;  // the transpose of the initializer `name`; `constant` holds the untransposed values
  std::string name;         // name of the initializer
  std::string sized;        // name of the value in the file, if the constant was computed from sizes of inputs; "" otherwise
};

/// A set of nodes of the file.
using NodeSet = std::set<const OnnxNode*>;

class Call;
class Importer;
/// Computes an attention [N,T,H,D] in another way; an empty value: as it is.
using Attend = std::function<Value(Importer& to, const AttentionInputs& inputs, const AttentionAttrs& attrs)>;
using MakeNode = void (*)(Call& c);
using MakeTable = std::vector<std::pair<std::string_view, MakeNode>>;

/// A node being imported. Attributes and forms that Galley does not support are errors.
class Call {
 public:
  Call(Importer& to, const OnnxNode& node) : to(to), node(node) {}

  Importer& to;
  const OnnxNode& node;

  size_t inputs() const { return node.inputs.size(); }
  bool has(size_t i) const { return i < node.inputs.size() && !node.inputs[i].empty(); }
  /// Whether a node or the model reads output i.
  bool needs_output(size_t i) const;
  /// Input i as a value of the graph; throws Error if it is absent.
  Value x(size_t i) const;
  const Item& item(size_t i) const;
  /// Input i, if it is constant.
  std::optional<Tensor> constant(size_t i) const;
  /// Input i, which must be a short constant list of integers; throws Error otherwise.
  std::vector<int64_t> ints(size_t i) const;
  /// The element of input i if it is a constant with one element; otherwise nullopt.
  std::optional<double> scalar(size_t i) const;

  /// An attribute, or `otherwise` if it is absent; throws Error if it has another type.
  int64_t integer(std::string_view attribute, int64_t otherwise);
  double real(std::string_view attribute, double otherwise);
  std::string text(std::string_view attribute, std::string_view otherwise);
  std::vector<int64_t> ints(std::string_view attribute, std::vector<int64_t> otherwise);
  std::vector<std::string> texts(std::string_view attribute);
  const OnnxAttribute* find(std::string_view attribute);
  /// The axes: input i, or the attribute of older opsets (before 13 or 18).
  std::vector<int64_t> axes(size_t i, std::vector<int64_t> otherwise);
  /// Version of the ONNX operator set.
  int64_t opset() const;
  /// Input i; a bool is cast to f32.
  Value number(size_t i) const;
  /// A constant that the node needs, as a value of the graph.
  Value table(const Tensor& values) const;
  /// A scalar (rank 0) of a dtype.
  Value scalar_value(DType dtype, double value) const;
  /// Throws Error if the node has an attribute that was not read.
  void check_attributes() const;

  void set(size_t output, Value value);
  void set(Value value) { set(0, value); }
  void set_constant(Tensor value);
  /// Makes output 0 an alias of input i.
  void pass(size_t i);
  /// Throws Error (exit code 4) with the reason and a suggested fix.
  [[noreturn]] void refuse(std::string_view why, std::string_view fix = "") const;

 private:
  std::set<std::string, std::less<>> read_;
};

/// Options of one import, besides its inputs.
struct ImportOptions {
  std::vector<std::string> outputs;              // names in the file, the main one first; nodes that no output needs are skipped
  std::optional<int64_t> batch;                  // number of samples, if the first dimension of all inputs counts them
  std::optional<int64_t> declared_batch;         // the batch that the file declares, if it is a fixed number
  std::map<std::string, Tensor> constants = {};  // inputs with known values
  Attend attend = nullptr;                       // for the attention that is recognized
  bool values = true;                            // whether to read weights; false: only shapes are computed and no weight is copied
  const NodeSet* batch_nodes =
      nullptr;  // nodes with the declared batch in their constant sizes, from an earlier import; null: find them in this one
};

class Importer {
 public:
  Importer(Builder& b, std::shared_ptr<const Source> source, ImportOptions options)
      : b_(b), source_(std::move(source)), options_(std::move(options)) {}
  /// Imports the nodes that the outputs need. `inputs`: values by input name. Returns the outputs by name.
  NamedValues run(const NamedValues& inputs);
  /// Imports a single node; its constant inputs also become the inputs "0", "1", ... of the graph. Returns its outputs.
  std::vector<Item> run_node(const OnnxNode& node, MakeNode make, const std::vector<Tensor>& inputs);
  /// Nodes with the declared batch in their constant sizes.
  const NodeSet& batch_nodes() const { return batch_nodes_; }
  /// Whether that node is one of them; `fits` decides if this import finds them.
  bool has_batch_size(const OnnxNode& node, bool fits);

  Builder& builder() { return b_; }
  const OnnxModel& model() const { return source_->model(); }
  Tensor read(const OnnxTensor& tensor) const { return source_->read(tensor); }
  int64_t opset() const { return model().opset(); }
  /// The batch that the file declares, if the graph has another one.
  std::optional<int64_t> other_batch() const { return options_.batch == options_.declared_batch ? std::nullopt : options_.declared_batch; }
  std::optional<int64_t> batch() const { return options_.batch; }
  const Attend& attend() const { return options_.attend; }

  /// The item of that name; throws Error if no earlier node, input or initializer has it.
  Item& item(const std::string& name);
  /// The transpose of a weight [I,O], as a separate weight.
  Item& transposed_weight(const std::string& name);
  /// The item as a value of the graph; adds constants to the graph. Those that depend on sizes of inputs are computed there by their
  /// nodes: a buffer would have the shape of one batch.
  Value value(Item& item);
  /// An initializer as a parameter: under its own name if that belongs to a module, otherwise as `leaf` of the node's path.
  Value parameter(Item& item, std::string_view leaf, std::string_view type);
  /// The module of an initializer named MODULE.leaf; "" for other names.
  std::string module_of(const Item& item, std::string_view leaf) const;
  const std::string& path() const { return path_; }
  /// Runs `build` in a module's scope, outside the scope of the current node.
  Value in_module(const std::string& module, const std::function<Value()>& build);
  bool declared(const std::string& name) const { return b_.graph().find_input(name) != kNoValue; }

  void set(const std::string& name, Item item);
  /// The node that reads a value if there is exactly one reader and the value is not an output; otherwise nullptr.
  const OnnxNode* only_reader(const std::string& name) const;
  /// Whether a node reads the value or it is an output of the model.
  bool is_read(const std::string& name) const { return readers_.contains(name) || is_output(name); }
  const OnnxNode* producer(const std::string& name) const;
  /// The node of the graph that computed a value; nullptr for inputs and constants.
  const Node* made_by(Value value);
  /// The largest constant that is folded now: large ones, which are masks and indices of tokens, only while there are few of them.
  int64_t largest_constant() const;
  std::optional<double> known_scalar(const std::string& name) const;
  /// A constant that is not in the file, as a value of the graph.
  Value table(const Tensor& values);
  /// Marks the node as already imported as part of another one.
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
  void mark_sized(const OnnxNode& node);
  Value computed(const Item& item);
  NamedValues results();
  std::optional<std::vector<Tensor>> known_inputs(Call& call) const;
  /// The module path: of the layer if its weight's name tells, otherwise from the node's name.
  std::string module_path(const OnnxNode& node) const;

  Builder& b_;
  std::shared_ptr<const Source> source_;
  ImportOptions options_;
  NodeSet batch_nodes_;
  std::string path_;
  std::map<std::string, Item, std::less<>> items_;
  std::map<std::string, std::vector<const OnnxNode*>, std::less<>> readers_;
  std::map<std::string, const OnnxNode*, std::less<>> producers_;
  std::set<std::string, std::less<>> outputs_;
  NodeSet skipped_;
  std::map<ValueId, const Node*> made_;  // of the first `indexed_` nodes of the graph
  size_t indexed_ = 0;
  int64_t folded_ = 0;  // elements of large constants so far
};

MakeTable product_rows();  // convolutions, matrix products
MakeTable norm_rows();
MakeTable pool_rows();
MakeTable resize_rows();
MakeTable recurrent_rows();
MakeTable elementwise_rows();  // element-wise functions
MakeTable shape_rows();        // data movement
MakeTable index_rows();        // gather, scatter and related
MakeTable reduce_rows();
MakeTable loss_rows();
MakeTable quantize_rows();
MakeNode find_row(std::string_view op_type);

/// The result of a node with small constant inputs if this function knows the operator: sizes, axes and arithmetic on them.
std::optional<Tensor> fold(Call& c, const std::vector<Tensor>& inputs);
/// The results of a node that `fold` does not know, computed by the reference back end if inputs and outputs are small.
std::optional<std::vector<Tensor>> evaluate(const OnnxNode& node, MakeNode make, std::shared_ptr<const Source> source,
                                            const std::vector<Tensor>& inputs, int64_t largest);
/// Imports a function that exporters write as several nodes (gelu, silu, hardswish) and skips those nodes. Returns false if the node does
/// not begin one.
bool make_pattern(Call& c);
/// Imports softmax(scale q k^T + bias) v as the operator attention, at its last product. Returns false if the node is not one.
bool make_attention(Call& c);
/// x with its axes permuted; permutations of a permutation become one.
Value permuted(Call& c, Value x, std::vector<int64_t> order);

constexpr int64_t kMaxConstant = 4096;                    // elements of constants that are always folded
constexpr int64_t kMaxTokenConstant = int64_t{1} << 20;   // of masks and indices of tokens
constexpr int64_t kMaxTokenConstants = int64_t{1} << 26;  // of all of these
std::vector<int64_t> to_ints(const Tensor& tensor);
Tensor from_ints(const std::vector<int64_t>& values);
/// Input i as a parameter of the layer if the file has its values; an empty value if it is absent.
Value weight_of(Call& c, size_t i, std::string_view leaf, std::string_view type);
/// The axis counted from 0; throws Error if it is out of range.
int axis_in(int64_t axis, int64_t rank);
/// A shape from sizes in the file; throws Error if they are not valid.
Shape shape_of(const std::vector<int64_t>& sizes);
/// Throws Error that `what` is too large if the product of its nonzero sizes is. Products of any subset of the sizes, also of empty
/// tensors, then cannot overflow.
void check_sizes(const Shape& shape, std::string_view what);
/// The shape without these axes of size 1, or without all axes of size 1 if the list is empty. Throws Error if an axis has another size or
/// is out of range.
Shape squeezed_shape(const Shape& from, std::vector<int64_t> axes);
/// The shape with these axes of size 1 inserted; they count in the result. Throws Error if one is out of range or repeated.
Shape unsqueezed_shape(const Shape& from, std::vector<int64_t> axes);

}  // namespace galley::onnx_import
