#include "libcore/quantize/model_quantizer.h"

#include <cmath>
#include <limits>
#include <set>

#include "libcore/base/log.h"
#include "libcore/passes/pipelines.h"
#include "libcore/quant/sqnr.h"
#include "libcore/quant/weights.h"
#include "libcore/quantize/calibrate.h"

namespace galley {
namespace {

Tensor scalar_tensor(const TensorType& type, double value) {
  Tensor tensor(type.dtype, type.shape);
  tensor.from_doubles({value});
  return tensor;
}

std::span<const float> floats(const Tensor& tensor) { return {tensor.data_as<float>(), static_cast<size_t>(tensor.elements())}; }

/// A scheme with the format of the plan and the observer of the config.
WeightScheme scheme_of(const LayerPlan& layer, const WeightScheme& wanted) {
  WeightScheme scheme = wanted;
  const QuantizeRule rule = layer_rule(layer.type);
  if (rule == QuantizeRule::kFloat) scheme = {.per_channel = true, .symmetric = true, .observer = wanted.observer};  // a table of rows
  if (rule == QuantizeRule::kScale) scheme = {.per_channel = true, .symmetric = true};
  scheme.reduce_range = layer.reduced;
  return scheme;
}

}  // namespace

void QuantizedModel::put(ParameterStore& store) const {
  for (const auto& [name, tensor] : tensors) {
    if (store.has(name)) store.set(name, tensor);
  }
}

int64_t QuantizedModel::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.bytes();
  return bytes;
}

void ModelQuantizer::adopt(Calibration& calibration, const std::string& name) const {
  const std::string digest = model_digest(model_.graph());
  if (calibration.model != digest && calibration.follow(model_.graph()))
    log(LogLevel::kInfo, cat(name, " is of a past version, which computed attention by several operators; its statistics are used"));
  calibration.check(digest, parameter_digests(model_.parameters(), model_.store()), name);
}

QuantizedModel ModelQuantizer::quantize(const QuantizeConfig& config, const Calibration* calibration) const {
  const Graph& folded = model_.graph();
  const std::map<std::string, Tensor>& constants = model_.constants();
  QuantizedModel model;
  auto plan = std::make_shared<QuantizationPlan>(plan_quantization(folded, config, calibration));
  Graph graph = folded;
  model.conversion = conversion_passes(graph, *plan);
  std::map<std::string, std::string> value_of;
  for (const QuantizableLayer& layer : quantizable_layers(folded)) value_of[layer.name] = layer.value;
  for (const auto& [name, table] : table_layers(folded)) value_of[name] = table.value;
  std::set<std::string> wanted_tensors;  // a tied head has those of its table
  for (const QuantizedTensor& tensor : model.conversion.tensors) wanted_tensors.insert(tensor.name);

  for (const LayerPlan& layer : plan->layers) {
    LayerResult result{.plan = layer, .sqnr_weight_db = std::numeric_limits<double>::infinity()};
    const Tensor& weight = constants.at(layer.weight());
    const auto bias = constants.find(layer.name + ".bias");
    result.bytes_float = weight.bytes() + (bias == constants.end() ? 0 : bias->second.bytes());
    if (layer.float_reason.empty()) {
      const QuantizedWeight q = quantize_weight(weight, scheme_of(layer, config.of(value_of.at(layer.name)).weights), layer.name,
                                                calibration == nullptr ? nullptr : calibration->bounds_of(layer.weight()));
      const Tensor back = dequantize_weight(q);
      result.sqnr_weight_db = sqnr_db(floats(weight), floats(back));
      result.mse_weight = mse(floats(weight), floats(back));
      if (wanted_tensors.contains(layer.weight())) {
        model.tensors[layer.weight()] = q.values;
        model.tensors[layer.weight_scale()] = q.scale;
        if (!layer.f8) model.tensors[layer.weight_zero_point()] = q.zero_point;
      }
    }
    model.layers.push_back(std::move(result));
  }
  const std::map<std::string, double> repeated = plan_tensors(folded, *plan);
  for (const QuantizedTensor& wanted : model.conversion.tensors) {
    if (!model.tensors.contains(wanted.name)) {
      const auto scalar = repeated.find(wanted.name);
      const auto constant = constants.find(wanted.name);
      model.tensors[wanted.name] = !wanted.read                  ? scalar_tensor(wanted.type, scalar->second)
                                   : constant != constants.end() ? constant->second
                                                                 : model_.store().get(wanted.name);
    }
    const Tensor& tensor = model.tensors.at(wanted.name);
    GALLEY_ASSERT(tensor.dtype() == wanted.type.dtype && tensor.shape() == wanted.type.shape, wanted.name, ": ", tensor.str(), " for ",
                  wanted.type);
    for (LayerResult& layer : model.layers) {
      if (layer.plan.name == wanted.layer) layer.bytes += tensor.bytes();
    }
  }
  model.plan = std::move(plan);
  return model;
}

}  // namespace galley
