// Rules of advice for quantized models: planted slowdowns are found, with the right key and a gain in the right range; a clean run gets no
// advice. The facts for the rules come from real programs.

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/ops/matmul.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/profiler/advice.h"
#include "tests/profiler/other_advice.h"
#include "tests/profiler/recorded.h"

namespace galley {
namespace {

const MachineLimits kIntegerMachine{.flops_per_s = 1e11, .bytes_per_s = 1e10, .instruction_set = "none"};

OperatorRow row(const std::string& module, const std::string& type, double seconds, double flops, double bytes) {
  OperatorRow made;
  made.module = module;
  made.type = type;
  made.phase = "forward";
  made.backend = "cpu";
  made.implementation = type.starts_with("quantized_conv") ? "vnni:avx3_dl" : "";
  made.calls = 10;
  made.self_s = seconds;
  made.flops = flops;
  made.bytes = bytes;
  made.limit_s = 0.6 * seconds;
  return made;
}

/// Ten forward passes of 10 ms. A convolution that takes 20 ms of float work at the machine's limit would take 28 ms in float kernels, and
/// takes 16 ms in int8.
Profile clean_integers() {
  Profile profile;
  profile.machine = kIntegerMachine;
  profile.steps = 10;
  profile.wall_s = 0.1;
  for (const char* name : {"conv1", "conv2", "conv3", "conv4", "conv5", "conv6"})
    profile.operators.push_back(row(name, "quantized_conv2d", 0.016, 2e9, 1e6));
  for (const OperatorRow& item : profile.operators) {
    profile.compute_s += item.self_s;
    profile.work.self_s += item.self_s;
    profile.work.limit_s += item.limit_s;
  }
  profile.gap_s = profile.wall_s - profile.compute_s;
  profile.memory.planned_bytes = 1 << 20;
  profile.memory.steps.resize(1);
  profile.modules.emplace_back();
  return profile;
}

ProfileFacts integer_facts() {
  ProfileFacts facts;
  facts.training = false;
  facts.threads = facts.cores = 2;
  facts.has_convolutions = true;
  facts.batch_key = "profile.batch";
  facts.memory_bytes = int64_t{1} << 34;
  facts.integers.any = true;
  return facts;
}

TEST(IntegerAdvice, ACleanRunGetsNone) {
  for (const Advice& advice : advise(clean_integers(), integer_facts())) ADD_FAILURE() << advice.code << ": " << advice.message;
}

TEST(IntegerAdvice, LayersSlowerThanFloat) {
  Profile profile = clean_integers();
  profile.operators.push_back(row("features.dw", "quantized_conv2d", 0.05, 1e8, 1e6));  // 1e8 operations take 1 ms
  profile.wall_s += 0.05;
  const Advice advice = test::only(profile, integer_facts(), "int8_slower");
  EXPECT_EQ(advice.key, "quantize.overrides");
  EXPECT_EQ(advice.value, "[{match: ['features.dw'], keep: float}]");
  EXPECT_TRUE(advice.requantize);
  EXPECT_TRUE(advice.modeled);
  // float: 1 ms / 0.7 and ten calls of 10 us; conversions: five bytes for each of 1e6.
  EXPECT_NEAR(advice.gain_s, (0.05 - 1e-3 / 0.7 - 1e-4 - 5e6 / 1e10) / 10, 1e-9);
  ProfileFacts facts = integer_facts();
  facts.integers.overrides = true;
  EXPECT_EQ(test::only(profile, facts, "int8_slower").value, "") << "a fragment would replace the user's overrides";
  facts.integers.any = false;
  EXPECT_TRUE(test::other_advice(profile, facts).empty());
}

TEST(IntegerAdvice, TheExactWay) {
  Profile profile = clean_integers();
  ProfileFacts facts = integer_facts();
  for (OperatorRow& item : profile.operators) item.implementation = "exact:avx2";
  EXPECT_TRUE(advise(profile, facts).empty()) << "already reduced, or with i8 activations";
  for (size_t i = 0; i < 3; ++i) facts.integers.exact.insert(row_key(profile.operators[i]));
  const Advice advice = test::only(profile, facts, "int8_saturation");
  EXPECT_EQ(advice.key, "quantize.saturation");
  EXPECT_EQ(advice.value, "reduce");
  EXPECT_TRUE(advice.requantize);
  EXPECT_NEAR(advice.gain_s, 3 * 0.0016 / 6, 1e-9);  // a sixth of three layers
  for (OperatorRow& item : profile.operators) item.implementation = "vnni:avx3_dl";
  EXPECT_TRUE(advise(profile, facts).empty()) << "this machine multiplies 8-bit integers without saturation";
}

TEST(IntegerAdvice, LayersInFloatBetween) {
  Profile profile = clean_integers();
  profile.operators.push_back(row("head.conv", "conv2d", 0.032, 2e9, 4e6));
  profile.operators.push_back(row("head.conv", "dequantize", 0.004, 0, 1e6));
  profile.operators.push_back(row("tail.conv", "quantize", 0.004, 0, 1e6));
  profile.wall_s += 0.04;
  ProfileFacts facts = integer_facts();
  FloatIsland island;
  island.layers = {row_key(profile.operators[6])};
  island.conversions = {row_key(profile.operators[7]), row_key(profile.operators[8])};
  island.names = {"head.conv"};
  island.cause = "layer head.conv is in float (override)";
  facts.integers.islands = {island};
  const Advice advice = test::only(profile, facts, "int8_float_layers");
  EXPECT_EQ(advice.key, "quantize.overrides");
  EXPECT_EQ(advice.value, "") << "the layer may be in float for a reason";
  // At least 1.3 times as fast in int8; with an int8 limit of four times f32's, 0.85 of that.
  EXPECT_NEAR(advice.gain_s, 0.0008 + 0.0032 * (1 - 1 / 1.3), 1e-9);
  profile.machine.int8_per_s = 4 * profile.machine.flops_per_s;
  EXPECT_NEAR(test::only(profile, facts, "int8_float_layers").gain_s, 0.0008 + 0.0032 * (1 - 1 / 3.4), 1e-9);
  profile.machine.int8_per_s = profile.machine.flops_per_s;
  EXPECT_NEAR(test::only(profile, facts, "int8_float_layers").gain_s, 0.0008, 1e-9) << "no slower in float";
  EXPECT_NE(advice.message.find("(override)"), std::string::npos) << advice.message;
}

TEST(IntegerAdvice, ConversionsAreMeasured) {
  Profile profile = clean_integers();
  profile.operators.push_back(row("", "dequantize", 0.004, 0, 1e6));
  profile.operators.push_back(row("tail.conv", "quantize", 0.003, 0, 1e6));
  profile.wall_s += 0.007;
  ProfileFacts facts = integer_facts();
  FloatIsland island;
  island.conversions = {row_key(profile.operators[6]), row_key(profile.operators[7])};
  island.cause = "softmax has no integer form";
  facts.integers.islands = {island};
  const Advice advice = test::only(profile, facts, "int8_conversions");
  EXPECT_EQ(advice.key, "model");
  EXPECT_FALSE(advice.modeled);
  EXPECT_NEAR(advice.gain_s, 0.0007, 1e-9);
  EXPECT_NE(advice.message.find("softmax has no integer form"), std::string::npos) << advice.message;
}

// ---- facts from programs

constexpr QuantParams kU8{0.0625, 20, DType::kU8, 0, 255};

struct Net {
  Graph graph;
  TensorType typed(DType dtype, const Shape& shape) const {
    TensorType type;
    type.dtype = dtype;
    type.shape = shape;
    return type;
  }
  Value image() { return quantize(graph.add_input("image", typed(DType::kF32, {2, 16, 9, 9}), ValueRole::kInput), kU8); }
  Value conv(const std::string& name, Value x, const QuantizedConv2dAttrs& attrs) {
    const PathScope scope(graph, name);
    const int64_t channels = x.channels();
    return quantized_conv2d(x, graph.add_input(name + ".weight", typed(DType::kI8, {channels, channels, 1, 1}), ValueRole::kParameter),
                            graph.add_input(name + ".scale", typed(DType::kF32, {channels}), ValueRole::kParameter), Value(), attrs);
  }
  Value float_conv(const std::string& name, Value x) {
    const PathScope scope(graph, name);
    return conv2d(x, graph.add_input(name + ".weight", typed(DType::kF32, {x.channels(), x.channels(), 1, 1}), ValueRole::kParameter), {},
                  {});
  }
};

QuantizedConv2dAttrs to_u8(Saturation saturation = Saturation::kExact) {
  QuantizedConv2dAttrs attrs;
  attrs.set_input(kU8);
  attrs.set_output(kU8);
  attrs.saturation = saturation;
  return attrs;
}
QuantizedConv2dAttrs to_float() {
  QuantizedConv2dAttrs attrs;
  attrs.set_input(kU8);
  return attrs;
}

IntegerFacts facts_of(Net& net, const std::map<std::string, std::string>& reasons = {}) {
  return integer_facts(*compile(net.graph), reasons);
}

TEST(IntegerFacts, AChainOfIntegersHasNoIsland) {
  Net net;
  const Value x = net.conv("a", net.image(), to_u8());
  net.graph.add_output("y", dequantize(net.conv("b", x, to_u8(Saturation::kReduced)), kU8));
  const IntegerFacts facts = facts_of(net);
  EXPECT_TRUE(facts.any);
  EXPECT_TRUE(facts.islands.empty()) << "the input and output conversions are not islands";
  ASSERT_EQ(facts.exact.size(), 1u);
  EXPECT_EQ(std::get<0>(*facts.exact.begin()), "a");
}

TEST(IntegerFacts, AFloatLayerBetween) {
  Net net;
  Value x = net.conv("a", net.image(), to_float());
  x = net.float_conv("kept", x);
  net.graph.add_output("y", net.conv("b", quantize(x, kU8), to_float()));
  const IntegerFacts facts = facts_of(net, {{"kept", "override"}});
  ASSERT_EQ(facts.islands.size(), 1u);
  EXPECT_EQ(facts.islands[0].names, std::vector<std::string>{"kept"});
  EXPECT_EQ(facts.islands[0].cause, "layer kept is in float (override)");
  EXPECT_EQ(facts.islands[0].layers.size(), 1u);
  EXPECT_EQ(facts.islands[0].conversions.size(), 1u) << "a outputs floats itself; one quantize";
}

TEST(IntegerFacts, AnOperatorWithoutIntegerForm) {
  Net net;
  const Value x = net.conv("a", net.image(), to_u8());
  const Value real = softmax(dequantize(x, kU8));
  // Two readers with different scales: still one island.
  const QuantParams other{0.125, 0, DType::kU8, 0, 255};
  QuantizedConv2dAttrs attrs = to_float();
  attrs.set_input(other);
  net.graph.add_output("y", net.conv("b", quantize(real, kU8), to_float()));
  net.graph.add_output("z", net.conv("c", quantize(real, other), attrs));
  const IntegerFacts facts = facts_of(net);
  ASSERT_EQ(facts.islands.size(), 1u);
  EXPECT_TRUE(facts.islands[0].names.empty());
  EXPECT_NE(facts.islands[0].cause.find("softmax"), std::string::npos) << facts.islands[0].cause;
  EXPECT_EQ(facts.islands[0].conversions.size(), 2u) << "the dequantize; the quantizes have equal names, shapes and modules";
}

TEST(IntegerFacts, AFloatModelHasNone) {
  Net net;
  const Value image = net.graph.add_input("image", net.typed(DType::kF32, {2, 16, 9, 9}), ValueRole::kInput);
  net.graph.add_output("y", net.float_conv("a", image));
  const IntegerFacts facts = facts_of(net);
  EXPECT_FALSE(facts.any);
  EXPECT_TRUE(facts.exact.empty());
  EXPECT_TRUE(facts.islands.empty());
}

TEST(IntegerAdvice, AnIslandIsFoundInARealRun) {
  Net net;
  Value x = net.conv("a", net.image(), to_u8());
  x = quantize(softmax(dequantize(x, kU8)), kU8);
  net.graph.add_output("y", net.conv("b", x, to_float()));
  test::RecordedRun run;
  test::prepare(run, net.graph);
  for (int64_t k = 1; k <= 3; ++k) run.step(k);
  ProfileFacts facts;
  facts.integers = integer_facts(*run.program, {});
  const std::vector<Advice> advice = advise(make_profile(run.recorder.recording(), kIntegerMachine), facts, 0);
  const auto found = std::find_if(advice.begin(), advice.end(), [](const Advice& item) { return item.code == "int8_conversions"; });
  ASSERT_NE(found, advice.end());
  EXPECT_GT(found->gain_s, 0);
}

}  // namespace
}  // namespace galley
