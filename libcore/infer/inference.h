#pragma once
// The graph that inference runs, the same for every tool: batch norms folded, neighbours fused, and converted to integers where the weights
// are quantized. A file of weights decides that by itself.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/passes/quantize.h"
#include "libcore/passes/report.h"

namespace galley {

/// The plan in the weights that the recipe names; nullptr where they are float or none are named. Throws (kRecipe) where quantized weights
/// are named beside others.
std::shared_ptr<const QuantizationPlan> loaded_plan(const Recipe& recipe);

struct InferenceModel {
  Graph graph;                            // to be compiled
  std::vector<ParameterSpec> parameters;  // what Session::initialize loads; with a plan none is trainable
  PassReport fusion;
  std::shared_ptr<const QuantizationPlan> plan;  // nullptr: float
  ConvertReport conversion;                      // empty where float
};

/// Folds, fuses, converts by the plan. With `capture`, the results of the modules that its globs match become outputs after fusion:
/// a convolution's with its batch norm, residual and activation. `round` rewrites the fused graph (evaluation of a quantization-aware
/// training).
InferenceModel make_inference(CapturedModel model, std::shared_ptr<const QuantizationPlan> plan,
                              const std::vector<std::string>& capture = {}, std::function<void(Graph&)> round = nullptr);
/// The model's results on such inputs, by the plan; without one the captured modules' results are as the model defines them.
InferenceModel inference_model(const Session& session, const BatchTypes& types, std::shared_ptr<const QuantizationPlan> plan,
                               const std::vector<std::string>& capture = {});
/// Compiles it for batches of those types; its parameters' formats lead the engine's. Takes the model's graph.
std::shared_ptr<const Program> compile_inference(Engine& engine, const BatchTypes& types, InferenceModel& model, const std::string& reason);
/// The forward program of a model by a plan (nullptr: in float) for `batch` usual inputs, without taking memory for it.
std::shared_ptr<const Program> compiled_forward(const Session& session, int64_t batch, std::shared_ptr<const QuantizationPlan> plan);

}  // namespace galley
