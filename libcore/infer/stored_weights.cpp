#include "libcore/infer/stored_weights.h"

#include <map>

#include "libcore/base/error.h"
#include "libcore/passes/quantize.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"

namespace galley {
namespace {

bool is_adapter(std::string_view layer) { return layer.ends_with(".lora_A") || layer.ends_with(".lora_B"); }

/// The plan of the model with its adapters, which it keeps in float.
QuantizationPlan with_adapters(const Graph& graph, const QuantizationPlan& plan) {
  QuantizationPlan extended = plan;
  for (const QuantizableLayer& layer : quantizable_layers(graph)) {
    if (!is_adapter(layer.name) || extended.find(layer.name) != nullptr) continue;
    extended.layers.push_back({.name = layer.name, .type = layer.type, .scheme = "float", .float_reason = "adapter"});
  }
  return extended;
}

}  // namespace

std::shared_ptr<const QuantizationPlan> file_plan(const Recipe& recipe) {
  const OptionList& sources = recipe.weights.load;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto& source = sources.at<WeightSource>(i);
    const Metadata metadata = read_weights_metadata(source.path());
    const auto found = metadata.find(std::string(kQuantizationKey));
    if (found == metadata.end()) continue;
    if (sources.size() > 1)
      throw Error(ErrorCode::kRecipe, cat(source.from, " contains quantized weights, which must be the only source; weights.load names ",
                                          sources.size(), " sources"))
          .key("weights.load");
    QuantizationPlan plan = parse_plan(found->second, source.from);
    plan.file = source.from;
    return std::make_shared<const QuantizationPlan>(std::move(plan));
  }
  return nullptr;
}

std::shared_ptr<const QuantizationPlan> stored_plan(const Recipe& recipe) { return recipe.lora ? file_plan(recipe) : nullptr; }

void store_weights(CapturedModel& model, const QuantizationPlan& plan, bool training) {
  if (plan.method != QuantMethod::kWeightOnly) {
    throw Error(ErrorCode::kRecipe,
                cat("adapters need products in float, but the weights are quantized for products of 8-bit numbers (", plan.str(), ")"))
        .key("weights")
        .suggest("quantize the base with quantize.method=weight_only, or train on its float weights");
  }
  const ConvertReport report = convert_quantized(model.graph, with_adapters(model.graph, plan));
  std::map<std::string, const ParameterSpec*> known;  // of the float model
  for (const ParameterSpec& spec : model.parameters) known[spec.name] = &spec;
  std::vector<ParameterSpec> parameters;
  for (const QuantizedTensor& tensor : report.tensors) {
    const auto own = known.find(tensor.name);
    if (own != known.end() && own->second->type.dtype == tensor.type.dtype && own->second->type.shape == tensor.type.shape) {
      parameters.push_back(*own->second);
      continue;
    }
    if (training && own != known.end() && own->second->trainable) {
      throw Error(ErrorCode::kRecipe, cat("lora.train selects '", tensor.name, "', which the weights store as ", tensor.type.dtype,
                                          "; integers are not trained"))
          .key("lora.train")
          .suggest("remove it from lora.train, or use the float weights that the integers were made from");
    }
    ParameterSpec spec{.name = tensor.name, .type = tensor.type, .role = tensor.role, .init = Init::zeros(), .trainable = false};
    spec.module = tensor.layer;
    spec.module_type = tensor.layer_type;
    parameters.push_back(std::move(spec));
  }
  model.parameters = std::move(parameters);
  if (model.loss != kNoValue) model.loss = model.graph.find_output("loss");
}

}  // namespace galley
