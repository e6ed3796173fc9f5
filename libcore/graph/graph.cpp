#include "libcore/graph/graph.h"

#include <algorithm>

namespace galley {
namespace {

/// Sets the formats of the outputs by the operator's rule, and checks those of the inputs.
void apply_format_rule(const OpDef& op, const OpContext& context, std::vector<TensorType>& outputs) {
  if (op.layout.formats == FormatRule::kExplicit || op.layout.formats == FormatRule::kReorder) return;
  const TensorType* first = nullptr;
  for (const TensorType* type : context.inputs) {
    if (type == nullptr || type->format.is_blocked() || type->shape.rank() < 4) continue;
    // Weights of rank 4 are blocked or contiguous, so a channels_last input is an activation.
    if (type->format.is_channels_last() && (first == nullptr || first->format.is_contiguous())) first = type;
    if (first == nullptr) first = type;
  }
  if (first == nullptr) return;
  if (op.layout.formats == FormatRule::kContiguous) {
    GALLEY_ASSERT(!first->format.is_channels_last(), op.name, " takes only contiguous inputs, not ", first->str());
    return;
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    const bool weight = o < op.outputs.size() && op.outputs[o].kind == PortKind::kWeight;
    if (!weight && outputs[o].shape.rank() == first->shape.rank() && first->format.is_channels_last()) outputs[o].format = first->format;
  }
}

}  // namespace

std::string_view role_name(ValueRole role) {
  switch (role) {
    case ValueRole::kActivation: return "activation";
    case ValueRole::kInput: return "input";
    case ValueRole::kParameter: return "parameter";
    case ValueRole::kBuffer: return "buffer";
    case ValueRole::kState: return "state";
    case ValueRole::kCarried: return "carried";
  }
  GALLEY_ASSERT(false);
}

std::string TensorType::str() const {
  std::string text = cat(dtype, " ", shape);
  if (!format.is_contiguous()) text += " " + format.str();
  if (!names.empty()) {
    text += " (";
    for (size_t i = 0; i < names.size(); ++i) text += (i ? "," : "") + (names[i].empty() ? std::string("_") : names[i]);
    text += ")";
  }
  return text;
}

const TensorType& Value::type() const {
  GALLEY_ASSERT(*this, "the value is absent");
  return graph_->type(id_);
}

OpContext context_of(const Graph& graph, const Node& node) {
  OpContext context;
  context.attributes = node.attributes.get();
  for (ValueId id : node.inputs) context.inputs.push_back(id == kNoValue ? nullptr : &graph.type(id));
  for (ValueId id : node.outputs) context.outputs.push_back(&graph.type(id));
  return context;
}

Value differs_by_rank(Value made, PlacementAxis axis, Held held) {
  Node& node = made.graph().nodes().back();
  GALLEY_ASSERT(node.outputs.front() == made.id(), "another node was added after that of %", made.id());
  node.cut[axis] = std::max(node.cut[axis], held);
  for (const ValueId id : node.outputs) {
    Placement& placement = made.graph().value(id).type.placement;
    placement = weaker(placement, node.cut);
  }
  return made;
}

void infer_placements(Graph& graph) {
  for (const Node& node : graph.nodes()) {
    const Placement placement = weaker(placement_of(*node.op, context_of(graph, node)), node.cut);
    for (const ValueId id : node.outputs) graph.value(id).type.placement = placement;
  }
}

std::vector<size_t> inputs_of(const Node& node, PortKind kind) {
  std::vector<size_t> places;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != kNoValue && node.op->input_port(i).kind == kind) places.push_back(i);
  }
  return places;
}

ValueId Graph::new_value(TensorType type) {
  values_.push_back({std::move(type), ValueRole::kActivation, ""});
  return static_cast<ValueId>(values_.size() - 1);
}

Value Graph::add_input(std::string name, TensorType type, ValueRole role) {
  GALLEY_CHECK(input_names_.find(name) == input_names_.end(), "two inputs have the name '", name, "'");
  const ValueId id = new_value(std::move(type));
  value(id).role = role;
  value(id).name = name;
  inputs_.push_back(id);
  input_names_.emplace(std::move(name), id);
  return Value(this, id);
}

std::vector<Value> Graph::add_node(const OpDef& op, std::shared_ptr<const Options> attributes, std::vector<ValueId> inputs) {
  Node node;
  node.op = &op;
  node.attributes = std::move(attributes);
  if (node.attributes == nullptr && op.make_attrs != nullptr) node.attributes = op.make_attrs();
  node.inputs = std::move(inputs);
  node.path = path_;
  node.phase = phase_;
  OpContext context = context_of(*this, node);
  size_t required = 0;
  bool variadic = false;
  for (const Port& port : op.inputs) {
    variadic |= port.variadic;
    if (!port.optional && !port.variadic) GALLEY_ASSERT(context.has(static_cast<int>(required)), op.name, " needs the input ", port.name);
    ++required;
  }
  GALLEY_ASSERT(variadic || node.inputs.size() <= op.inputs.size(), op.name, " takes ", op.inputs.size(), " inputs, but has ",
                node.inputs.size());
  std::vector<TensorType> types;
  try {
    types = op.infer(context);
    apply_format_rule(op, context, types);
    const Placement placement = placement_of(op, context);
    for (TensorType& type : types) type.placement = placement;
  } catch (Error& error) {
    std::string text = cat("[", op.name, "] ", error.message());
    if (!path_.empty()) text += ", at " + path_;
    throw Error(error.code(), text);
  }
  std::vector<Value> results;
  for (TensorType& type : types) {
    node.outputs.push_back(new_value(std::move(type)));
    results.emplace_back(this, node.outputs.back());
  }
  nodes_.push_back(std::move(node));
  return results;
}

std::vector<Value> Graph::add_node_like(const Node& node, std::vector<ValueId> inputs) {
  std::string path = node.path;
  std::swap(path, path_);
  const Phase phase = std::exchange(phase_, node.phase);
  std::vector<Value> results = add_node(*node.op, node.attributes, std::move(inputs));
  path_ = std::move(path);
  phase_ = phase;
  nodes_.back().cut = node.cut;
  for (const ValueId id : nodes_.back().outputs) value(id).type.placement = weaker(type(id).placement, node.cut);
  return results;
}

void Graph::add_output(std::string name, Value value) {
  GALLEY_ASSERT(find_output(name) == kNoValue, "two outputs have the name ", name);
  outputs_.emplace_back(std::move(name), value.id());
}

ValueId Graph::find_input(std::string_view name) const {
  const auto found = input_names_.find(name);
  return found == input_names_.end() ? kNoValue : found->second;
}

ValueId Graph::find_output(std::string_view name) const {
  for (const auto& [output, id] : outputs_) {
    if (output == name) return id;
  }
  return kNoValue;
}

std::vector<int> Graph::producers() const {
  std::vector<int> producers(values_.size(), -1);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (ValueId id : nodes_[n].outputs) producers[static_cast<size_t>(id)] = static_cast<int>(n);
  }
  return producers;
}

std::vector<std::vector<int>> Graph::users() const {
  std::vector<std::vector<int>> users(values_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (ValueId id : nodes_[n].inputs) {
      if (id != kNoValue) users[static_cast<size_t>(id)].push_back(static_cast<int>(n));
    }
  }
  return users;
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (Node& node : nodes_) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
  for (auto& [name, id] : outputs_) {
    if (id == from) id = to;
  }
}

int Graph::remove_dead_nodes() {
  std::vector<bool> live(values_.size());
  for (const auto& [name, id] : outputs_) live[static_cast<size_t>(id)] = true;
  std::deque<Node> kept;
  int removed = 0;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    bool needed = node->op->has_effect || !node->op->updates.empty();
    for (ValueId id : node->outputs) needed |= live[static_cast<size_t>(id)];
    if (!needed) {
      ++removed;
      continue;
    }
    for (ValueId id : node->inputs) {
      if (id != kNoValue) live[static_cast<size_t>(id)] = true;
    }
    kept.push_front(std::move(*node));
  }
  nodes_ = std::move(kept);
  return removed;
}

PathScope::PathScope(Graph& graph, std::string_view name) : graph_(graph), saved_(graph.path()) {
  graph.set_path(saved_.empty() ? std::string(name) : name.empty() ? saved_ : cat(saved_, ".", name));
}

}  // namespace galley
