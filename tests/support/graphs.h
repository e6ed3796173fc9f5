#pragma once
// Small graphs and values for tests of passes and the runtime.

#include <map>
#include <string>
#include <vector>

#include "libcore/backends/ref/ref.h"
#include "libcore/base/philox.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/passes/differentiate.h"
#include "libcore/tensor/tensor.h"

namespace galley::test {

inline TensorType f32(Shape shape) {
  TensorType type;
  type.shape = std::move(shape);
  return type;
}
inline TensorType i64(Shape shape) {
  TensorType type = f32(std::move(shape));
  type.dtype = DType::kI64;
  return type;
}

/// Values by name: floats in [-1, 1) (variances are positive), integers as given.
inline RefArray random_array(const TensorType& type, uint64_t seed, double low = -1, double high = 1) {
  RefArray array{type.shape, {}};
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 0x1234567ull;
  for (int64_t i = 0; i < type.elements(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const double unit = static_cast<double>(state >> 11) * 0x1.0p-53;
    array.v.push_back(static_cast<double>(static_cast<float>(low + (high - low) * unit)));
  }
  return array;
}

inline Tensor to_tensor(const TensorType& type, const RefArray& array) {
  Tensor tensor(type.dtype, type.shape);
  tensor.from_doubles(array.v);
  return tensor;
}

/// A small residual network: conv, bn, relu, conv, bn, add, relu, pool, linear, cross entropy; batch statistics are updated.
struct TinyNet {
  Graph graph;
  Value loss;
  std::vector<ValueId> parameters;
};

inline Conv2dAttrs conv_attrs(int64_t stride, int64_t padding) {
  Conv2dAttrs attrs;
  attrs.stride = {stride};
  attrs.padding = {padding};
  return attrs;
}

/// Must not be moved, since `Value`s refer to its graph. `depthwise`: with the convolutions of an inverted residual (1x1, depthwise, 1x1)
/// before the pool, and a residual added to the norm of a 1x1 convolution.
inline void build_tiny_net(TinyNet& net, bool training = true, int64_t batch = 3, bool depthwise = false) {
  Graph& g = net.graph;
  const auto parameter = [&](const std::string& name, Shape shape) {
    const Value value = g.add_input(name, f32(std::move(shape)), ValueRole::kParameter);
    net.parameters.push_back(value.id());
    return value;
  };
  const auto norm = [&](const std::string& name, Value x) {
    const PathScope scope(g, name);
    const Shape c{x.channels()};
    const Value gamma = parameter(name + ".weight", c), beta = parameter(name + ".bias", c);
    const Value mean = g.add_input(name + ".running_mean", f32(c), ValueRole::kBuffer),
                var = g.add_input(name + ".running_var", f32(c), ValueRole::kBuffer);
    if (!training) return batch_norm_inference(x, gamma, beta, mean, var);
    const BatchNorm r = batch_norm(x, gamma, beta);
    BatchNormUpdateAttrs attrs;
    attrs.count = x.shape()[0] * x.shape()[2] * x.shape()[3];
    const Phase phase = g.phase();
    g.set_phase(Phase::kUpdate);
    batch_norm_update(mean, var, r.mean, r.var, Value(), attrs);
    g.set_phase(phase);
    return r.y;
  };
  const auto conv = [&](const std::string& name, Value x, int64_t out, int64_t stride, int64_t size = 3) {
    const PathScope scope(g, name);
    return conv2d(x, parameter(name + ".weight", Shape{out, x.channels(), size, size}), Value(), conv_attrs(stride, size / 2));
  };
  const Value x = g.add_input("input", f32({batch, 3, 8, 8}), ValueRole::kInput);
  const Value label = g.add_input("label", i64({batch}), ValueRole::kInput);
  const Value stem = relu(norm("bn0", conv("conv0", x, 8, 1)));
  Value y = relu(norm("bn1", conv("conv1", stem, 8, 1)));
  y = relu(add(norm("bn2", conv("conv2", y, 8, 1, depthwise ? 1 : 3)), stem));
  y = relu(norm("bn3", conv("conv3", y, 16, 2)));
  if (depthwise) {
    Conv2dAttrs attrs = conv_attrs(2, 1);
    attrs.groups = 24;
    y = relu(norm("bn4", conv("expand", y, 24, 1, 1)));
    y = relu(norm("bn5", conv2d(y, parameter("depthwise.weight", Shape{24, 1, 3, 3}), Value(), attrs)));
    y = norm("bn6", conv("project", y, 16, 1, 1));
  }
  AdaptiveAvgPool2dAttrs pool;
  pool.output_size = {1};
  y = flatten(adaptive_avg_pool2d(y, pool));
  {
    const PathScope scope(g, "fc");
    y = linear(y, parameter("fc.weight", Shape{5, 16}), parameter("fc.bias", Shape{5}));
  }
  g.add_output("scores", y);
  net.loss = cross_entropy(y, label, Value(), {});
  g.add_output("loss", net.loss);
}

/// Differentiates and adds SGD with momentum. `accumulates`: of gradients that are added to state, which is cleared afterwards.
inline void add_training(TinyNet& net, bool accumulates = false) {
  Graph& g = net.graph;
  const std::map<ValueId, ValueId> gradients = differentiate(g, net.loss.id(), net.parameters);
  g.set_phase(Phase::kUpdate);
  const Value lr = g.add_input("lr", f32(Shape{}), ValueRole::kInput), step = g.add_input("step", i64(Shape{}), ValueRole::kInput);
  SgdUpdateAttrs attrs;
  attrs.momentum = 0.9;
  attrs.weight_decay = 1e-3;
  for (const auto& [parameter, gradient] : gradients) {
    const std::string name = g.value(parameter).name;
    const Value buffer = g.add_input("momentum." + name, g.type(parameter), ValueRole::kState);
    const Value earlier = accumulates ? g.add_input("earlier." + name, g.type(parameter), ValueRole::kState) : Value();
    sgd_update(g.at(parameter), accumulates ? add(earlier, g.at(gradient)) : g.at(gradient), lr, step, buffer, Value(), attrs);
    if (accumulates) clear(earlier);
  }
  g.set_phase(Phase::kForward);
}

/// Values for every named input of such a graph, which depend only on the name.
inline std::map<std::string, RefArray> feeds_for(const Graph& graph, uint64_t seed = 1) {
  std::map<std::string, RefArray> feeds;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    uint64_t hash = seed;
    for (char c : info.name) hash = hash * 131 + static_cast<unsigned char>(c);
    const bool positive = info.name.ends_with("running_var") || info.name.find("bn") != std::string::npos;
    RefArray values = random_array(info.type, hash, positive ? 0.5 : -0.5, positive ? 1.5 : 0.5);
    if (info.role == ValueRole::kState) values.v.assign(values.v.size(), 0.0);
    if (info.name == "label") {
      for (size_t i = 0; i < values.v.size(); ++i) values.v[i] = static_cast<double>(i % 5);
    }
    if (info.name == "lr") values.v = {0.1f};
    if (info.name == "step") values.v = {1};
    feeds[info.name] = std::move(values);
  }
  return feeds;
}

}  // namespace galley::test
