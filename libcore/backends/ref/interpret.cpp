#include "libcore/backends/ref/memory.h"
#include "libcore/backends/ref/ref.h"

namespace galley {

void run_reference(const OpDef& op, RefFunction run, RefCall& call) {
  const bool open = op.gate < 0 || !call.has(static_cast<size_t>(op.gate)) || call.in(static_cast<size_t>(op.gate))[0] != 0;
  if (open) {
    run(call);
    return;
  }
  for (const InPlace& update : op.updates) {
    const auto input = static_cast<size_t>(update.input);
    if (call.has(input)) call.out(static_cast<size_t>(update.output)) = call.in(input);
  }
}

std::map<ValueId, RefArray> interpret(const Graph& graph, const std::map<std::string, RefArray>& feeds, bool round) {
  std::map<ValueId, RefArray> values;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    const auto feed = feeds.find(info.name);
    GALLEY_ASSERT(feed != feeds.end(), "input '", info.name, "' is not fed");
    GALLEY_ASSERT(feed->second.shape == info.type.shape, "input '", info.name, "' is ", info.type.shape, ", fed with ", feed->second.shape);
    RefArray array = feed->second;
    if (round) round_array(info.type.dtype, array);
    values.emplace(id, std::move(array));
  }
  for (const Node& node : graph.nodes()) {
    const RefFunction run = find_reference(node.op->name);
    GALLEY_ASSERT(run != nullptr, node.op->name, " has no reference");
    std::vector<const RefArray*> inputs;
    for (ValueId id : node.inputs) {
      if (id != kNoValue) GALLEY_ASSERT(values.count(id) == 1, node.op->name, " at ", node.path, " reads a value that nothing made");
      inputs.push_back(id == kNoValue ? nullptr : &values.at(id));
    }
    std::vector<RefArray> outputs;
    for (ValueId id : node.outputs) {
      const Shape& shape = graph.type(id).shape;
      outputs.push_back({shape, std::vector<double>(static_cast<size_t>(shape.elements()))});
    }
    RefCall call(node.attributes.get(), context_of(graph, node), std::move(inputs), outputs);
    run_reference(*node.op, run, call);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (round) round_array(graph.type(node.outputs[i]).dtype, outputs[i]);
      values.insert_or_assign(node.outputs[i], std::move(outputs[i]));
    }
  }
  return values;
}

}  // namespace galley
