#include "libcore/infer/folded_model.h"

#include "libcore/infer/inference.h"
#include "libcore/passes/quantize.h"

namespace galley {

FoldedModel::FoldedModel(const Session& session) : engine_(session.backend()) {
  InferenceModel model = inference_model(session, session.usual_types(1, false), nullptr);
  graph_ = std::move(model.graph);
  parameters_ = std::move(model.parameters);
  for (const ParameterSpec& spec : parameters_) engine_.store().declare(spec.name, spec.type, spec.role);
  session.initialize(parameters_, engine_.store());

  LayerConstants constants = layer_constants(graph_);
  for (const auto& [tensor, parameter] : constants.parameters) constants_[tensor] = engine_.store().get(parameter);
  if (constants.graph.outputs().empty()) return;
  std::vector<std::string> names;
  for (const auto& [name, id] : constants.graph.outputs()) names.push_back(name);
  engine_.follow_store();
  const auto program =
      engine_.program({.mode = "constants"}, "weights with their batch norms folded in", [&] { return std::move(constants.graph); });
  const std::unique_ptr<Execution> execution = engine_.bind(program);
  execution->run();
  for (const std::string& name : names) constants_[name] = execution->output(name);
}

}  // namespace galley
