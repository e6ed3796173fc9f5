#pragma once
// Graph: a captured model. Nodes are in topological order; values (edges) are in single-assignment form. Parameters, buffers and
// optimizer state are named inputs, which nodes may update in place. A pass turns one graph into another.

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

/// A handle to an edge of a graph under construction. Model code computes with it. Cheap to copy; valid as long as its graph exists.
/// A default-constructed Value is absent: an optional input that is not given.
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
  std::string path;  // the module that created it: "layer1.0.conv2"
  Phase phase = Phase::kForward;
  Placement cut = {};  // along axes whose ranks have other attributes: what they hold of the outputs; see differs_by_rank

  template <class T>
  const T& attrs() const {
    const auto* typed = dynamic_cast<const T*>(attributes.get());
    GALLEY_ASSERT(typed != nullptr);
    return *typed;
  }
  bool is(std::string_view name) const { return op->name == name; }
  ValueId input(size_t i) const { return i < inputs.size() ? inputs[i] : kNoValue; }
};

/// Properties of a value.
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
  /// Appends a node: checks its inputs and infers its outputs, which it returns. Errors name the path and the operator.
  std::vector<Value> add_node(const OpDef& op, std::shared_ptr<const Options> attributes, std::vector<ValueId> inputs);
  /// Appends a copy of an existing node (operator, attributes, path, phase) with other inputs.
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

  /// Module path and phase of the nodes added next.
  const std::string& path() const { return path_; }
  void set_path(std::string path) { path_ = std::move(path); }
  Phase phase() const { return phase_; }
  void set_phase(Phase phase) { phase_ = phase; }

  /// For passes that rebuild the list of nodes. Values stay.
  void set_nodes(std::deque<Node> nodes) { nodes_ = std::move(nodes); }
  /// A new activation of that type (for passes that insert nodes by hand).
  ValueId new_value(TensorType type);
  /// For each value, the index of the node that computes it; -1 for inputs.
  std::vector<int> producers() const;
  /// For each value, the indices of the nodes that read it, in order.
  std::vector<std::vector<int>> users() const;
  /// Nodes and outputs that read `from` read `to` instead.
  void replace_uses(ValueId from, ValueId to);
  /// Removes nodes that have no effect and whose outputs are unused. Returns how many.
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

/// Says that the node added last has other attributes on the ranks along an axis (a range that a pass has cut, a constant of the rank), so
/// that they hold so much of its outputs. Returns its first output, which is `made`.
Value differs_by_rank(Value made, PlacementAxis axis, Held held);
/// Infers the placements of all values again, after those of inputs have changed.
void infer_placements(Graph& graph);

/// Positions of the inputs of the node that are given and whose port has that kind, in order.
std::vector<size_t> inputs_of(const Node& node, PortKind kind);

/// Do both formats store an array of this shape in the same order (all dimensions that change places have size 1)?
bool same_bytes(const Shape& shape, const MemoryFormat& a, const MemoryFormat& b);
/// Is output 0 the memory of input 0: a view, or a reorder that moves no bytes? Such a node needs no kernel.
bool is_view(const Graph& graph, const Node& node);

/// Appends `name` to the graph's path, after a dot, and restores the path at the end of the scope.
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

/// Throws InternalError unless every value is computed before it is read, types agree with `infer`, placements with `placement_of`, every
/// state is updated by at most one node and its old value is not read later, what all ranks hold is not updated by values that differ
/// between them, and names are unique.
void verify(const Graph& graph);

/// The graph as readable text, which parse_graph reads.
std::string print(const Graph& graph);
/// Throws Error (code kInput) with line and column where the text is not a graph.
Graph parse_graph(std::string_view text);
/// Attributes that differ from their defaults: "stride=[2,2] padding=[1,1]".
std::string print_attributes(const OpDef& op, const Options* attributes);

}  // namespace galley
