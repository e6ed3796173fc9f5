#include "libcore/infer/export_onnx.h"

#include <memory>
#include <set>

#include "libcore/base/log.h"
#include "libcore/infer/folded_model.h"
#include "libcore/infer/inference.h"
#include "libcore/onnx/export/export.h"
#include "libcore/passes/quantize.h"
#include "libcore/runtime/parameter_store.h"

namespace galley {
namespace {

/// The graphs to write nodes from: one captured batch size, or two if the file allows any batch size.
struct Captured {
  Graph graph, other;
};

Captured capture(const Session& session, const ExportOptions& options, bool fused) {
  const auto at = [&](int64_t batch) {
    BatchTypes types = session.usual_types(batch, false);
    if (!options.shape.empty()) {
      TensorType& input = types.input();
      Shape shape{batch};
      for (const int64_t size : options.shape) shape.push_back(size);
      if (shape.rank() != input.shape.rank()) input.names.clear();
      input.shape = shape;
    }
    Graph graph = fused ? inference_model(session, types, nullptr).graph : session.capture_inference(types, {}).graph;
    graph.remove_dead_nodes();
    return graph;
  };
  if (options.batch > 0) return {at(options.batch), {}};
  return {at(2), at(3)};
}

void load(const Session& session, const std::vector<ParameterSpec>& parameters, ParameterStore& store) {
  for (const ParameterSpec& spec : parameters) store.declare(spec.name, spec.type, spec.role);
  session.initialize(parameters, store);
}

}  // namespace

ExportReport export_onnx(const Session& session, const std::string& path, const ExportOptions& options) {
  const std::shared_ptr<const QuantizationPlan> plan = loaded_plan(session.recipe());
  if (plan != nullptr && plan->method == QuantMethod::kDynamic) {
    throw Error(ErrorCode::kRecipe,
                "ONNX cannot express dynamic quantization with the same results: activations are quantized by ranges that are determined "
                "at run time")
        .key("weights")
        .suggest("quantize with quantize.method=static or weight_only, or export the float weights");
  }
  const bool fused = options.fold || plan != nullptr;
  const Captured captured = capture(session, options, fused);
  OnnxExport what;
  what.graph = &captured.graph;
  if (options.batch == 0) what.other = &captured.other;
  what.named_layers = fused;
  what.plan = plan.get();

  ParameterStore store;
  std::unique_ptr<FoldedModel> folded;
  if (plan != nullptr) {
    load(session, inference_model(session, session.usual_types(1, false), plan).parameters, store);
  } else if (options.fold) {
    folded = std::make_unique<FoldedModel>(session);
  } else {
    load(session, session.capture_inference(session.usual_types(1, false), {}).parameters, store);
  }
  // A batch norm without a preceding product keeps its own parameters. A layer on integers would have other parameters under these names.
  std::set<std::string> norms;
  if (folded != nullptr) {
    for (const QuantizableLayer& layer : quantizable_layers(folded->graph())) {
      if (layer_rule(layer.type) == QuantizeRule::kScale) norms.insert({layer.name + ".weight", layer.name + ".bias"});
    }
  }
  what.values = [&](const std::string& name) {
    if (folded == nullptr) return store.get(name);
    if (norms.contains(name)) return folded->store().get(name);
    const auto constant = folded->constants().find(name);
    return constant != folded->constants().end() ? constant->second : folded->store().get(name);
  };
  OnnxDocument document = onnx_document(what);
  document.graph_name = session.recipe().name.empty() ? session.recipe().model.type : session.recipe().name;
  document.metadata = options.metadata;
  ExportReport report;
  report.nodes = static_cast<int64_t>(document.nodes.size());
  report.initializers = static_cast<int64_t>(document.initializers.size());
  report.scheme = plan != nullptr ? plan->str() : options.fold ? "float, batch norms folded" : "float";
  OnnxWritten written = write_onnx(path, document);
  report.bytes = written.bytes;
  report.data_file = std::move(written.data_file);
  return report;
}

}  // namespace galley
