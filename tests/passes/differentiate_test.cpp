// Gradients of whole graphs: the example of requirement A1, sums over uses, unneeded gradients, finite differences through a network.

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/ops/reduce.h"
#include "tests/support/graphs.h"

namespace galley::test {
namespace {

TensorType f64(Shape shape) {
  TensorType type = f32(std::move(shape));
  type.dtype = DType::kF64;
  return type;
}

TEST(Differentiate, ExampleWithValuesUsedTwice) {
  // y = log(x0 x1) sin(x1): dy/dx0 = sin(x1)/x0 = 1.3633, dy/dx1 = sin(x1)/x1 + log(x0 x1) cos(x1) = 0.1912 at (0.5, 0.75).
  Graph g;
  const Value x0 = g.add_input("x0", f64(Shape{}), ValueRole::kParameter), x1 = g.add_input("x1", f64(Shape{}), ValueRole::kParameter);
  const Value y = mul(log(mul(x0, x1)), sin(x1));
  const ValueId wanted[] = {x0.id(), x1.id()};
  const auto gradients = differentiate(g, y.id(), wanted);
  verify(g);
  const auto values = interpret(g, {{"x0", {Shape{}, {0.5}}}, {"x1", {Shape{}, {0.75}}}});
  const double want0 = std::sin(0.75) / 0.5, want1 = std::sin(0.75) / 0.75 + std::log(0.375) * std::cos(0.75);
  EXPECT_TRUE(std::abs(values.at(gradients.at(x0.id()))[0] - want0) <= 1e-12);
  EXPECT_TRUE(std::abs(values.at(gradients.at(x1.id()))[0] - want1) <= 1e-12);
  EXPECT_TRUE(std::abs(want0 - 1.3633) <= 5e-5 && std::abs(want1 - 0.1912) <= 5e-5);
}

TEST(Differentiate, BuildsNothingBelowTheLowestTrainable) {
  TinyNet net;
  build_tiny_net(net);
  Graph& g = net.graph;
  const ValueId fc[] = {g.find_input("fc.weight"), g.find_input("fc.bias")};
  const size_t forward = g.nodes().size();
  const auto gradients = differentiate(g, net.loss.id(), fc);
  EXPECT_EQ(gradients.size(), 2u);
  for (size_t n = forward; n < g.nodes().size(); ++n) {
    EXPECT_EQ(g.nodes()[n].phase, Phase::kBackward);
    EXPECT_FALSE(g.nodes()[n].op->name.starts_with("conv2d") || g.nodes()[n].op->name.starts_with("batch_norm")) << g.nodes()[n].op->name;
  }
}

TEST(Differentiate, BuildsNoGradientOfInputsAndKeepsPaths) {
  TinyNet net;
  build_tiny_net(net);
  Graph& g = net.graph;
  differentiate(g, net.loss.id(), net.parameters);
  int data_gradients = 0;
  for (const Node& node : g.nodes()) {
    if (!node.is("conv2d_backward_data")) continue;
    ++data_gradients;
    EXPECT_NE(node.path, "conv0") << "the image has no gradient";
    EXPECT_TRUE(node.path.starts_with("conv"));
  }
  EXPECT_EQ(data_gradients, 3);
}

TEST(Differentiate, SkipsWhatTheObjectiveDoesNotDependOn) {
  Graph g;
  const Value a = g.add_input("a", f64(Shape{}), ValueRole::kParameter), b = g.add_input("b", f64(Shape{}), ValueRole::kParameter);
  const Value y = square(a);
  g.add_output("other", square(b));
  const ValueId wanted[] = {a.id(), b.id()};
  const auto gradients = differentiate(g, y.id(), wanted);
  EXPECT_EQ(gradients.count(a.id()), 1u);
  EXPECT_EQ(gradients.count(b.id()), 0u);
}

TEST(Differentiate, RefusesWhatIsNoScalar) {
  Graph g;
  const Value x = g.add_input("x", f32({2}), ValueRole::kParameter);
  const ValueId wanted[] = {x.id()};
  EXPECT_THROW(differentiate(g, relu(x).id(), wanted), Error);
}

TEST(Differentiate, EqualsFiniteDifferencesThroughANetwork) {
  TinyNet net;
  build_tiny_net(net);
  const auto feeds = feeds_for(net.graph);
  const Graph forward = net.graph;
  const auto gradients = differentiate(net.graph, net.loss.id(), net.parameters);
  const auto values = interpret(net.graph, feeds);
  ASSERT_EQ(gradients.size(), net.parameters.size());
  const auto loss_at = [&](const std::string& name, const RefArray& direction, double step) {
    auto moved = feeds;
    for (size_t i = 0; i < direction.v.size(); ++i) moved[name].v[i] += step * direction.v[i];
    return interpret(forward, moved).at(forward.find_output("loss"))[0];
  };
  for (const auto& [parameter, gradient] : gradients) {
    const std::string& name = net.graph.value(parameter).name;
    const RefArray direction = random_array(net.graph.type(parameter), 77);
    double predicted = 0;
    for (size_t i = 0; i < direction.v.size(); ++i) predicted += direction.v[i] * values.at(gradient).v[i];
    const double h = 1e-6;
    const double measured = (loss_at(name, direction, h) - loss_at(name, direction, -h)) / (2 * h);
    // The error of the central difference is h^2 (1e-12) plus rounding, 1e-16/h = 1e-10; kinks of relu are unlikely but possible.
    EXPECT_TRUE(std::abs(predicted - measured) <= 1e-6 * (1 + std::abs(measured))) << name << ": " << predicted << " != " << measured;
  }
}

}  // namespace
}  // namespace galley::test
