#include "libcore/infer/model_cost.h"

#include <algorithm>

#include "libcore/graph/op_def.h"
#include "libcore/infer/components.h"
#include "libcore/nn/zoo.h"

namespace galley {

std::optional<ModelCost> model_cost(const std::string& model, int64_t input_size) {
  const ComponentKinds kinds = recipe_components().models;
  if (std::none_of(kinds.begin(), kinds.end(), [&](const ComponentKind& kind) { return kind.type == model && is_zoo_model(kind.type); }))
    return std::nullopt;
  const Component component = default_model(model);
  const ModelInfo info = model_info(component);
  Graph graph;
  Builder builder(graph, {.mode = Mode::kEvaluation});
  NamedValues inputs;
  for (const ModelInput& input : info.all_inputs()) {
    if (input.optional) continue;
    TensorType type;
    type.dtype = input.dtype;
    type.shape.push_back(1);
    for (size_t i = 0; i < input.shape.size(); ++i) type.shape.push_back(input_size > 0 && i > 0 ? input_size : input.shape[i]);
    if (!input.names.empty()) {
      type.names.push_back("N");
      type.names.insert(type.names.end(), input.names.begin(), input.names.end());
    }
    inputs.emplace_back(input.name, builder.input(input.name, type));
  }
  try {
    build_model(builder, component, inputs);
  } catch (const Error&) {
    return std::nullopt;  // the model does not accept this size
  }
  ModelCost cost;
  cost.parameters = parameter_count(builder.parameters());
  for (const Node& node : graph.nodes()) {
    const OpContext context = context_of(graph, node);
    cost.flops += cost_of(*node.op, context).flops;
    if (node.op->work == WorkClass::kProduct) cost.activations += static_cast<double>(context.out(0).elements());
  }
  return cost;
}

}  // namespace galley
