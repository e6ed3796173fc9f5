#pragma once
// Adapters (LoRA) on a base whose weights are stored as integers (quantize.method=weight_only): captured models in which layers read these.

#include <memory>

#include "libcore/infer/captured_model.h"
#include "libcore/passes/quantization_plan.h"

namespace galley {

/// The plan of the quantized weights that the recipe names, whatever else the recipe asks for; null if they are float or there are none.
/// Throws (kRecipe) if the recipe names them together with others.
std::shared_ptr<const QuantizationPlan> file_plan(const Recipe& recipe);

/// This plan if the recipe has adapters, whose models then read stored weights; else null.
std::shared_ptr<const QuantizationPlan> stored_plan(const Recipe& recipe);

/// Replaces the weight of each layer that the plan stores as integers by these: parameters L.weight, L.weight_scale and
/// L.weight_zero_point, which are not trained, and a node that dequantizes them. Adapters and layers that the plan does not quantize stay
/// float. Throws (kInput) if the plan is that of another model, (kRecipe) if it is not weight_only, and in training if a parameter that
/// is trained is stored as integers.
void store_weights(CapturedModel& model, const QuantizationPlan& plan, bool training = false);

}  // namespace galley
