// Layers in f8_e4m3: which operators they become, and results of the converted graph on the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/ops/f8.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/softmax.h"
#include "tests/passes/quantized_net.h"

namespace galley::test {
namespace {

/// Attention-free transformer block: a norm, two linear layers with gelu, and a residual.
QuantizedNet mlp_net() {
  QuantizedNet net;
  const Value x = net.input({3, 7, 24});
  const auto vector = [&](const char* name) { return net.parameter(name, {24}); };
  const Value y = net.dense("up", layer_norm(x, vector("norm.weight"), vector("norm.bias")).y, 40);
  const Value z = add(net.dense("down", gelu(y), 24), x);
  net.finish(net.dense("head", softmax(z), 11));
  return net;
}

/// f8 has 3 bits of fraction: a value m 2^e, 1 <= m < 2, is rounded to a multiple of 2^(e-3). The mean square of the error is 2^(2e-6)/12,
/// that of the values 2^2e 7/3, so that the ratio is 32.5 dB. The errors of both operands of a product add up (29.5 dB), sums of many
/// products keep the ratio, and four layers in a row add up to 23.5 dB. A wrong scale of a weight, channel or residual leaves less than
/// 15 dB; a larger scale of x costs nothing until its values are below the normal numbers.
constexpr double kLeastF8Db = 20;

QuantizeConfig f8() {
  QuantizeConfig config;
  config.defaults.weights.dtype = QuantDType::kF8E4M3;
  return config;
}

TEST(Quantize, LayersOfF8ReadAndWriteRealValues) {
  const Converted made = convert(residual_net(), f8());
  EXPECT_EQ(made.plan.str(), "static: 4 of 4 layers in f8_e4m3");
  EXPECT_TRUE(made.plan.values.empty()) << "no value is stored as integers";
  EXPECT_EQ(count_of(made.graph, "f8_conv2d"), 3);
  EXPECT_EQ(count_of(made.graph, "f8_linear"), 1);
  EXPECT_EQ(made.report.quantize_nodes + made.report.dequantize_nodes, 0);
  EXPECT_GT(made.sqnr_db, kLeastF8Db);
  std::map<std::string, TensorType> tensors;
  for (const QuantizedTensor& tensor : made.report.tensors) tensors[tensor.name] = tensor.type;
  EXPECT_EQ(tensors.at("conv2.weight").dtype, DType::kF8E4M3);
  EXPECT_EQ(tensors.at("conv2.weight_scale").shape, Shape({8}));
  EXPECT_EQ(tensors.size(), 4u * 4) << "weight, weight_scale, bias, input_scale";
  // The scale of x is that of its largest value; the residual stays real.
  const Feeds feeds = feeds_of_quantized(residual_net().graph);
  double largest = 0;
  for (const double v : feeds.at("input").v) largest = std::max(largest, std::abs(v));
  EXPECT_EQ(made.plan.find("conv1")->input_scale, static_cast<double>(f8_scale(largest)));
  for (const Node& node : made.graph.nodes()) {
    if (!node.is("f8_conv2d")) continue;
    EXPECT_EQ(node.attrs<F8Conv2dAttrs>().input_scale, made.plan.find(node.path)->input_scale);
    EXPECT_EQ(node.input(4) != kNoValue, node.path == "conv3") << "the residual";
  }
  EXPECT_EQ(plan_tensors(residual_net().graph, made.plan).at("conv1.input_scale"), made.plan.find("conv1")->input_scale);
  const Converted transformer = convert(mlp_net(), f8());
  EXPECT_EQ(count_of(transformer.graph, "f8_linear"), 3);
  EXPECT_EQ(transformer.report.float_operators.count("layer_norm"), 1u);
  EXPECT_GT(transformer.sqnr_db, kLeastF8Db);
}

TEST(Quantize, LayersOfF8AndOfIntegersMayMeet) {
  QuantizeConfig config = min_max();
  config.layers["conv2"] = f8().defaults;
  const Converted made = convert(residual_net(), config);
  EXPECT_EQ(made.plan.str(), "static: 4 of 4 layers in int8 and f8_e4m3");
  EXPECT_EQ(count_of(made.graph, "f8_conv2d"), 1);
  EXPECT_EQ(count_of(made.graph, "quantized_conv2d"), 2);
  EXPECT_EQ(made.report.inner_quantize, 1);
  EXPECT_EQ(made.report.inner_dequantize, 1);
  EXPECT_GT(made.sqnr_db, kLeastF8Db);
  config.layers["conv2"].keep_float = true;
  EXPECT_EQ(convert(residual_net(), config).plan.find("conv2")->float_reason, "override");
}

TEST(Quantize, F8IsStaticOnly) {
  QuantizeConfig config = f8();
  config.method = QuantMethod::kWeightOnly;
  try {
    plan_quantization(residual_net().graph, config, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("f8_e4m3 weights need the method static"), std::string::npos) << error.message();
  }
  config.method = QuantMethod::kStatic;
  config.defaults.activations.observer.type = ObserverType::kEntropy;
  EXPECT_THROW(convert(residual_net(), config), Error);
}

}  // namespace
}  // namespace galley::test
