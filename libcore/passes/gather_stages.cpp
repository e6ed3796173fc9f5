#include "libcore/passes/gather_stages.h"

#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"

namespace galley {

void gather_stages(Graph& graph, const std::map<std::string, int>& roots, const std::map<std::string, bool>& held) {
  Graph made;
  std::map<ValueId, ValueId> map;
  std::map<ValueId, int> root_of;
  for (const ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    const auto root = roots.find(info.name);
    if (root != roots.end()) root_of[id] = root->second;
    if (root == roots.end() || held.at(info.name)) map[id] = made.add_input(info.name, info.type, info.role).id();
  }
  const auto receive = [&](ValueId id) {
    const ValueInfo& info = graph.value(id);
    BroadcastAttrs attrs;
    attrs.name = info.name;
    attrs.root = root_of.at(id);
    made.set_path("ranks");
    TensorType type = info.type;
    type.format = {};
    const Value own = map.count(id) > 0 ? made.at(map.at(id)) : full(made, type, 0);
    const Value whole = broadcast_wait(broadcast_start(own, attrs), attrs);
    made.value(whole.id()).type.names = info.type.names;
    map[id] = whole.id();
    root_of.erase(id);
  };
  for (const Node& node : graph.nodes()) {
    made.set_phase(node.phase);
    for (const ValueId id : node.inputs) {
      if (root_of.count(id) > 0) receive(id);
    }
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(id == kNoValue ? kNoValue : map.at(id));
    const std::vector<Value> outputs = made.add_node_like(node, std::move(inputs));
    for (size_t o = 0; o < outputs.size(); ++o) map[node.outputs[o]] = outputs[o].id();
  }
  for (const auto& [name, id] : graph.outputs()) made.add_output(name, map.at(id));
  graph = std::move(made);
}

}  // namespace galley
