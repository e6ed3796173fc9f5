// Law: a reorder between images is interior for any number of operators between them; a reorder at the flatten before a classifier, or
// where its gradient returns, is at the edge.

#include "libcore/passes/format_losses.h"

#include <gtest/gtest.h>

#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/shuffle.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/differentiate.h"

namespace galley {
namespace {

struct FormatsNet {
  Graph graph;
  std::vector<ValueId> parameters;

  Value parameter(const char* name, const Shape& shape) {
    TensorType type;
    type.shape = shape;
    const Value value = graph.add_input(name, type, ValueRole::kParameter);
    parameters.push_back(value.id());
    return value;
  }
  Value input(const Shape& shape) {
    TensorType type;
    type.shape = shape;
    return graph.add_input("x", type, ValueRole::kInput);
  }
};

/// Two convolutions with `between`, then a linear layer on all pixels.
template <class Between>
FormatsNet two_convolutions(Between between) {
  FormatsNet net;
  Value x = conv2d(net.input({2, 4, 5, 5}), net.parameter("w1", {6, 4, 1, 1}), {}, {});
  x = conv2d(between(x), net.parameter("w2", {6, 6, 1, 1}), {}, {});
  net.graph.set_path("classifier");
  x = linear(flatten(x), net.parameter("w3", {3, 150}), {}, {});
  net.graph.add_output("y", sum(mul(x, x), {0, 1}));
  return net;
}

std::vector<FormatLoss> losses_of(FormatsNet& net, bool training) {
  if (training) {
    for (const auto& [parameter, gradient] : differentiate(net.graph, net.graph.find_output("y"), net.parameters))
      net.graph.add_output(net.graph.value(parameter).name + ".grad", net.graph.at(gradient));
  }
  assign_layout(net.graph, {});
  return format_losses(net.graph);
}

TEST(FormatLosses, AFlattenIsAtTheEdge) {
  for (const bool training : {false, true}) {
    FormatsNet net = two_convolutions([](Value x) { return channel_shuffle(relu(x), 2); });
    const std::vector<FormatLoss> losses = losses_of(net, training);
    ASSERT_EQ(losses.size(), training ? 2u : 1u);
    for (const FormatLoss& loss : losses) EXPECT_FALSE(loss.interior) << loss.reason;
    EXPECT_EQ(losses[0].reason, "reshape needs contiguous values");
    EXPECT_EQ(net.graph.nodes()[static_cast<size_t>(losses[0].reader)].path, "classifier");
  }
}

TEST(FormatLosses, AShuffleThroughRankFiveIsInside) {
  for (const bool training : {false, true}) {
    FormatsNet net = two_convolutions([](Value x) { return reshape(transpose(reshape(x, {2, 2, 3, 5, 5}), 1, 2), {2, 6, 5, 5}); });
    int inside = 0;
    for (const FormatLoss& loss : losses_of(net, training)) inside += loss.interior;
    EXPECT_EQ(inside, training ? 4 : 2);  // to contiguous and back, and the same for the gradient
  }
}

TEST(FormatLosses, ALongWayRoundIsInsideToo) {
  // Through rank 2 and a few operators, then back to an image.
  FormatsNet net = two_convolutions([](Value x) { return reshape(exp(relu(flatten(x))), {2, 6, 5, 5}); });
  int inside = 0;
  for (const FormatLoss& loss : losses_of(net, false)) inside += loss.interior;
  EXPECT_EQ(inside, 2);
}

TEST(FormatLosses, SinglePixelsAreTheSameBytes) {
  FormatsNet net;
  Value x = conv2d(net.input({2, 4, 5, 5}), net.parameter("w1", {6, 4, 1, 1}), {}, {});
  AdaptiveAvgPool2dAttrs one;
  x = linear(flatten(adaptive_avg_pool2d(x, one)), net.parameter("w2", {3, 6}), {}, {});
  net.graph.add_output("y", sum(mul(x, x), {0, 1}));
  EXPECT_TRUE(losses_of(net, true).empty());
}

}  // namespace
}  // namespace galley
