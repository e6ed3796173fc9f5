#include "libcore/backends/ref/reference.h"

#include "libcore/ops/expansion.h"
#include "libcore/ops/registry.h"

namespace galley {
namespace {

/// The type under which a definition reads it: floating values in double, states as states, no names, no format.
TensorType captured_type(const TensorType& type) { return {is_floating(type.dtype) ? DType::kF64 : type.dtype, type.shape, {}, {}}; }

std::vector<RefArray> zeroed(const Graph& graph, const Node& node) {
  std::vector<RefArray> outputs;
  for (ValueId id : node.outputs) {
    const Shape& shape = graph.type(id).shape;
    outputs.push_back({shape, std::vector<double>(static_cast<size_t>(shape.elements()))});
  }
  return outputs;
}

/// Where the gate is closed, the state that the operator would update stays as it is.
bool gate_closed(const OpDef& op, RefCall& call) {
  const bool open = op.gate < 0 || !call.has(static_cast<size_t>(op.gate)) || call.in(static_cast<size_t>(op.gate))[0] != 0;
  if (open) return false;
  for (const InPlace& update : op.updates) {
    const auto input = static_cast<size_t>(update.input);
    if (call.has(input)) call.out(static_cast<size_t>(update.output)) = call.in(input);
  }
  return true;
}

}  // namespace

/// The captured definition of a composite.
struct Reference::Body {
  Graph graph;
  std::vector<ValueId> inputs;  // kNoValue: not given
  std::vector<ValueId> outputs;
  std::vector<Reference> nodes;
  std::vector<std::vector<ValueId>> last_reads;  // values that no node after this one reads

  void find_last_reads() {
    std::vector<int> last(graph.value_count(), -1);
    int n = 0;
    for (const Node& node : graph.nodes()) {
      for (ValueId id : node.outputs) last[static_cast<size_t>(id)] = n;
      for (ValueId id : node.inputs) {
        if (id != kNoValue) last[static_cast<size_t>(id)] = n;
      }
      ++n;
    }
    for (ValueId id : outputs) last[static_cast<size_t>(id)] = -1;
    last_reads.resize(graph.nodes().size());
    for (size_t id = 0; id < last.size(); ++id) {
      if (last[id] >= 0) last_reads[static_cast<size_t>(last[id])].push_back(static_cast<ValueId>(id));
    }
  }
};

Reference::Reference(Reference&&) noexcept = default;
Reference& Reference::operator=(Reference&&) noexcept = default;
Reference::~Reference() = default;

Reference::Reference(const OpDef& op, std::shared_ptr<const Options> attributes, const OpContext& types)
    : op_(&op), function_(find_reference(op.name)) {
  if (!op.composite()) {
    GALLEY_ASSERT(function_ != nullptr, op.name, " has neither a reference nor a definition");
    return;
  }
  ensure_ops_registered();
  auto body = std::make_unique<Body>();
  std::vector<Value> inputs;
  for (size_t i = 0; i < types.inputs.size(); ++i) {
    const bool given = types.inputs[i] != nullptr;
    const bool state = i < op.inputs.size() && op.inputs[i].kind == PortKind::kState;
    inputs.push_back(
        given ? body->graph.add_input(cat("in", i), captured_type(*types.inputs[i]), state ? ValueRole::kState : ValueRole::kInput)
              : Value());
    body->inputs.push_back(given ? inputs.back().id() : kNoValue);
  }
  OpContext context = types;
  context.attributes = attributes.get();
  Expansion expansion(body->graph, op, std::move(context), std::move(inputs), DType::kF64);
  op.definition(expansion);
  if (expansion.kept()) {
    GALLEY_ASSERT(function_ != nullptr, op.name, " is a primitive in this form, without a reference");
    return;
  }
  function_ = nullptr;
  for (Value output : expansion.result()) {
    GALLEY_ASSERT(output, "the definition of ", op.name, " leaves an output out");
    body->outputs.push_back(output.id());
  }
  for (const Node& node : body->graph.nodes()) body->nodes.emplace_back(*node.op, node.attributes, context_of(body->graph, node));
  body->find_last_reads();
  body_ = std::move(body);
}

void Reference::run(RefCall& call) const {
  if (gate_closed(*op_, call)) return;
  if (function_ != nullptr) return function_(call);
  const Graph& graph = body_->graph;
  std::vector<RefArray> made(graph.value_count());
  std::vector<const RefArray*> values(graph.value_count());
  for (size_t i = 0; i < body_->inputs.size(); ++i) {
    if (body_->inputs[i] != kNoValue) values[static_cast<size_t>(body_->inputs[i])] = &call.in(i);
  }
  size_t n = 0;
  for (const Node& node : graph.nodes()) {
    std::vector<const RefArray*> inputs;
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? nullptr : values[static_cast<size_t>(id)]);
    std::vector<RefArray> outputs = zeroed(graph, node);
    RefCall part(node.attributes.get(), context_of(graph, node), std::move(inputs), outputs);
    body_->nodes[n].run(part);
    for (size_t o = 0; o < outputs.size(); ++o) {
      const auto id = static_cast<size_t>(node.outputs[o]);
      made[id] = std::move(outputs[o]);
      values[id] = &made[id];
    }
    for (ValueId id : body_->last_reads[n]) made[static_cast<size_t>(id)] = RefArray();
    ++n;
  }
  for (size_t o = 0; o < body_->outputs.size(); ++o) call.out(o).v = values[static_cast<size_t>(body_->outputs[o])]->v;
}

Interpreter::Interpreter(const Graph& graph) : graph_(graph) {
  for (const Node& node : graph.nodes()) nodes_.emplace_back(*node.op, node.attributes, context_of(graph, node));
}

}  // namespace galley
