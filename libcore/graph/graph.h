#pragma once
// Graph: a captured model. Nodes in topological order, values (edges) in single-assignment form; parameters, buffers and
// optimizer state are named inputs that nodes may update in place. Passes go from graph to graph.

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/graph/op_def.h"
#include "libcore/graph/tensor_type.h"

namespace galley {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

enum class ValueRole : uint8_t {
  kActivation,  // made by a node
  kInput,       // fed each run: batch, labels, learning rate, step, random key
  kParameter,   // trained
  kBuffer,      // saved with the model, not trained: running statistics
  kState,       // optimizer moments, EMA weights, accumulated gradients
  kCarried,     // owned by one request and shared by its executions: key-value cache, recurrent state
};
std::string_view role_name(ValueRole role);

enum class Phase : uint8_t { kForward, kBackward, kUpdate };

class Graph;

/// A handle to an edge of a graph under construction: what model code computes with. Cheap to copy; valid while its
/// graph lives. A default-made Value is absent (an optional input that is not given).
class Value {
 public:
  Value() = default;
  Value(Graph* graph, ValueId id) : graph_(graph), id_(id) {}
  explicit operator bool() const { return graph_ != nullptr && id_ != kNoValue; }
  Graph& graph() const { return *graph_; }
  ValueId id() const { return id_; }
  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  /// Size of dimension 1.
  int64_t channels() const { return shape()[1]; }
  friend bool operator==(const Value&, const Value&) = default;

 private:
  Graph* graph_ = nullptr;
  ValueId id_ = kNoValue;
};

/// An operator applied to values.
struct Node {
  const OpDef* op = nullptr;
  std::shared_ptr<const Options> attributes;  // immutable; nullptr where the op has none
  std::vector<ValueId> inputs;                // kNoValue: optional input not given
  std::vector<ValueId> outputs;
  std::string path;  // module that made it: "layer1.0.conv2"
  Phase phase = Phase::kForward;

  template <class T>
  const T& attrs() const {
    const auto* typed = dynamic_cast<const T*>(attributes.get());
    GALLEY_ASSERT(typed != nullptr);
    return *typed;
  }
  bool is(std::string_view name) const { return op->name == name; }
  ValueId input(size_t i) const { return i < inputs.size() ? inputs[i] : kNoValue; }
};

/// What the graph knows of a value.
struct ValueInfo {
  TensorType type;
  ValueRole role = ValueRole::kActivation;
  std::string name;  // inputs, parameters, buffers, state; "" for activations
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = default;  // nodes share immutable attributes
  Graph& operator=(const Graph&) = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;

  /// A named input. Names of one graph are unique.
  Value add_input(std::string name, TensorType type, ValueRole role);
  /// Appends a node: checks and infers, adds path and op name to an error's text. Returns its outputs.
  std::vector<Value> add_node(const OpDef& op, std::shared_ptr<const Options> attributes, std::vector<ValueId> inputs);
  /// The same, from an existing node (its path and phase) with other inputs.
  std::vector<Value> add_node_like(const Node& node, std::vector<ValueId> inputs);
  /// Declares a result. Names of one graph are unique.
  void add_output(std::string name, Value value);
  void add_output(std::string name, ValueId value) { outputs_.emplace_back(std::move(name), value); }
  void clear_outputs() { outputs_.clear(); }

  const std::deque<Node>& nodes() const { return nodes_; }
  std::deque<Node>& nodes() { return nodes_; }
  const ValueInfo& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  ValueInfo& value(ValueId id) { return values_[static_cast<size_t>(id)]; }
  const TensorType& type(ValueId id) const { return value(id).type; }
  size_t value_count() const { return values_.size(); }
  /// Named inputs in order of declaration.
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<std::pair<std::string, ValueId>>& outputs() const { return outputs_; }
  std::vector<std::pair<std::string, ValueId>>& outputs() { return outputs_; }
  /// The named input (any role), or kNoValue.
  ValueId find_input(std::string_view name) const;
  ValueId find_output(std::string_view name) const;
  Value at(ValueId id) { return Value(this, id); }

  /// Where captured nodes belong: module path and phase of the nodes added next.
  const std::string& path() const { return path_; }
  void set_path(std::string path) { path_ = std::move(path); }
  Phase phase() const { return phase_; }
  void set_phase(Phase phase) { phase_ = phase; }

  /// For passes that rebuild: the node list is replaced; values stay.
  void set_nodes(std::deque<Node> nodes) { nodes_ = std::move(nodes); }
  /// A new activation of that type (for passes that insert nodes by hand).
  ValueId new_value(TensorType type);
  /// Node index that makes each value, -1 for inputs.
  std::vector<int> producers() const;
  /// Node indices that read each value, in order.
  std::vector<std::vector<int>> users() const;
  /// Reads of `from` in nodes and outputs become reads of `to`.
  void replace_uses(ValueId from, ValueId to);
  /// Drops nodes without effect whose outputs nobody reads. Returns how many.
  int remove_dead_nodes();

 private:
  std::deque<Node> nodes_;
  std::deque<ValueInfo> values_;
  std::vector<ValueId> inputs_;
  std::map<std::string, ValueId, std::less<>> input_names_;
  std::vector<std::pair<std::string, ValueId>> outputs_;
  std::string path_;
  Phase phase_ = Phase::kForward;
};

/// Types of a node's inputs and outputs, for infer, cost and kernels.
OpContext context_of(const Graph& graph, const Node& node);

/// Places of the node's given inputs whose ports are of that kind, in order.
std::vector<size_t> inputs_of(const Node& node, PortKind kind);

/// Are the bytes of both formats the same for this shape (the dimensions that change place have size 1)?
bool same_bytes(const Shape& shape, const MemoryFormat& a, const MemoryFormat& b);
/// Is output 0 the very memory of input 0: a view, or a reorder between formats of the same bytes?
bool is_view(const Graph& graph, const Node& node);

/// Restores path and phase of the graph at the end of a scope. `name` is appended to the path with a dot.
class PathScope {
 public:
  PathScope(Graph& graph, std::string_view name);
  ~PathScope() { graph_.set_path(std::move(saved_)); }
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  Graph& graph_;
  std::string saved_;
};

/// Throws InternalError where the graph breaks a law: every input is made before it is read, types agree with infer, an
/// in-place update has one writer and no later reader of the old value, names are unique.
void verify(const Graph& graph);

/// Text that a person can read, and that parse_graph reads back.
std::string print(const Graph& graph);
/// Throws Error (code kInput) with line and column where the text is not a graph.
Graph parse_graph(std::string_view text);
/// Attributes that differ from their defaults: "stride=[2,2] padding=[1,1]".
std::string print_attributes(const OpDef& op, const Options* attributes);

}  // namespace galley
