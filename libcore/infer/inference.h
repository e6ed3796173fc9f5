#pragma once
// The inference graph, the same in every tool: batch norms are folded, operators are fused, and the graph is converted to integers if the
// weights are quantized. The file of weights alone determines whether they are.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/passes/quantize.h"
#include "libcore/passes/report.h"

namespace galley {

/// The quantization plan in the weights that the recipe names; null if they are float or there are none. Throws (kRecipe) if the recipe
/// names quantized weights together with others.
std::shared_ptr<const QuantizationPlan> loaded_plan(const Recipe& recipe);

/// A graph ready for compilation.
struct InferenceModel {
  Graph graph;                            ///< compile_inference takes it.
  std::vector<ParameterSpec> parameters;  ///< Parameters that Session::initialize loads; with a plan none is trainable.
  PassReport fusion;
  std::shared_ptr<const QuantizationPlan> plan;  ///< Null: float.
  ConvertReport conversion;                      ///< Empty for float.
};

/// Folds, fuses, and converts by the plan. The results of modules that a glob of `capture` matches become outputs after fusion: that of a
/// convolution includes its batch norm, residual and activation. `fake_quantize` rewrites the fused graph (evaluation in quantization-aware
/// training).
InferenceModel make_inference(CapturedModel model, std::shared_ptr<const QuantizationPlan> plan,
                              const std::vector<std::string>& capture = {}, std::function<void(Graph&)> fake_quantize = nullptr);
/// The inference graph of a session's model for batches of these types. Without a plan, captured modules have the results that the model
/// defines, without fusion.
InferenceModel inference_model(const Session& session, const BatchTypes& types, std::shared_ptr<const QuantizationPlan> plan,
                               const std::vector<std::string>& capture = {});
/// Compiles the model for batches of these types. Its parameter formats determine those of the engine. Moves the graph out of the model.
std::shared_ptr<const Program> compile_inference(Engine& engine, const BatchTypes& types, InferenceModel& model, const std::string& reason);
/// The forward program of a model by a plan (null: in float) for `batch` default inputs, without allocating its memory.
std::shared_ptr<const Program> compiled_forward(const Session& session, int64_t batch, std::shared_ptr<const QuantizationPlan> plan);

}  // namespace galley
