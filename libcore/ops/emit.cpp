#include "libcore/ops/emit.h"

#include "libcore/ops/registry.h"

namespace galley {

std::vector<Value> emit_all(const OpDef& op, std::unique_ptr<Options> attributes, std::span<const Value> inputs) {
  ensure_ops_registered();
  Graph* graph = nullptr;
  std::vector<ValueId> ids;
  for (const Value& input : inputs) {
    ids.push_back(input ? input.id() : kNoValue);
    if (!input) continue;
    GALLEY_ASSERT(graph == nullptr || graph == &input.graph(), "the inputs belong to different graphs: ", op.name);
    graph = &input.graph();
  }
  GALLEY_ASSERT(graph != nullptr, op.name, " needs an input");
  while (!ids.empty() && ids.back() == kNoValue) ids.pop_back();
  return graph->add_node(op, std::move(attributes), std::move(ids));
}

std::vector<Value> emit_all(std::string_view op, std::unique_ptr<Options> attributes, std::span<const Value> inputs) {
  ensure_ops_registered();
  return emit_all(find_op(op), std::move(attributes), inputs);
}

}  // namespace galley
