#include "libcore/infer/export_onnx.h"

#include <memory>
#include <set>
#include <utility>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/infer/folded_model.h"
#include "libcore/infer/inference.h"
#include "libcore/nn/attention.h"
#include "libcore/onnx/export/export.h"
#include "libcore/passes/quantize.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/tensor/field_names.h"

namespace galley {
namespace {

/// The graphs to write nodes from: a captured one, and the same model with one size changed for each size that the file leaves open.
struct Captured {
  Graph graph, other, longer, later;
};
/// Whether the model is one of text, which is captured in the open form (nn/attention.h): its file takes any number of tokens.
bool is_text(const ModelInfo& info) { return info.cache || (info.max_length > 0 && !info.inputs.empty()); }

/// The sizes of a capture; tokens and past are those of the open form.
struct Sizes {
  int64_t batch = 2, tokens = 0, past = 0;
};

/// The open form for batches of these types; outputs have the names of the model's results, then those of keys and values.
CapturedModel capture_open(const Session& session, const BatchTypes& types, int64_t past) {
  CapturedModel model;
  TaskCapture capture(model.graph, session.model(), session.info(), types.fields,
                      session.builder_options(Mode::kEvaluation, open_form(past)));
  if (session.info().cache) {  // the usual order of inputs
    const Shape& tokens = types.input().shape;
    capture.field(types.inputs.front());
    capture.builder().fed(open_port::kMask, {.dtype = DType::kI64, .shape = {tokens[0], past + tokens[1]}});
  }
  const NamedValues results = capture.model();
  const std::vector<std::pair<std::string, ValueId>> present = std::exchange(model.graph.outputs(), {});
  for (const auto& [name, value] : results) capture.result(name, value);
  for (const auto& [name, id] : present) model.graph.add_output(name, id);
  model.results = capture.finish();
  model.parameters = capture.take_parameters();
  return model;
}

Graph capture_text(const Session& session, const Sizes& sizes, bool fused) {
  BatchTypes types;
  for (const ModelInput& input : session.info().all_inputs()) {
    if (input.shape.empty()) continue;                                                   // lengths: attention_mask says the same
    if (input.name == "token_type_ids" && session.info().family == "roberta") continue;  // its tokens are of one type
    TensorType type = input_type(input, sizes.batch);
    type.shape[1] = sizes.tokens;
    type.names.clear();
    types.inputs.push_back(input.name);
    types.fields.emplace(input.name, std::move(type));
  }
  CapturedModel model = capture_open(session, types, sizes.past);
  if (!fused) return std::move(model.graph);
  return make_inference(std::move(model), nullptr).graph;
}

Graph capture_samples(const Session& session, const ExportOptions& options, int64_t batch, bool fused) {
  BatchTypes types = session.usual_types(batch, false);
  // The operators of ONNX files combine all pixels.
  if (types.fields.erase(std::string(kImageExtents)) > 0) std::erase(types.inputs, kImageExtents);
  if (!options.shape.empty()) {
    TensorType& input = types.input();
    Shape shape{batch};
    for (const int64_t size : options.shape) shape.push_back(size);
    if (shape.rank() != input.shape.rank()) input.names.clear();
    input.shape = shape;
  }
  return fused ? inference_model(session, types, nullptr).graph : session.capture_inference(types, {}).graph;
}

Captured capture(const Session& session, const ExportOptions& options, bool fused) {
  const bool text = is_text(session.info());
  const auto at = [&](const Sizes& sizes) {
    Graph graph = text ? capture_text(session, sizes, fused) : capture_samples(session, options, sizes.batch, fused);
    graph.remove_dead_nodes();
    return graph;
  };
  Captured made;
  Sizes first{.batch = options.batch > 0 ? options.batch : 2};
  if (text) {
    GALLEY_CHECK(options.shape.size() <= 1, "a sample of this model is a list of tokens, so --shape takes one number");
    const int64_t longest = session.info().cache ? session.info().input_shape.front() : session.info().max_length;
    first.tokens = options.shape.empty() ? std::min<int64_t>(3, longest - 1) : options.shape.front();
    if (session.info().cache && options.cache) first.past = 2;
  }
  made.graph = at(first);
  const auto changed = [&](int64_t Sizes::* size) {
    Sizes sizes = first;
    sizes.*size += 1;
    return at(sizes);
  };
  if (options.batch == 0) made.other = changed(&Sizes::batch);
  if (text && options.shape.empty()) made.longer = changed(&Sizes::tokens);
  if (first.past > 0) made.later = changed(&Sizes::past);
  return made;
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
  const auto given = [](const Graph& graph) { return graph.nodes().empty() ? nullptr : &graph; };
  what.other = given(captured.other);
  what.longer = given(captured.longer);
  what.later = given(captured.later);
  if (is_text(session.info())) {
    what.positions = session.info().input_shape.front();
    what.size_names = {"batch_size", "sequence_length", "past_sequence_length"};
    if (session.info().cache) what.input_names = {{"input", "input_ids"}};
  }
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
