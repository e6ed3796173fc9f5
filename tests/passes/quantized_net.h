#pragma once
// Small graphs for tests of quantization, and their conversion as in galley-quantize: weights and ranges come from the float graph.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/ops/norm.h"
#include "libcore/ops/quantized.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/quantize.h"
#include "libcore/quant/names.h"
#include "libcore/quant/sqnr.h"
#include "libcore/quant/weights.h"
#include "tests/support/graphs.h"

namespace galley::test {

using Feeds = std::map<std::string, RefArray>;

/// Scopes and parameters for graphs in tests. Weights are drawn so that values have similar sizes in all layers.
struct QuantizedNet {
  Graph graph;
  Value input(Shape shape) { return graph.add_input("input", f32(std::move(shape)), ValueRole::kInput); }
  Value parameter(const std::string& name, Shape shape) { return graph.add_input(name, f32(std::move(shape)), ValueRole::kParameter); }
  Value conv(const std::string& name, Value x, int64_t channels, int64_t kernel, Conv2dAttrs attrs = {}) {
    const PathScope scope(graph, name);
    return conv2d(x, parameter(name + ".weight", {channels, x.channels() / attrs.groups, kernel, kernel}),
                  parameter(name + ".bias", {channels}), attrs);
  }
  Value dense(const std::string& name, Value x, int64_t features) {
    const PathScope scope(graph, name);
    return linear(x, parameter(name + ".weight", {features, x.shape()[-1]}), parameter(name + ".bias", {features}));
  }
  Value norm(const std::string& name, Value x) {
    const PathScope scope(graph, name);
    const Shape c{x.channels()};
    return batch_norm_inference(x, parameter(name + ".weight", c), parameter(name + ".bias", c),
                                graph.add_input(name + ".running_mean", f32(c), ValueRole::kBuffer),
                                graph.add_input(name + ".running_var", f32(c), ValueRole::kBuffer));
  }
  /// The fused graph, as in galley-quantize.
  void finish(Value y) {
    graph.add_output("output", y);
    fold_batch_norm(graph);
    fuse_inference(graph);
    graph.remove_dead_nodes();
  }
};

/// `ramp`: the weights of an output channel decrease from first to last by a factor of 16.
inline Feeds feeds_of_quantized(const Graph& graph, bool ramp = false) {
  Feeds feeds;
  uint64_t seed = 7;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    const Shape& shape = info.type.shape;
    const double fan = shape.rank() >= 2 ? static_cast<double>(shape.elements()) / static_cast<double>(shape[0]) : 4;
    const bool variance = info.name.ends_with("running_var"),
               scale = info.name.find("norm") != std::string::npos && info.name.ends_with(".weight");
    const double bound = info.role == ValueRole::kInput ? 1 : std::sqrt(3 / fan);
    feeds[info.name] = variance || scale ? random_array(info.type, ++seed, 0.5, 1.5) : random_array(info.type, ++seed, -bound, bound);
    if (!ramp || info.role != ValueRole::kParameter || shape.rank() < 2) continue;
    for (int64_t i = 0; i < shape.elements(); ++i)
      feeds[info.name][i] *= std::exp2(-4 * static_cast<double>(i % static_cast<int64_t>(fan)) / fan);
  }
  return feeds;
}

inline std::vector<float> floats(const RefArray& array) { return {array.v.begin(), array.v.end()}; }

inline Calibration calibrate(const Graph& graph, const Feeds& feeds) {
  const std::map<ValueId, RefArray> values = interpret(graph, feeds);
  Calibration calibration;
  for (const auto& [id, name] : quant_values(graph)) {
    const std::vector<float> seen = floats(values.at(id));
    calibration.values[name].add(seen.data(), 1, static_cast<int64_t>(seen.size()), name);
    calibration.order.push_back(name);
  }
  return calibration;
}

/// The inputs of the converted graph: integers computed from the folded weights of the float graph.
inline Feeds quantized_feeds(const Graph& fused, const QuantizationPlan& plan, const QuantizeConfig& config, const ConvertReport& report,
                             const Feeds& feeds) {
  LayerConstants constants = layer_constants(fused);
  Feeds made;
  const std::map<ValueId, RefArray> computed = [&] {
    Feeds named;
    for (ValueId id : constants.graph.inputs()) named[constants.graph.value(id).name] = feeds.at(constants.graph.value(id).name);
    return interpret(constants.graph, named);
  }();
  for (const auto& [name, id] : constants.graph.outputs()) made[name] = computed.at(id);
  for (const auto& [tensor, parameter] : constants.parameters) made[tensor] = feeds.at(parameter);
  for (const auto& [name, array] : feeds) made.try_emplace(name, array);
  std::map<std::string, std::string> values;
  for (const QuantizableLayer& layer : quantizable_layers(fused)) values[layer.name] = layer.value;
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.float_reason.empty()) continue;
    WeightScheme scheme = config.of(values.at(layer.name)).weights;
    if (layer.type == "batch_norm") scheme = {};
    scheme.reduce_range = layer.reduced;
    const RefArray& weight = made.at(layer.weight());
    const QuantizedWeight q = quantize_weight(to_tensor(f32(weight.shape), weight), scheme, layer.name);
    made[layer.weight()] = to_ref(q.values);
    made[layer.weight_scale()] = to_ref(q.scale);
    if (q.zero_point.defined()) made[layer.weight_zero_point()] = to_ref(q.zero_point);
  }
  Feeds wanted{{"input", feeds.at("input")}};
  for (const QuantizedTensor& tensor : report.tensors) {
    if (tensor.read) wanted[tensor.name] = made.at(tensor.name);
  }
  return wanted;
}

/// Operators with reduced saturation must have weights within -64..64, or activations in 0..127.
inline void expect_promises(const Graph& graph, const std::map<ValueId, RefArray>& values) {
  const auto within = [&](ValueId id, double low, double high) {
    const std::vector<double>& v = values.at(id).v;
    return std::all_of(v.begin(), v.end(), [&](double q) { return q >= low && q <= high; });
  };
  for (const Node& node : graph.nodes()) {
    const auto* conv = dynamic_cast<const QuantizedConv2dAttrs*>(node.attributes.get());
    const auto* linear = dynamic_cast<const QuantizedLinearAttrs*>(node.attributes.get());
    if (!(conv != nullptr && conv->saturation == Saturation::kReduced) &&
        !(linear != nullptr && linear->saturation == Saturation::kReduced))
      continue;
    EXPECT_TRUE(within(node.inputs[1], -64, 64) || within(node.inputs[0], 0, 127))
        << node.op->name << " at " << node.path << " has weights above 64 and activations above 127";
  }
}

struct Converted {
  QuantizationPlan plan;
  ConvertReport report;
  Graph graph;
  double sqnr_db = 0;  // of the outputs against the float graph's
};

inline Converted convert(const QuantizedNet& net, const QuantizeConfig& config, bool ramp = false) {
  const Feeds feeds = feeds_of_quantized(net.graph, ramp);
  const Calibration calibration = calibrate(net.graph, feeds);
  Converted made{.plan = plan_quantization(net.graph, config, &calibration), .graph = net.graph};
  made.report = convert_quantized(made.graph, made.plan);
  verify(made.graph);
  const std::map<ValueId, RefArray> got = interpret(made.graph, quantized_feeds(net.graph, made.plan, config, made.report, feeds));
  expect_promises(made.graph, got);
  const std::map<ValueId, RefArray> want = interpret(net.graph, feeds);
  QuantizationError error;
  for (const auto& [name, id] : net.graph.outputs()) error.add(floats(want.at(id)), floats(got.at(made.graph.find_output(name))));
  made.sqnr_db = error.sqnr_db();
  return made;
}

inline int count_of(const Graph& graph, std::string_view op) {
  return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.is(op); }));
}

/// Rounding to 256 levels over about the range of the values gives 45 to 50 dB per layer; a wrong scale, zero point, channel or residual
/// less than 15 dB. The noise of five layers in a row adds up.
inline constexpr double kLeastDb = 28;

inline QuantizeConfig min_max() {
  QuantizeConfig config;
  config.defaults.activations.observer.type = ObserverType::kMinMax;
  return config;
}

/// conv + bn + relu, residual block, pool, linear.
inline QuantizedNet residual_net() {
  QuantizedNet net;
  Value x = relu(net.norm("norm1", net.conv("conv1", net.input({2, 3, 8, 8}), 8, 3, conv_attrs(1, 1))));
  Value y = relu(net.norm("norm2", net.conv("conv2", x, 8, 3, conv_attrs(1, 1))));
  y = relu(add(net.norm("norm3", net.conv("conv3", y, 8, 3, conv_attrs(1, 1))), x));
  AdaptiveAvgPool2dAttrs whole;
  net.finish(net.dense("fc", flatten(adaptive_avg_pool2d(y, whole)), 5));
  return net;
}

}  // namespace galley::test
