#include "libcore/infer/inference.h"

#include <algorithm>

#include "libcore/infer/stored_weights.h"
#include "libcore/passes/assign_precision.h"
#include "libcore/passes/pipelines.h"
#include "libcore/recipe/recipe.h"

namespace galley {
namespace {

/// The parameters of a converted graph. Those that the graph does not read repeat the plan; their initial value is the one that the file
/// must hold.
std::vector<ParameterSpec> specs_of(const ConvertReport& report, const std::map<std::string, double>& repeated) {
  std::vector<ParameterSpec> specs;
  for (const QuantizedTensor& tensor : report.tensors) {
    ParameterSpec spec;
    spec.name = tensor.name;
    spec.type = tensor.type;
    spec.role = tensor.role;
    spec.trainable = false;
    spec.module = tensor.layer;
    spec.module_type = tensor.layer_type;
    if (!tensor.read) {
      const auto value = repeated.find(tensor.name);
      spec.init = Init::constant(value == repeated.end() ? 0 : value->second);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

/// An error of a plan that does not fit the model, with its file and what helps.
Error misfit(const Error& error, const QuantizationPlan& plan, const Graph& graph) {
  const std::vector<QuantizableLayer> layers = quantizable_layers(graph);
  // Heads change the paths of the layers below them: "bert.encoder ...", "encoder ...".
  const bool same_body = std::any_of(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& stored) {
    return std::any_of(layers.begin(), layers.end(), [&](const QuantizableLayer& layer) {
      return stored.name != layer.name && (stored.name.ends_with("." + layer.name) || layer.name.ends_with("." + stored.name));
    });
  });
  return Error(error.code(), error.message())
      .at({.file = plan.file})
      .suggest(same_body
                   ? "it was quantized with another head: quantize with the model.head that is used here (--embed: model.head=embedding)"
                   : "use the recipe that it was quantized with, or quantize the weights of this model");
}

}  // namespace

std::shared_ptr<const QuantizationPlan> loaded_plan(const Recipe& recipe) { return recipe.lora ? nullptr : file_plan(recipe); }

InferenceModel make_inference(CapturedModel model, std::shared_ptr<const QuantizationPlan> plan, const std::vector<std::string>& capture,
                              std::function<void(Graph&)> fake_quantize) {
  InferenceModel made;
  made.graph = std::move(model.graph);
  made.plan = std::move(plan);
  InferencePasses passes;
  if (made.plan == nullptr) passes.precision = model.precision;  // a converted graph has types of its own
  if (!capture.empty()) passes.capture = [&](Graph& graph) { add_captured_outputs(graph, capture); };
  passes.fake_quantize = std::move(fake_quantize);
  made.fusion = inference_passes(made.graph, passes);
  if (made.plan == nullptr) {
    made.parameters = std::move(model.parameters);
    return made;
  }
  const Graph fused = made.graph;
  try {
    made.conversion = conversion_passes(made.graph, *made.plan);
  } catch (const Error& error) {
    if (made.plan->file.empty()) throw;
    throw misfit(error, *made.plan, fused);
  }
  // Layers of f8 read and write the precision of the run.
  if (made.plan->has_f8()) assign_precision(made.graph, model.precision);
  made.parameters = specs_of(made.conversion, plan_tensors(fused, *made.plan));
  return made;
}

InferenceModel inference_model(const Session& session, const BatchTypes& types, std::shared_ptr<const QuantizationPlan> plan,
                               const std::vector<std::string>& capture) {
  const bool converts = plan != nullptr;
  return make_inference(session.capture_inference(types, converts ? std::vector<std::string>() : capture), std::move(plan),
                        converts ? capture : std::vector<std::string>());
}

std::shared_ptr<const Program> compile_inference(Engine& engine, const BatchTypes& types, InferenceModel& model,
                                                 const std::string& reason) {
  return engine.program(
      {.mode = "predict", .fields = types.fields}, reason, [&] { return std::move(model.graph); }, ParameterFormats::kLead);
}

std::shared_ptr<const Program> compiled_forward(const Session& session, int64_t batch, std::shared_ptr<const QuantizationPlan> plan) {
  Engine engine(session.backend());
  const BatchTypes types = session.usual_types(batch, false);
  InferenceModel model = inference_model(session, types, std::move(plan));
  return compile_inference(engine, types, model, "forward pass on random inputs");
}

}  // namespace galley
