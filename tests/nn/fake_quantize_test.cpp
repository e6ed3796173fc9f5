// Quantization-aware training as a graph rewrite, on the reference: it rounds the values that conversion makes integers, uses
// straight-through gradients, and with frozen batch norms computes exactly the numbers of the evaluated model.

#include "libcore/passes/fake_quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/fake_quantize.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/pipelines.h"
#include "libcore/passes/quantize.h"
#include "libcore/quant/names.h"
#include "tests/support/graphs.h"

namespace galley::test {
namespace {

using Feeds = std::map<std::string, RefArray>;
using Results = std::map<ValueId, RefArray>;

constexpr int64_t kBatch = 4;

/// Depthwise, residual, squeeze-excite, a table, both pools, a concat, two linear layers; dropout only in training. `smooth`: no maxima,
/// since rounding makes ties, which have no derivative.
struct Captured {
  Graph graph;
  ValueId output = kNoValue;
  std::vector<ParameterSpec> parameters;
};
Captured capture(Mode mode, bool smooth = false) {
  Captured made;
  Builder b(made.graph, {.mode = mode});
  Value x = b.input("input", f32({kBatch, 3, 8, 8}));
  x = conv_norm(b, "stem", x, {.channels = 8, .kernel = 3, .activation = ActivationKind::kRelu});
  x = smooth ? avg_pool(x, {.kernel_size = 2}) : max_pool(x, {.kernel_size = 2});
  Value y = conv_norm(b, "depthwise", x, {.channels = 8, .kernel = 3, .groups = 8, .activation = ActivationKind::kHardswish});
  y = squeeze_excite(b, "gate", y, {.squeeze_channels = 4, .gate = hardsigmoid});
  y = conv_norm(b, "project", y, {.channels = 8});
  {
    const auto block = b.scope("block");
    y = b.stochastic_depth("drop", y, 0.2);
    x = relu(add(y, x));
  }
  const Value branches[] = {x, conv_norm(b, "branch", x, {.channels = 4, .activation = ActivationKind::kRelu6})};
  x = concat(branches, {});
  x = reshape(global_avg_pool(x), {kBatch, 12});
  x = relu(b.linear("fc1", b.dropout("dropout", x, 0.3), {.out_features = 10}));
  x = b.linear("fc2", x, {.out_features = 5});
  made.output = x.id();
  made.graph.add_output("output", x);
  made.parameters = b.take_parameters();
  return made;
}

QuantizeConfig config() {
  QuantizeConfig made;
  made.method = QuantMethod::kQat;
  made.defaults.activations.observer = {.type = ObserverType::kMovingAverage, .averaging_constant = 0.5};
  return made;
}

Graph fused(Graph graph) {
  fold_batch_norm(graph);
  fuse_inference(graph);
  graph.remove_dead_nodes();
  return graph;
}

/// Removes dropout and stochastic depth from a training graph, so that both forms have the same result.
void remove_dropping(Graph& graph) {
  for (Node& node : graph.nodes()) {
    if (!node.is("dropout") && !node.is("stochastic_depth")) continue;
    AffineAttrs same;
    node.op = &find_op("affine");
    node.inputs.resize(1);
    node.attributes = std::make_shared<AffineAttrs>(same);
    node.outputs.resize(1);
  }
}

/// Values of weights, statistics and the batch; initial ranges.
Feeds feeds_of(const Graph& graph, uint64_t seed = 3) {
  Feeds feeds;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    uint64_t own = seed;
    for (char c : info.name) own = own * 131 + static_cast<unsigned char>(c);
    const bool positive = info.name.ends_with("running_var") || (info.type.shape.rank() == 1 && info.name.ends_with(".1.weight"));
    const double fan = info.type.shape.rank() >= 2 ? static_cast<double>(info.type.elements() / info.type.shape[0]) : 4;
    const double bound = info.role == ValueRole::kInput ? 1 : std::sqrt(3 / fan);
    feeds[info.name] = positive ? random_array(info.type, own, 0.5, 1.5) : random_array(info.type, own, -bound, bound);
    if (info.type.dtype == DType::kI64)
      feeds[info.name] = RefArray{info.type.shape, std::vector<double>(static_cast<size_t>(info.type.elements()), 1)};
    if (info.name.ends_with(".range_min")) feeds[info.name] = {{}, {INFINITY}};
    if (info.name.ends_with(".range_max")) feeds[info.name] = {{}, {-INFINITY}};
  }
  return feeds;
}

/// The state after the update nodes.
void keep_state(const Graph& graph, const Results& results, Feeds& feeds) {
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      feeds[graph.value(node.inputs[static_cast<size_t>(update.input)]).name] =
          results.at(node.outputs[static_cast<size_t>(update.output)]);
    }
  }
}

std::multiset<std::string> rounded_names(const std::vector<ObservedValue>& values) {
  std::multiset<std::string> names;
  for (const ObservedValue& value : values) names.insert(value.name);
  return names;
}

TEST(FakeQuantize, RoundsTheValuesThatThePlanMakesIntegers) {
  Graph training = capture(Mode::kTraining).graph;
  const Graph evaluation = capture(Mode::kEvaluation).graph;
  const std::vector<ObservedValue> values = fake_quantize_passes(training, {evaluation, config(), {}}).values;
  Graph graph = fused(evaluation);
  EXPECT_EQ(rounded_names(fake_quantize_inference(graph, config(), false).values), rounded_names(values));
  // The plan of a calibration in which every value has the range -1..1.
  const Graph plain = fused(evaluation);
  Calibration calibration;
  for (const auto& [id, name] : quant_values(plain)) {
    const float bounds[] = {-1, 1};
    calibration.values[name].add(bounds, 1, 2, name);
    calibration.order.push_back(name);
  }
  const QuantizationPlan plan = plan_quantization(plain, config(), &calibration);
  std::multiset<std::string> planned;
  for (const auto& [name, params] : plan.values) planned.insert(name);
  EXPECT_EQ(rounded_names(values), planned);
  EXPECT_EQ(planned.count("input"), 1u);
  EXPECT_EQ(planned.count("fc2"), 0u) << "the result is real";
  int weights = 0, activations = 0;
  const std::vector<int> producers = training.producers();
  for (const Node& node : training.nodes()) {
    // Both operands of every product are rounded, also through operators that only move elements.
    for (size_t side = 0; (node.is("conv2d") || node.is("linear")) && side < 2; ++side) {
      std::string_view maker = "max_pool2d";
      for (ValueId id = node.inputs[side]; maker == "max_pool2d" || maker == "reshape" || maker == "dropout";) {
        const int producer = producers[static_cast<size_t>(id)];
        maker = producer < 0 ? "nothing" : training.nodes()[static_cast<size_t>(producer)].op->name;
        if (producer >= 0) id = training.nodes()[static_cast<size_t>(producer)].inputs[0];
      }
      EXPECT_EQ(maker, "fake_quantize") << node.path << ", input " << side;
    }
    if (node.is("fake_quantize")) (node.attrs<FakeQuantizeAttrs>().axis == 0 ? weights : activations) += 1;
  }
  EXPECT_EQ(weights, 8);
  EXPECT_EQ(activations, static_cast<int>(values.size()));
}

TEST(FakeQuantize, LayersLeftInFloatAreNotTouched) {
  QuantizeConfig some = config();
  LayerScheme keep = some.defaults;
  keep.keep_float = true;
  for (const char* name : {"stem.0", "fc2"}) some.layers[name] = keep;
  Graph training = capture(Mode::kTraining).graph;
  const auto names = rounded_names(fake_quantize_passes(training, {capture(Mode::kEvaluation).graph, some, {}}).values);
  EXPECT_EQ(names.count("input"), 0u) << "its one reader is in float";
  EXPECT_EQ(names.count("fc1"), 0u);
  for (const Node& node : training.nodes()) {
    const bool left = node.path == "stem.0" || node.path == "fc2";
    if (!left || (!node.is("conv2d") && !node.is("linear"))) continue;
    EXPECT_EQ(training.value(node.inputs[1]).role, ValueRole::kParameter) << node.path;
  }
}

/// With frozen statistics and fixed ranges, training computes the values of the evaluation, and evaluation those of the converted model.
class Agreement : public ::testing::TestWithParam<bool> {};

TEST_P(Agreement, FrozenTrainingEqualsEvaluation) {
  QuantizeConfig scheme = config();
  scheme.defaults.weights.per_channel = GetParam();
  const Graph evaluation = capture(Mode::kEvaluation).graph;
  // Ranges observed over two batches.
  Graph observing = capture(Mode::kTraining).graph;
  remove_dropping(observing);
  fake_quantize_passes(observing, {evaluation, scheme, {}});
  Feeds feeds = feeds_of(observing);
  for (uint64_t batch = 0; batch < 2; ++batch) {
    feeds["input"] = random_array(f32({kBatch, 3, 8, 8}), 100 + batch);
    keep_state(observing, interpret(observing, feeds, /*round=*/true), feeds);
  }
  EXPECT_TRUE(std::isfinite(feeds.at("fc1.range_max")[0]));
  EXPECT_NE(feeds.at("stem.1.running_mean")[0], feeds_of(observing).at("stem.1.running_mean")[0])
      << "statistics move while they are not frozen";

  Captured frozen = capture(Mode::kTraining);
  remove_dropping(frozen.graph);
  fake_quantize_passes(frozen.graph, {evaluation, scheme, {.observe = false, .freeze_batch_norm = true}});
  for (const Node& node : frozen.graph.nodes()) EXPECT_TRUE(node.op->updates.empty()) << node.op->name << " at " << node.path;
  Graph evaluated = fused(evaluation);
  fake_quantize_inference(evaluated, scheme, false);
  const RefArray trained = interpret(frozen.graph, feeds, /*round=*/true).at(frozen.graph.find_output("output"));
  const RefArray result = interpret(evaluated, feeds, /*round=*/true).at(evaluated.find_output("output"));
  // One graph has conv + add + relu as one operator, so float roundings differ; at a tie, one of many values differs by a step.
  double largest = 0, worst = 0;
  for (size_t i = 0; i < result.v.size(); ++i) {
    largest = std::max(largest, std::abs(result.v[i]));
    worst = std::max(worst, std::abs(result.v[i] - trained.v[i]));
  }
  EXPECT_TRUE(worst <= 2e-3 * largest) << worst << " of " << largest;
  EXPECT_GT(largest, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Weights, Agreement, ::testing::Values(true, false));

/// With symmetric scales per channel, and, by the factor of the batch norm, with one scale or learned scales, the weight before the norm is
/// rounded to the integers that conversion computes after folding. Learned scales start at those of the ranges.
TEST(FakeQuantize, WeightsAreTheIntegersOfConversion) {
  std::map<bool, RefArray> unlearned;  // by per_channel
  for (const auto& [per_channel, scale_of_present] :
       {std::pair(true, 0.0), {false, 0.0}, {true, 1.0}, {false, 1.0}, {true, 0.6}, {false, 0.6}}) {
    SCOPED_TRACE(cat(per_channel ? "per channel" : "per tensor", ", learned scales: ", scale_of_present));
    const bool learned = scale_of_present > 0;
    QuantizeConfig scheme = config();
    scheme.defaults.weights.per_channel = per_channel;
    const Graph evaluation = capture(Mode::kEvaluation).graph;
    Graph training = capture(Mode::kTraining).graph;
    remove_dropping(training);
    fake_quantize_passes(training, {evaluation, scheme, {.observe = !learned, .learn_scale = learned}});
    Graph evaluated = fused(evaluation);
    const FakeQuantizedModel rounded = fake_quantize_inference(evaluated, scheme, learned);
    Feeds feeds = feeds_of(training);
    for (const auto& [name, array] : feeds_of(evaluated)) feeds.emplace(name, array);
    const Graph present = present_weight_scales(fused(evaluation), rounded.weights);
    const Results scales = interpret(present, feeds);
    ASSERT_EQ(present.outputs().size(), 8u);
    for (const auto& [name, id] : present.outputs()) {
      RefArray scale = scales.at(id);
      for (double& each : scale.v) each *= scale_of_present;
      if (learned) feeds.at(name) = scale;
    }
    const auto weight_of = [&](const Graph& graph, const std::string& path) {
      const Results results = interpret(graph, feeds);
      for (const Node& node : graph.nodes()) {
        if (node.is("conv2d") && node.path == path) return results.at(node.inputs[1]);
      }
      ADD_FAILURE() << path;
      return RefArray();
    };
    const RefArray before = weight_of(training, "stem.0"), after = weight_of(evaluated, "stem.0");
    double moved = 0;
    for (size_t i = 0; learned && i < after.v.size(); ++i) moved = std::max(moved, std::abs(after.v[i] - unlearned.at(per_channel).v[i]));
    if (!learned) unlearned[per_channel] = after;
    if (scale_of_present < 1) {
      EXPECT_EQ(moved > 1e-3, learned) << moved;
    } else {
      EXPECT_LT(moved, 1e-7);
    }
    const int64_t each = after.shape.elements() / after.shape[0];
    for (int64_t i = 0; i < after.shape.elements(); ++i) {
      const std::string channel = "stem.1";
      const double factor = feeds.at(channel + ".weight")[i / each] / std::sqrt(feeds.at(channel + ".running_var")[i / each] + 1e-5);
      EXPECT_NEAR(before[i] * factor, after[i], 1e-6 * std::abs(after[i]) + 1e-9) << i;  // scales are rounded to float32 on both sides
    }
  }
}

/// The gradient equals that of the same graph in which each rounding is replaced by the addition of its current rounding error: the
/// straight-through rule as finite differences of a smooth function.
TEST(FakeQuantize, GradientsPassStraightThrough) {
  for (const bool freeze : {false, true}) {
    Captured made = capture(Mode::kTraining, true);
    Graph& graph = made.graph;
    remove_dropping(graph);
    const std::vector<ObservedValue> values =
        fake_quantize_passes(graph, {capture(Mode::kEvaluation, true).graph, config(), {.observe = false, .freeze_batch_norm = freeze}})
            .values;
    const Value output = graph.at(graph.find_output("output"));
    const Value loss = sum(mul(output, graph.add_input("cotangent", output.type(), ValueRole::kInput)), {0, 1});
    const Graph forward = graph;
    std::vector<ValueId> wanted;
    for (const ParameterSpec& spec : made.parameters) {
      if (spec.role == ValueRole::kParameter) wanted.push_back(graph.find_input(spec.name));
    }
    const std::map<ValueId, ValueId> gradients = differentiate(graph, loss.id(), wanted);
    Feeds feeds = feeds_of(graph);
    for (const ObservedValue& value : values) {  // narrow, so that many values are outside
      feeds[value.min()] = {{}, {-0.3}};
      feeds[value.max()] = {{}, {0.6}};
    }
    const Results results = interpret(graph, feeds);

    // y = x + (its error), or a constant outside of the integers' range: more than half a step away.
    Graph surrogate = forward;
    const std::deque<Node> rounding = surrogate.nodes();
    surrogate.set_nodes({});
    int rounded = 0;
    for (const Node& node : rounding) {
      surrogate.nodes().push_back(node);
      if (!node.is("fake_quantize")) continue;
      surrogate.nodes().pop_back();
      const RefArray &x = results.at(node.inputs[0]), &y = results.at(node.outputs[0]), &scale = results.at(node.inputs[1]);
      const int64_t each = x.shape.elements() / scale.shape.elements();
      RefArray error{x.shape, {}}, passes{x.shape, {}};
      for (int64_t i = 0; i < x.shape.elements(); ++i) {
        passes.v.push_back(std::abs(y[i] - x[i]) <= 0.5000001 * scale[i / each] ? 1 : 0);
        error.v.push_back(y[i] - x[i] * passes[i]);
      }
      const std::string name = cat("error", rounded++);
      const Value kept = surrogate.add_input(name + ".passes", forward.type(node.outputs[0]), ValueRole::kInput),
                  shift = surrogate.add_input(name, forward.type(node.outputs[0]), ValueRole::kInput);
      feeds[name] = error;
      feeds[name + ".passes"] = passes;
      const Value product = mul(surrogate.at(node.inputs[0]), kept);
      Node sum = node;
      sum.op = &find_op("add");
      sum.attributes = nullptr;
      sum.inputs = {product.id(), shift.id()};
      surrogate.nodes().push_back(sum);
    }
    EXPECT_GE(rounded, 18);
    for (size_t p = 0; p < wanted.size(); ++p) {
      const std::string name = graph.value(wanted[p]).name;
      const auto found = gradients.find(wanted[p]);
      ASSERT_TRUE(found != gradients.end()) << name;
      const RefArray& gradient = results.at(found->second);
      const RefArray direction = random_array(graph.type(wanted[p]), 900 + p);
      double expected = 0, size = 0;
      for (size_t i = 0; i < gradient.v.size(); ++i) {
        expected += gradient.v[i] * direction.v[i];
        size += std::abs(gradient.v[i] * direction.v[i]);
      }
      constexpr double kStep = 1e-6;
      const auto loss_at = [&](double h) {
        Feeds moved = feeds;
        for (size_t i = 0; i < direction.v.size(); ++i) moved[name].v[i] += h * direction.v[i];
        return interpret(surrogate, moved).at(loss.id())[0];
      };
      const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      // Error of differences in double: 1e-16 / 1e-6 of the loss, and the square of the step. A gradient scaled by 1.01 is far outside.
      EXPECT_TRUE(std::abs(slope - expected) <= 2e-4 * size + 1e-7)
          << name << (freeze ? ", frozen" : "") << ": " << slope << " against " << expected;
    }
  }
}

/// Every rounded value also exists in training graphs, which contain additional nodes: dropout, stochastic depth, auxiliary heads.
TEST(FakeQuantize, ZooNetworksHaveTheirCounterparts) {
  for (const char* name : {"resnet18", "mobilenet_v2", "mobilenet_v3_small", "densenet121", "googlenet", "inception_v3",
                           "shufflenet_v2_x0_5", "efficientnet_b0", "regnet_y_400mf", "vgg11_bn", "cifar_resnet20"}) {
    SCOPED_TRACE(name);
    const Component model = default_model(name);
    const auto captured = [&](Mode mode) {
      Graph graph;
      Builder builder(graph, {.mode = mode});
      TensorType input;
      input.shape = Shape{2};
      for (int64_t size : model_info(model).input_shape) input.shape.push_back(size);
      for (const auto& [output, value] : build_model(builder, model, builder.input("input", input)))
        graph.add_output(output.empty() ? "output" : output, value);
      return graph;
    };
    for (const bool freeze : {false, true}) {
      Graph training = captured(Mode::kTraining);
      const std::vector<ObservedValue> values =
          fake_quantize_passes(training, {captured(Mode::kEvaluation), config(), {.freeze_batch_norm = freeze}}).values;
      verify(training);
      int rounded = 0;
      for (const Node& node : training.nodes()) rounded += node.is("fake_quantize") && node.attrs<FakeQuantizeAttrs>().axis < 0;
      EXPECT_EQ(rounded, static_cast<int>(values.size()));
      EXPECT_GT(rounded, 8);
    }
  }
}

TEST(FakeQuantize, ScalesLearn) {
  Captured made = capture(Mode::kTraining);
  const FakeQuantizedModel rounded =
      fake_quantize_passes(made.graph, {capture(Mode::kEvaluation).graph, config(), {.observe = false, .learn_scale = true}});
  const Value output = made.graph.at(made.graph.find_output("output"));
  const Value loss = sum(output, {0, 1});
  std::vector<ValueId> scales;
  for (const ObservedValue& value : rounded.values) scales.push_back(made.graph.find_input(value.scale()));
  for (const FakeQuantizedWeight& weight : rounded.weights) scales.push_back(made.graph.find_input(weight.scale()));
  EXPECT_EQ(rounded.weights.size(), 8u);
  const std::map<ValueId, ValueId> gradients = differentiate(made.graph, loss.id(), scales);
  for (const ValueId scale : scales) {
    ASSERT_NE(scale, kNoValue);
    ASSERT_EQ(made.graph.value(scale).role, ValueRole::kParameter);
    EXPECT_EQ(gradients.count(scale), 1u) << made.graph.value(scale).name;
  }
  // LSQ, section 2.2: 1 / sqrt(weights of the layer * largest integer). The first one has 8 of 3 x 3 x 3.
  for (const Node& node : made.graph.nodes()) {
    if (!node.is("fake_quantize") || node.path != "stem.0") continue;
    EXPECT_DOUBLE_EQ(node.attrs<FakeQuantizeAttrs>().gradient_factor, 1 / std::sqrt(8 * 27.0 * 127));
  }
}

TEST(RangeOfParams, GivesTheScaleBack) {
  RandomStream random(11, "scales");
  for (int i = 0; i < 20000; ++i) {
    const QuantRange range = quant_range(i % 2 == 0 ? QuantDType::kUint8 : QuantDType::kInt8, i % 3 == 0);
    QuantParams params{.scale = static_cast<double>(static_cast<float>(std::exp2(random.uniform(-20, 10)))),
                       .dtype = range.dtype,
                       .qmin = range.min,
                       .qmax = range.max};
    params.zero_point = range.min + static_cast<int64_t>(random.uniform() * static_cast<double>(range.max - range.min + 1));
    if (i % 5 == 0) params.zero_point = range.min;
    if (i % 7 == 0) params.zero_point = range.max;
    const FloatRange bounds = range_of_params(params, false);
    const QuantParams back = affine_params(static_cast<double>(bounds.min), static_cast<double>(bounds.max), range);
    EXPECT_NEAR(back.scale / params.scale, 1, 2.4e-7)
        << params.zero_point;  // four roundings to float32: bounds, their difference, the quotient
    EXPECT_EQ(back.zero_point, params.zero_point) << params.scale;
    params.zero_point = range.min < 0 ? 0 : (range.max + 1) / 2;
    const FloatRange both = range_of_params(params, true);
    EXPECT_NEAR(symmetric_params(static_cast<double>(both.max), range).scale / params.scale, 1, 1.3e-7);  // two
  }
}

}  // namespace
}  // namespace galley::test
