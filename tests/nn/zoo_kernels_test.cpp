// Inference of every zoo model runs on fast kernels: no fused layer may fall back to the reference, which computes element by element in
// double.

#include <gtest/gtest.h>

#include "libcore/nn/zoo.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/plan_memory.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

Graph fused_model(const Component& model, int64_t batch) {
  const ModelInfo info = model_info(model);
  Graph graph;
  Builder builder(graph, {.mode = Mode::kEvaluation});
  TensorType input;
  input.dtype = info.input_dtype;
  input.shape = Shape{batch};
  for (int64_t size : info.input_shape) input.shape.push_back(size);
  NamedValues inputs;
  for (const ModelInput& needed : info.required_inputs()) inputs.emplace_back(needed.name, builder.input(needed.name, input));
  graph.add_output("output", build_model(builder, model, inputs).front().second);
  fold_batch_norm(graph);
  fuse_inference(graph);
  graph.remove_dead_nodes();
  assign_layout(graph, {.mode = LayoutMode::kAuto});
  return graph;
}

TEST(ZooKernels, NoLayerOfInferenceIsLeftToTheReference) {
  int checked = 0;
  for (const ComponentKind& kind : models()) {
    if (!is_zoo_model(kind.type)) continue;
    Component model = default_model(kind.type);
    model = with_vocabulary(std::move(model), 65);
    for (const int64_t batch : {1, 48}) {  // fewer and more rows than the limit of the kernel for few rows
      const Graph graph = fused_model(model, batch);
      for (const Node& node : graph.nodes()) {
        if (is_view(graph, node) || graph.type(node.outputs[0]).dtype != DType::kF32 || graph.type(node.outputs[0]).elements() <= 1)
          continue;
        const KernelQuery query{node, context_of(graph, node), 2};
        if (cost_of(*node.op, query.context).flops <= 0) continue;
        const KernelChoice choice = cpu().choose(query);
        ASSERT_NE(choice.kernel, nullptr);
        EXPECT_FALSE(choice.kernel->reference) << kind.type << ", " << node.path << ": " << node.op->name
                                               << (choice.declined.empty() ? "" : ", " + choice.declined.front());
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 5000);
}

}  // namespace
}  // namespace galley::test
