#include "libcore/backends/ref/memory.h"
#include "libcore/backends/ref/reference.h"

namespace galley {

std::map<ValueId, RefArray> Interpreter::run(const std::map<std::string, RefArray>& feeds, bool round) const {
  std::map<ValueId, RefArray> values;
  for (ValueId id : graph_.inputs()) {
    const ValueInfo& info = graph_.value(id);
    const auto feed = feeds.find(info.name);
    GALLEY_ASSERT(feed != feeds.end(), "input '", info.name, "' is not fed");
    GALLEY_ASSERT(feed->second.shape == info.type.shape, "input '", info.name, "' is ", info.type.shape, ", fed with ", feed->second.shape);
    RefArray array = feed->second;
    if (round) round_array(info.type.dtype, array);
    values.emplace(id, std::move(array));
  }
  size_t n = 0;
  for (const Node& node : graph_.nodes()) {
    std::vector<const RefArray*> inputs;
    for (ValueId id : node.inputs) {
      if (id != kNoValue) GALLEY_ASSERT(values.count(id) == 1, node.op->name, " at ", node.path, " reads a value that nothing made");
      inputs.push_back(id == kNoValue ? nullptr : &values.at(id));
    }
    std::vector<RefArray> outputs;
    for (ValueId id : node.outputs) {
      const Shape& shape = graph_.type(id).shape;
      outputs.push_back({shape, std::vector<double>(static_cast<size_t>(shape.elements()))});
    }
    RefCall call(node.attributes.get(), context_of(graph_, node), std::move(inputs), outputs);
    nodes_[n++].run(call);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (round) round_array(graph_.type(node.outputs[i]).dtype, outputs[i]);
      values.insert_or_assign(node.outputs[i], std::move(outputs[i]));
    }
  }
  return values;
}

std::map<ValueId, RefArray> interpret(const Graph& graph, const std::map<std::string, RefArray>& feeds, bool round) {
  return Interpreter(graph).run(feeds, round);
}

}  // namespace galley
