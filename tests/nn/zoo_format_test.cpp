// Law: in inference and training, every model for which channels_last measurements are published keeps the format from the first layer to
// the last features: no activation is reordered inside. Flattened features before a classifier are reordered once per pass and direction.
#include <gtest/gtest.h>

#include <set>

#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/format_losses.h"
#include "libcore/passes/fuse.h"
#include "tests/nn/training_model.h"

namespace galley {
namespace {

constexpr const char* kModels[] = {"alexnet",
                                   "densenet121",
                                   "densenet161",
                                   "densenet169",
                                   "googlenet",
                                   "inception_v3",
                                   "mnasnet0_5",
                                   "mnasnet0_75",
                                   "mnasnet1_0",
                                   "mnasnet1_3",
                                   "mobilenet_v2",
                                   "resnet18",
                                   "resnet34",
                                   "resnet50",
                                   "resnet101",
                                   "resnet152",
                                   "resnext50_32x4d",
                                   "resnext101_32x8d",
                                   "shufflenet_v2_x0_5",
                                   "shufflenet_v2_x1_0",
                                   "shufflenet_v2_x1_5",
                                   "shufflenet_v2_x2_0",
                                   "squeezenet1_0",
                                   "squeezenet1_1",
                                   "vgg11",
                                   "vgg11_bn",
                                   "vgg13",
                                   "vgg13_bn",
                                   "vgg16",
                                   "vgg16_bn",
                                   "vgg19",
                                   "vgg19_bn",
                                   "wide_resnet50_2",
                                   "wide_resnet101_2"};

Graph inference_graph(const Component& model, const Shape& shape) {
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  graph.add_output("logits", build_model(b, model, b.input("input", {.shape = shape})).front().second);
  fold_batch_norm(graph);
  fuse_inference(graph);
  graph.remove_dead_nodes();
  return graph;
}

Graph training_graph(const Component& model, const Shape& shape) {
  Graph graph;
  Builder b(graph);
  const NamedValues results = build_model(b, model, b.input("input", {.shape = shape}));
  const Component cross_entropy = make_loss("cross_entropy");
  const Value target = b.input("target", loss_target(cross_entropy, results.front().second.type()));
  graph.add_output("loss", training_loss(b, cross_entropy, model_info(model), results, target));
  fuse_training(graph);
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : b.parameters()) {
    if (spec.trainable) wanted.push_back(graph.find_input(spec.name));
  }
  Sgd sgd;
  UpdateOptions options;
  options.groups = resolve_groups(sgd);
  add_updates(graph, differentiate(graph, graph.find_output("loss"), wanted), options);
  graph.remove_dead_nodes();
  return graph;
}

/// Flattened features of more than one pixel: before the classifier, or, in training, GoogLeNet's two auxiliary ones.
int64_t flattened(const std::string& name, bool training) {
  if (name == "alexnet" || name.starts_with("vgg")) return 1;
  return name == "googlenet" && training ? 2 : 0;
}

TEST(ZooFormats, ChannelsLastIsKeptInside) {
  for (const std::string name : kModels) {
    const Component model = default_model(name);
    Shape shape{2};
    for (const int64_t size : model_info(model).input_shape) shape.push_back(size);
    for (const bool training : {false, true}) {
      SCOPED_TRACE(cat(name, training ? ", training" : ", inference"));
      Graph graph = training ? training_graph(model, shape) : inference_graph(model, shape);
      const LayoutReport report = assign_layout(graph, {});
      // Only convolutions have an image on both sides; in training also its gradient.
      int64_t convolutions = 0, edges = 0;
      for (const Node& node : graph.nodes()) convolutions += node.is("conv2d");
      EXPECT_GE(report.channels_last_values, (training ? 2 : 1) * convolutions);
      for (const FormatLoss& loss : format_losses(graph)) {
        const Node& node = graph.nodes()[static_cast<size_t>(loss.node)];
        EXPECT_FALSE(loss.interior) << loss.reason << " at " << node.path << ", " << graph.type(node.inputs[0]);
        edges += !loss.interior;
      }
      EXPECT_EQ(edges, flattened(name, training) * (training ? 2 : 1));
    }
  }
}

}  // namespace
}  // namespace galley
