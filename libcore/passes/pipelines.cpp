#include "libcore/passes/pipelines.h"

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

RoundedModel rounding_passes(Graph& graph, const RoundingPasses& how) {
  Graph fused = how.evaluation;
  inference_passes(fused);
  PassRunner passes("rounding", graph);
  const TrainingRounding rounding(graph, how.evaluation, fused, how.config);
  if (how.form.freeze_batch_norm) {
    passes.run("freeze_batch_norm", freeze_batch_norm);
    passes.run("fold_batch_norm", fold_batch_norm);
  }
  passes.run("fake_quantize", [&](Graph& g) { rounding.apply(g, how.form); });
  return rounding.model();
}

PassReport training_passes(Graph& graph, const Target& target, const TrainingPasses& how) {
  if (how.rounding) rounding_passes(graph, *how.rounding);
  PassRunner passes("training", graph);
  passes.run("assign_precision", [&](Graph& g) { return assign_precision(g, how.precision); });
  PassReport fusion = passes.run("fuse", fuse_training);
  fusion.add(passes.run("target forward", [&](Graph& g) { return rewrite(g, target, Stage::kForward); }));
  fusion.add(passes.run("choose_attention", [&](Graph& g) { return choose_attention(g, target, AttentionStage::kForward); }));
  const GradientMap gradients = passes.run("differentiate", [&](Graph& g) {
    std::vector<ValueId> wanted;
    for (const std::string& name : how.trained) wanted.push_back(g.find_input(name));
    return differentiate(g, g.find_output("loss"), wanted);
  });
  passes.run("updates", [&](Graph& g) { how.updates(g, gradients); });
  if (how.recompute) {
    passes.run("recompute", [&](Graph& g) {
      // Observed ranges are kept: they are a few numbers, and finding one again reads a whole array.
      return recompute(g, [choice = how.recompute(g)](const Node& node) { return !node.op->stops_gradient && choice(node); });
    });
  }
  if (how.guard) passes.run("guard", how.guard);
  return fusion;
}

PassReport inference_passes(Graph& graph, const InferencePasses& how) {
  PassRunner passes("inference", graph);
  passes.run("fold_batch_norm", [](Graph& g) { return fold_batch_norm(g); });
  passes.run("assign_precision", [&](Graph& g) { return assign_precision(g, how.precision); });
  PassReport fusion = passes.run("fuse", fuse_inference);
  passes.run("remove_dead_nodes", [](Graph& g) { g.remove_dead_nodes(); });
  if (how.capture) passes.run("capture", how.capture);
  if (how.round) passes.run("fake_quantize", how.round);
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
  // After the rewrites, which may make operators that the back end runs; before updates are ordered, as those become several nodes.
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
