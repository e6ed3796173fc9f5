#pragma once
// ModelQuantizer: quantizes the weights of a float model by a config, in memory, any number of times: galley-quantize writes one result,
// searches evaluate many.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/folded_model.h"
#include "libcore/passes/quantize.h"

namespace galley {

/// The result for a layer with weights.
struct LayerResult {
  LayerPlan plan;
  double sqnr_weight_db = 0;  // infinite if it stays in float
  double mse_weight = 0;
  int64_t bytes = 0;        // of its tensors
  int64_t bytes_float = 0;  // of weight and bias in f32
};

/// The contents of a file of quantized weights.
struct QuantizedModel {
  std::shared_ptr<const QuantizationPlan> plan;
  ConvertReport conversion;
  std::vector<LayerResult> layers;        // in the order of the graph
  std::map<std::string, Tensor> tensors;  // all of conversion.tensors

  /// Puts the tensors into a store in which a program of this plan is declared.
  void put(ParameterStore& store) const;
  int64_t bytes() const;
};

/// A float model that can be quantized repeatedly.
class ModelQuantizer {
 public:
  /// Captures the model on a batch of its usual input and loads the recipe's float weights. Throws as Session::initialize would.
  explicit ModelQuantizer(const Session& session) : model_(session) {}

  /// The folded and fused graph.
  const Graph& graph() const { return model_.graph(); }
  /// Parameters and buffers of the float model; `store` has their values.
  const std::vector<ParameterSpec>& parameters() const { return model_.parameters(); }
  ParameterStore& store() { return model_.store(); }
  /// Bytes of parameters and buffers in float.
  int64_t float_bytes() const { return model_.store().bytes(); }
  /// Throws (kInput) unless the statistics are of this model with these weights. Those of a past version get the names of the present one.
  /// `name`: name of the file, for the message.
  void adopt(Calibration& calibration, const std::string& name) const;

  /// `config`: resolve_quantize(recipe.quantize, graph()), possibly with other layers in float. `calibration`: as for plan_quantization.
  QuantizedModel quantize(const QuantizeConfig& config, const Calibration* calibration) const;

 private:
  FoldedModel model_;
};

}  // namespace galley
