// Quantization of small graphs: which operators become integers, the positions of quantize and dequantize nodes, and results of the
// converted graph on the reference, close to those of the float graph. Weights and ranges come from the float graph, as in galley-quantize.

#include "libcore/passes/quantize.h"

#include <gtest/gtest.h>

#include "libcore/ops/norm.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/recurrent.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shuffle.h"
#include "libcore/ops/softmax.h"
#include "tests/passes/quantized_net.h"

namespace galley::test {
namespace {

TEST(Quantize, StaysIntegerFromInputToLastLayer) {
  const Converted made = convert(residual_net(), min_max());
  EXPECT_EQ(made.plan.quantized_layers(), 4);
  EXPECT_EQ(made.report.quantize_nodes, 1);
  EXPECT_EQ(made.report.inner_quantize, 0);
  EXPECT_EQ(made.report.dequantize_nodes, 0);
  EXPECT_EQ(count_of(made.graph, "quantized_conv2d"), 3);
  EXPECT_EQ(count_of(made.graph, "quantized_linear"), 1);
  EXPECT_EQ(count_of(made.graph, "quantized_adaptive_avg_pool2d"), 1);
  EXPECT_EQ(made.graph.type(made.graph.find_output("output")).dtype, DType::kF32);
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
  for (const Node& node : made.graph.nodes()) {
    if (!node.is("quantized_conv2d")) continue;
    // Results of relu: all of u8, from 0.
    EXPECT_EQ(node.attrs<QuantizedConv2dAttrs>().output_dtype, DType::kU8);
    EXPECT_EQ(node.attrs<QuantizedConv2dAttrs>().output_zero_point, 0);
    EXPECT_EQ(node.input(4) != kNoValue, node.path == "conv3");
  }
}

TEST(Quantize, ListsTheTensorsOfTheContract) {
  const Converted made = convert(residual_net(), min_max());
  std::map<std::string, TensorType> tensors;
  for (const QuantizedTensor& tensor : made.report.tensors) tensors[tensor.name] = tensor.type;
  EXPECT_EQ(tensors.at("conv2.weight").dtype, DType::kI8);
  EXPECT_EQ(tensors.at("conv2.weight").shape, Shape({8, 8, 3, 3}));
  EXPECT_EQ(tensors.at("conv2.weight_scale").shape, Shape({8}));
  for (const char* leaf : {"weight_zero_point", "bias", "input_scale", "input_zero_point", "output_scale", "output_zero_point"})
    EXPECT_EQ(tensors.count(cat("conv2.", leaf)), 1u) << leaf;
  EXPECT_EQ(tensors.count("fc.output_scale"), 0u);  // its output is float
  EXPECT_EQ(tensors.count("norm2.weight"), 0u);     // folded
  EXPECT_EQ(tensors.size(), 4u * 8 - 2);
}

TEST(Quantize, ALayerKeptInFloatIsBetweenDequantizeAndQuantize) {
  QuantizeConfig config = min_max();
  config.layers["conv2"] = config.defaults;
  config.layers["conv2"].keep_float = true;
  const Converted made = convert(residual_net(), config);
  ASSERT_NE(made.plan.find("conv2"), nullptr);
  EXPECT_EQ(made.plan.find("conv2")->float_reason, "override");
  EXPECT_EQ(made.report.inner_quantize, 1);
  EXPECT_EQ(made.report.inner_dequantize, 1);
  EXPECT_EQ(count_of(made.graph, "conv2d"), 1);
  ASSERT_EQ(made.report.nodes.size(), 3u);
  EXPECT_EQ(made.report.nodes[1], "conv1: dequantize for conv2d at conv2");
  EXPECT_EQ(made.report.nodes[2], "conv2: quantize for conv2d at conv3");
  // Its batch norm is folded nevertheless.
  for (const QuantizedTensor& tensor : made.report.tensors) {
    if (tensor.name == "conv2.weight") {
      EXPECT_EQ(tensor.type.dtype, DType::kF32);
    }
    EXPECT_FALSE(tensor.name.starts_with("norm"));
  }
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
}

TEST(Quantize, SqueezeExciteAndHardswishAreInteger) {
  QuantizedNet net;
  const Value x = hardswish(net.norm("norm1", net.conv("conv1", net.input({2, 3, 8, 8}), 8, 3, conv_attrs(1, 1))));
  Value s = net.conv("squeeze", adaptive_avg_pool2d(x, {}), 4, 1);
  s = hardsigmoid(net.conv("excite", relu(s), 8, 1));
  Value y = net.conv("depthwise", mul(s, x), 8, 3, [] {  // the factor is first; quantized_mul needs it second
    Conv2dAttrs attrs = conv_attrs(1, 1);
    attrs.groups = 8;
    return attrs;
  }());
  y = tanh(add(hardswish(y), x));  // a separate activation after a sum that is not fused into a convolution
  net.finish(net.dense("fc", mean(y, {2, 3}), 5));
  const Converted made = convert(net, min_max());
  EXPECT_EQ(made.report.inner_quantize + made.report.inner_dequantize, 0);
  EXPECT_EQ(count_of(made.graph, "quantized_mul"), 1);
  EXPECT_EQ(count_of(made.graph, "quantized_add"), 1);
  EXPECT_EQ(count_of(made.graph, "lookup"), 1);
  EXPECT_EQ(count_of(made.graph, "quantized_adaptive_avg_pool2d"), 2);
  EXPECT_TRUE(made.report.float_operators.empty());
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
}

/// A batch norm after a concat cannot be folded; the inputs of a concat share quantization parameters.
QuantizedNet dense_net() {
  QuantizedNet net;
  Value x = relu(net.conv("conv1", net.input({2, 3, 8, 8}), 8, 3, conv_attrs(1, 1)));
  for (const char* layer : {"a", "b"}) {
    Value y = relu(net.norm(cat("norm_", layer), x));
    x = concat({x, net.conv(cat("conv_", layer), y, 8, 3, conv_attrs(1, 1))}, 1);
  }
  AvgPool2dAttrs half;
  x = avg_pool2d(net.conv("conv2", hardswish(net.norm("norm_c", x)), 8, 1), half);  // not relu, which would be a clamp at 0
  net.finish(net.dense("fc", flatten(x), 5));
  return net;
}

TEST(Quantize, UnfoldedBatchNormsBecomeDepthwiseProducts) {
  const Converted made = convert(dense_net(), min_max());
  EXPECT_EQ(made.report.inner_quantize + made.report.inner_dequantize, 0);
  EXPECT_EQ(count_of(made.graph, "batch_norm_inference"), 0);
  ASSERT_NE(made.plan.find("norm_a"), nullptr);
  EXPECT_EQ(made.plan.find("norm_a")->type, "batch_norm");
  EXPECT_TRUE(made.sqnr_db >= kLeastDb - 3) << made.sqnr_db;  // ten layers in a row: twice as many as above
}

TEST(Quantize, ConcatInputsShareItsMapWhereLittleIsLost) {
  const Converted made = convert(dense_net(), min_max());
  // Both concats copy, so the first convolution, the two layers and both sums have the same quantization parameters.
  EXPECT_EQ(count_of(made.graph, "concat"), 2);
  EXPECT_EQ(made.plan.values.at("conv1"), made.plan.values.at("concat.2"));
  EXPECT_EQ(made.plan.values.at("conv_a"), made.plan.values.at("concat.2"));

  // An input with a scale 100 times smaller keeps its parameters and is requantized.
  QuantizedNet net = dense_net();
  const Feeds feeds = feeds_of_quantized(net.graph);
  Calibration calibration = calibrate(net.graph, feeds);
  std::vector<float> fine{-0.01f, 0.01f};
  calibration.values["conv_b"] = RangeStatistics();
  calibration.values["conv_b"].add(fine.data(), 1, 2, "conv_b");
  const QuantizationPlan plan = plan_quantization(net.graph, min_max(), &calibration);
  EXPECT_LT(plan.values.at("conv_b").scale, plan.values.at("concat.2").scale / 50);
  convert_quantized(net.graph, plan);
  EXPECT_EQ(count_of(net.graph, "quantized_concat"), 1);
  EXPECT_EQ(count_of(net.graph, "concat"), 1);
}

TEST(Quantize, PassesIntegersThroughMovesAndPools) {
  QuantizedNet net;
  Value x = net.conv("conv1", pad(net.input({2, 4, 8, 8}), {0, 0, 0, 0, 0, 1, 0, 1}), 8, 3, conv_attrs(1, 1));
  MaxPool2dAttrs pool;
  x = max_pool2d(x, pool).y;
  // Channels are shuffled, by the operator of ShuffleNet and by views of rank 5, and split.
  x = channel_shuffle(x, 2);
  x = reshape(permute(reshape(x, {2, 2, 4, 4, 4}), {0, 2, 1, 3, 4}), {2, 8, 4, 4});
  x = slice(x, 1, 2, 6);
  ResizeAttrs twice;
  twice.size = {8, 8};
  twice.mode = ResizeMode::kNearest;
  x = net.conv("conv2", resize(x, twice), 4, 3);
  net.finish(net.dense("fc", flatten(relu(x)), 3));
  const Converted made = convert(net, min_max());
  EXPECT_EQ(made.report.quantize_nodes, 1);
  EXPECT_EQ(made.report.inner_quantize + made.report.inner_dequantize, 0);
  EXPECT_EQ(made.plan.values.count("max_pool2d"), 0u);  // it has the parameters of conv1
  for (const Node& node : made.graph.nodes()) {
    if (node.is("pad")) {
      EXPECT_EQ(node.attrs<PadAttrs>().value, static_cast<double>(made.plan.values.at("input").zero_point));
    }
    if (node.is("pad") || node.is("max_pool2d") || node.is("permute") || node.is("channel_shuffle") || node.is("slice") ||
        node.is("resize")) {
      EXPECT_EQ(made.graph.type(node.outputs[0]).dtype, DType::kU8) << node.op->name;
    }
  }
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
}

TEST(Quantize, NothingIsQuantizedForFloatReaders) {
  QuantizedNet net;
  Value x = net.conv("conv1", net.input({2, 3, 4, 4}), 4, 3);
  x = softmax(flatten(relu(x)));  // no integer form
  net.finish(net.dense("fc", add(x, x), 3));
  const Converted made = convert(net, min_max());
  EXPECT_EQ(made.report.quantize_nodes, 2);  // the input, and the sum for fc
  EXPECT_EQ(made.report.dequantize_nodes, 0);
  EXPECT_EQ(count_of(made.graph, "reshape"), 1);
  EXPECT_EQ(made.report.float_operators.at("softmax"), 1);
  EXPECT_EQ(made.report.float_operators.at("add"), 1);
  for (const Node& node : made.graph.nodes()) {
    if (node.is("quantized_conv2d")) {
      EXPECT_EQ(node.attrs<QuantizedConv2dAttrs>().output_dtype, DType::kF32);
    }
  }
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
}

TEST(Quantize, OperatorsThatNobodyAsksForIntegersStayReal) {
  QuantizedNet net;
  const Value x = relu(net.conv("conv1", net.input({2, 3, 6, 6}), 4, 3));
  const Value mean_softmax = softmax(flatten(adaptive_avg_pool2d(x, {})));  // reads the integers of conv2; its reader has no integer form
  net.graph.add_output("weights", mean_softmax);
  net.finish(net.dense("fc", flatten(relu(net.conv("conv2", x, 4, 3))), 3));
  const Converted made = convert(net, min_max());
  EXPECT_EQ(count_of(made.graph, "adaptive_avg_pool2d"), 1);
  EXPECT_EQ(made.report.inner_dequantize, 1);
  EXPECT_EQ(made.report.float_operators.at("adaptive_avg_pool2d"), 1);
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
}

TEST(Quantize, OutputsInsideAreDequantized) {
  QuantizedNet net = residual_net();
  for (const Node& node : net.graph.nodes()) {
    if (node.path == "conv2" && node.is("conv2d")) net.graph.add_output("conv2", node.outputs[0]);
  }
  const Converted made = convert(net, min_max());
  EXPECT_EQ(made.report.dequantize_nodes, 1);
  EXPECT_EQ(made.report.inner_dequantize, 0);
  EXPECT_TRUE(made.sqnr_db >= kLeastDb) << made.sqnr_db;
}

TEST(Quantize, ReducedWeightsPromiseIt) {
  QuantizeConfig config = min_max();
  config.defaults.weights.reduce_range = true;
  const Converted weights = convert(residual_net(), config);
  config = min_max();
  config.defaults.activations.reduce_range = true;
  const Converted activations = convert(residual_net(), config);
  for (const Converted* made : {&weights, &activations}) {
    for (const Node& node : made->graph.nodes()) {
      if (node.is("quantized_conv2d")) {
        EXPECT_EQ(node.attrs<QuantizedConv2dAttrs>().saturation, Saturation::kReduced);
      }
      if (node.is("quantized_linear")) {
        EXPECT_EQ(node.attrs<QuantizedLinearAttrs>().saturation, Saturation::kReduced);
      }
    }
    EXPECT_TRUE(made->sqnr_db >= kLeastDb - 6) << made->sqnr_db;  // one bit less in one operand: 6 dB
  }
  const Converted exact = convert(residual_net(), min_max());
  EXPECT_TRUE(weights.sqnr_db < exact.sqnr_db);
}

TEST(Quantize, SignedActivations) {
  QuantizeConfig config = min_max();
  config.defaults.activations.dtype = QuantDType::kInt8;
  config.defaults.activations.symmetric = true;
  const Converted made = convert(residual_net(), config);
  for (const Node& node : made.graph.nodes()) {
    if (node.is("quantized_conv2d")) {
      EXPECT_EQ(made.graph.type(node.outputs[0]).dtype, DType::kI8);
    }
  }
  EXPECT_TRUE(made.sqnr_db >= kLeastDb - 6) << made.sqnr_db;  // half of the integers represent negative values, which relu does not output
}

TEST(Quantize, DynamicQuantizesLinearLayersAndSaysWhyNotTheRest) {
  QuantizeConfig config = min_max();
  config.method = QuantMethod::kDynamic;
  try {
    convert(residual_net(), config);
    FAIL() << "layers without a kernel were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.message().find("3 layers have no kernel"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("conv2 (conv2d)"), std::string::npos) << error.message();
    EXPECT_NE(error.suggestion().find("fallback=float"), std::string::npos);
  }
  config.fallback = QuantFallback::kFloat;
  const Converted made = convert(residual_net(), config);
  EXPECT_EQ(made.plan.quantized_layers(), 1);
  EXPECT_EQ(made.plan.find("conv1")->float_reason, "no kernel: dynamic quantization does not support conv2d");
  EXPECT_EQ(count_of(made.graph, "dynamic_quantized_linear"), 1);
  EXPECT_EQ(made.report.quantize_nodes + made.report.dequantize_nodes, 0);
  EXPECT_TRUE(made.sqnr_db >= 40) << made.sqnr_db;  // one layer alone
}

TEST(Quantize, WeightOnlyInEightAndFourBits) {
  QuantizeConfig config = min_max();
  config.method = QuantMethod::kWeightOnly;
  const Converted eight = convert(residual_net(), config);
  EXPECT_EQ(eight.plan.quantized_layers(), 4);
  EXPECT_EQ(count_of(eight.graph, "dequantize_weight"), 4);
  EXPECT_EQ(count_of(eight.graph, "conv2d"), 3);
  EXPECT_TRUE(eight.sqnr_db >= 36) << eight.sqnr_db;

  config.defaults.weights.dtype = QuantDType::kInt4;
  QuantizedNet one;
  one.finish(one.conv("conv1", one.input({2, 3, 8, 8}), 16, 3, conv_attrs(1, 1)));
  const Converted four = convert(one, config, /*ramp=*/true);
  config.defaults.weights.group_size = 5;  // not a divisor: the last group of a channel is shorter
  const Converted groups = convert(one, config, /*ramp=*/true);
  std::map<std::string, TensorType> tensors;
  for (const QuantizedTensor& tensor : groups.report.tensors) tensors[tensor.name] = tensor.type;
  EXPECT_EQ(tensors.at("conv1.weight").dtype, DType::kU8);
  EXPECT_EQ(tensors.at("conv1.weight").shape, Shape({16, 3, 3, 2}));  // 3 columns in 2 bytes
  EXPECT_EQ(tensors.at("conv1.weight_scale").shape, Shape({16, 6}));  // 27 values in groups of 5
  // 16 levels: 4 bits fewer are 24 dB less. If the weights decrease by a factor of 16, scales per group reduce the noise to the mean of
  // 2^-8u, u in 0..1: at best 7 dB. Scales of wrong groups would differ by a factor of 16.
  EXPECT_TRUE(four.sqnr_db >= 12 && four.sqnr_db < eight.sqnr_db - 12) << four.sqnr_db;
  EXPECT_TRUE(groups.sqnr_db > four.sqnr_db + 3) << groups.sqnr_db << " against " << four.sqnr_db;
}

TEST(Quantize, RecurrentLayersAreTwoProductsOfIntegers) {
  for (const std::string cell : {"lstm", "gru", "rnn"}) {
    SCOPED_TRACE(cell);
    QuantizedNet net;
    const int64_t gates = cell == "lstm" ? 4 : cell == "gru" ? 3 : 1;
    Value y = net.input({3, 6, 5});
    {
      const PathScope scope(net.graph, "rnn");
      const RecurrentWeights weights{net.parameter("rnn.weight_ih_l0", {gates * 7, 5}), net.parameter("rnn.weight_hh_l0", {gates * 7, 7}),
                                     net.parameter("rnn.bias_ih_l0", {gates * 7}), net.parameter("rnn.bias_hh_l0", {gates * 7})};
      y = cell == "lstm" ? lstm(y, weights).y : cell == "gru" ? gru(y, weights).y : rnn(y, weights).y;
    }
    net.finish(net.dense("fc", y, 4));
    QuantizeConfig config = min_max();
    config.method = QuantMethod::kDynamic;
    const Converted dynamic = convert(net, config);
    EXPECT_EQ(dynamic.plan.quantized_layers(), 3);
    EXPECT_EQ(count_of(dynamic.graph, "dynamic_quantized_" + cell), 1);
    EXPECT_EQ(count_of(dynamic.graph, "dynamic_quantized_linear"), 2);
    std::map<std::string, TensorType> tensors;
    for (const QuantizedTensor& tensor : dynamic.report.tensors) tensors[tensor.name] = tensor.type;
    EXPECT_EQ(tensors.at("rnn.weight_hh_l0").dtype, DType::kI8);
    EXPECT_EQ(tensors.at("rnn.weight_hh_l0_scale").shape, Shape({gates * 7}));
    EXPECT_EQ(tensors.at("rnn.bias_hh_l0").dtype, DType::kF32);
    EXPECT_TRUE(dynamic.sqnr_db >= kLeastDb) << dynamic.sqnr_db;

    config.method = QuantMethod::kWeightOnly;
    const Converted stored = convert(net, config);
    EXPECT_EQ(count_of(stored.graph, "dequantize_weight"), 3);
    EXPECT_EQ(count_of(stored.graph, cell), 1);
    EXPECT_TRUE(stored.sqnr_db >= kLeastDb) << stored.sqnr_db;

    config.method = QuantMethod::kStatic;
    config.fallback = QuantFallback::kFloat;
    const Converted integers = convert(net, config);
    EXPECT_EQ(integers.plan.find("rnn.weight_hh_l0")->float_reason, "no kernel: recurrent layers need the method dynamic or weight_only");
    EXPECT_EQ(integers.plan.quantized_layers(), 1);
    EXPECT_TRUE(integers.sqnr_db >= kLeastDb) << integers.sqnr_db;
  }
}

TEST(Quantize, SchemesWithoutAKernelAreRefused) {
  const QuantizedNet net = residual_net();
  const Calibration calibration = calibrate(net.graph, feeds_of_quantized(net.graph));
  const auto reason = [&](auto change) {
    QuantizeConfig config = min_max();
    config.fallback = QuantFallback::kFloat;
    config.layers["conv2"] = config.defaults;
    change(config.layers["conv2"]);
    const QuantizationPlan plan = plan_quantization(net.graph, config, &calibration);
    EXPECT_EQ(plan.quantized_layers(), 3);
    config.fallback = QuantFallback::kError;
    EXPECT_THROW(plan_quantization(net.graph, config, &calibration), Error);
    return plan.find("conv2")->float_reason;
  };
  EXPECT_EQ(reason([](LayerScheme& s) { s.weights.dtype = QuantDType::kInt4; }), "no kernel: int4 weights need the method weight_only");
  EXPECT_EQ(reason([](LayerScheme& s) { s.weights.symmetric = false; }), "no kernel: affine weights need the method weight_only");
  EXPECT_EQ(reason([](LayerScheme& s) { s.weights.group_size = 16; }), "no kernel: weights in groups need the method weight_only");
}

TEST(Quantize, APlanOfAnotherModelIsRefused) {
  const Converted made = convert(residual_net(), min_max());
  const auto message = [&](QuantizationPlan plan) -> std::string {
    QuantizedNet net = residual_net();
    try {
      convert_quantized(net.graph, plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(message(made.plan), "");
  QuantizationPlan plan = made.plan;
  plan.layers.pop_back();
  EXPECT_NE(message(plan).find("no layer 'fc'"), std::string::npos) << message(plan);
  plan = made.plan;
  plan.layers.push_back({.name = "head", .type = "linear"});
  EXPECT_NE(message(plan).find("the layer 'head', but this model does not"), std::string::npos) << message(plan);
  plan = made.plan;
  plan.layers[1].type = "linear";
  EXPECT_NE(message(plan).find("layer 'conv2' is linear"), std::string::npos) << message(plan);
  plan = made.plan;
  plan.values.erase("conv1");
  EXPECT_NE(message(plan).find("no scale for the value 'conv1'"), std::string::npos) << message(plan);
}

TEST(Quantize, AValueWithoutStatisticsIsNamed) {
  const QuantizedNet net = residual_net();
  Calibration calibration = calibrate(net.graph, feeds_of_quantized(net.graph));
  calibration.values.erase("conv2");
  try {
    plan_quantization(net.graph, min_max(), &calibration);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.message().find("conv2"), std::string::npos);
  }
}

}  // namespace
}  // namespace galley::test
