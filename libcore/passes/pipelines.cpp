#include "libcore/passes/pipelines.h"

#include <set>

#include "libcore/passes/choose_attention.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/expand.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/hoist_prepare.h"
#include "libcore/passes/order_updates.h"
#include "libcore/passes/pass_runner.h"

namespace galley {
namespace {

PassReport rewrite(Graph& graph, const Target& target, Stage stage) {
  PassReport report;
  target.rewrite(graph, stage, report);
  return report;
}

}  // namespace

FakeQuantizedModel fake_quantize_passes(Graph& graph, const FakeQuantizePasses& options) {
  Graph fused = options.evaluation;
  inference_passes(fused);
  PassRunner passes("fake_quantize", graph);
  const TrainingFakeQuantize training(graph, options.evaluation, fused, options.config);
  if (options.form.freeze_batch_norm) {
    passes.run("freeze_batch_norm", freeze_batch_norm);
    passes.run("fold_batch_norm", fold_batch_norm);
  }
  passes.run("fake_quantize", [&](Graph& g) { training.apply(g, options.form); });
  return training.model();
}

PassReport training_passes(Graph& graph, const Target& target, const TrainingPasses& options) {
  if (options.fake_quantize) fake_quantize_passes(graph, *options.fake_quantize);
  PassRunner passes("training", graph);
  passes.run("assign_precision", [&](Graph& g) { return assign_precision(g, options.precision); });
  PassReport fusion = passes.run("fuse", fuse_training);
  fusion.add(passes.run("target forward", [&](Graph& g) { return rewrite(g, target, Stage::kForward); }));
  fusion.add(passes.run("choose_attention", [&](Graph& g) { return choose_attention(g, target, AttentionStage::kForward); }));
  const GradientMap gradients = passes.run("differentiate", [&](Graph& g) {
    std::vector<ValueId> wanted;
    for (const std::string& name : options.trained) wanted.push_back(g.find_input(name));
    const ValueId loss = g.find_output("loss");
    return differentiate(g, options.objective ? options.objective(g, loss) : loss, wanted);
  });
  passes.run("updates", [&](Graph& g) { options.updates(g, gradients); });
  std::set<ValueId> unpacked;  // weights that the backward pass unpacks again
  for (const Node& node : graph.nodes()) {
    if (unpacks_parameters(graph, node)) unpacked.insert(node.outputs[0]);
  }
  if (options.recompute || !unpacked.empty()) {
    passes.run("recompute", [&](Graph& g) {
      // Observed ranges are kept: they are small, and recomputing one reads a whole array.
      const RecomputeChoice choice = options.recompute ? options.recompute(g) : [](const Node&) { return false; };
      return recompute(g,
                       [&](const Node& node) { return !node.op->stops_gradient && (unpacked.contains(node.outputs[0]) || choice(node)); });
    });
  }
  if (options.guard) passes.run("guard", options.guard);
  return fusion;
}

PassReport inference_passes(Graph& graph, const InferencePasses& options) {
  PassRunner passes("inference", graph);
  passes.run("fold_batch_norm", [](Graph& g) { return fold_batch_norm(g); });
  passes.run("assign_precision", [&](Graph& g) { return assign_precision(g, options.precision); });
  PassReport fusion = passes.run("fuse", fuse_inference);
  passes.run("remove_dead_nodes", [](Graph& g) { g.remove_dead_nodes(); });
  if (options.capture) passes.run("capture", options.capture);
  if (options.fake_quantize) passes.run("fake_quantize", options.fake_quantize);
  return fusion;
}

ConvertReport conversion_passes(Graph& fused, const QuantizationPlan& plan) {
  PassRunner passes("conversion", fused);
  return passes.run("convert_quantized", [&](Graph& g) { return convert_quantized(g, plan); });
}

CompileReport compile_passes(Graph& graph, const Target& target, LayoutOptions layout) {
  PassRunner passes("compile", graph);
  CompileReport report;
  layout.target = &target;
  passes.run("remove_dead_nodes", [](Graph& g) { g.remove_dead_nodes(); });
  report.rewrites = passes.run("target before layout", [&](Graph& g) { return rewrite(g, target, Stage::kBeforeLayout); });
  report.rewrites.add(passes.run("choose_attention", [&](Graph& g) { return choose_attention(g, target, AttentionStage::kCompile); }));
  // Runs after the rewrites, which may create operators that the back end supports, and before updates are ordered, because they may expand
  // to several nodes.
  report.expansion = passes.run("expand", [&](Graph& g) { return expand_unsupported(g, target, layout); });
  if (!report.expansion.done.empty()) passes.run("remove_dead_nodes", [](Graph& g) { g.remove_dead_nodes(); });
  passes.run("order_updates", order_updates);
  report.layout = passes.run("assign_layout", [&](Graph& g) { return assign_layout(g, layout); });
  report.rewrites.add(passes.run("target after layout", [&](Graph& g) { return rewrite(g, target, Stage::kAfterLayout); }));
  report.prepare_nodes = passes.run("hoist_prepare", hoist_prepare);
  verify(graph);
  return report;
}

}  // namespace galley
