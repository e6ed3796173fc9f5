// Laws: a model written layer by layer captures the same graph as the same model in code; names refer to siblings, enclosing groups
// and `in`; mistakes name the layer's path.
#include "libcore/nn/layers.h"

#include <gtest/gtest.h>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "tests/nn/set_option.h"

namespace galley {
namespace {

using Settings = std::vector<std::pair<std::string, std::vector<double>>>;

std::unique_ptr<LayerSpec> layer(std::string name, std::string type, const Settings& settings = {}, std::vector<std::string> inputs = {}) {
  auto spec = std::make_unique<LayerSpec>();
  spec->name = std::move(name);
  spec->inputs = std::move(inputs);
  spec->layer.type = type;
  for (const ComponentKind& kind : layer_kinds()) {
    if (kind.type == type) spec->layer.params = kind.make();
  }
  EXPECT_TRUE(spec->layer) << type;
  for (const auto& [key, numbers] : settings) {
    Setter setter(key, numbers);
    spec->layer.params->options(setter);
    EXPECT_TRUE(setter.found) << type << " has no option " << key;
  }
  return spec;
}

template <class... Specs>
OptionList list_of(Specs... specs) {
  OptionList list;
  (list.items.push_back(std::move(specs)), ...);
  return list;
}

std::unique_ptr<LayerSpec> group(std::string name, OptionList layers, int64_t repeat = 1) {
  auto spec = std::make_unique<LayerSpec>();
  spec->name = std::move(name);
  spec->layers = std::move(layers);
  spec->repeat = repeat;
  return spec;
}

/// Attributes as text.
class AttributeText : public OptionVisitor {
 public:
  void option(const OptionInfo& i, bool& v) override { add(i, v); }
  void option(const OptionInfo& i, int64_t& v) override { add(i, v); }
  void option(const OptionInfo& i, double& v) override { add(i, v); }
  void option(const OptionInfo& i, std::string& v) override { add(i, v); }
  void option(const OptionInfo& i, std::vector<int64_t>& v) override {
    for (const int64_t n : v) add(i, n);
  }
  void option(const OptionInfo& i, std::vector<double>& v) override {
    for (const double n : v) add(i, n);
  }
  void option(const OptionInfo& i, std::vector<std::string>& v) override {
    for (const std::string& n : v) add(i, n);
  }
  void choice(const OptionInfo& i, int& v, std::span<const std::string_view> names) override { add(i, names[static_cast<size_t>(v)]); }
  std::string text;

 private:
  template <class T>
  void add(const OptionInfo& info, const T& value) {
    text += cat(" ", info.name, "=", value);
  }
};

/// A graph as text: every node with its path, attributes, inputs and the types of its outputs.
std::string dump(const Graph& graph) {
  std::string text;
  for (const ValueId id : graph.inputs()) text += cat("%", id, " ", graph.value(id).name, " ", graph.type(id), "\n");
  for (const Node& node : graph.nodes()) {
    text += cat(node.path, ": ", node.op->name);
    if (node.attributes != nullptr) {
      AttributeText attributes;
      node.attributes->clone()->options(attributes);
      text += attributes.text;
    }
    for (const ValueId id : node.inputs) text += cat(" %", id);
    for (const ValueId id : node.outputs) text += cat(" -> %", id, " ", graph.type(id));
    text += "\n";
  }
  return text;
}

std::string capture(const OptionList& layers, const TensorType& input) {
  Graph graph;
  Builder b(graph);
  graph.add_output("output", build_layers(b, layers, b.input("input", input)));
  return dump(graph);
}

std::string error_of(const OptionList& layers, const TensorType& input = {.shape = {2, 3, 8, 8}}) {
  try {
    capture(layers, input);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    return error.text();
  }
  return "no error";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
}

TEST(Layers, AreTheSameGraphAsCode) {
  const OptionList layers = list_of(
      layer("conv1", "conv2d", {{"out_channels", {16}}, {"kernel_size", {3}}, {"padding", {1}}, {"bias", {0}}}), layer("bn1", "batch_norm"),
      group("layer1",
            list_of(layer("conv1", "conv2d", {{"out_channels", {16}}, {"kernel_size", {3}}, {"padding", {1}}}), layer("relu", "relu"),
                    layer("add", "add", {}, {"relu", "in"})),
            2),
      layer("pool", "mean", {{"dim", {2, 3}}}), layer("fc", "linear", {{"out_features", {10}}}));

  Graph graph;
  Builder b(graph);
  const TensorType input{.shape = {2, 3, 8, 8}};
  Value x = b.input("input", input);
  x = b.conv2d("conv1", x, {.out_channels = 16, .kernel_size = 3, .padding = 1, .bias = false});
  x = b.batch_norm("bn1", x);
  for (const char* copy : {"layer1.0", "layer1.1"}) {
    const auto block = b.scope(copy);
    Value y = b.conv2d("conv1", x, {.out_channels = 16, .kernel_size = 3, .padding = 1});
    {
      const auto path = b.scope("relu");
      y = relu(y);
    }
    const auto path = b.scope("add");
    x = add(y, x);
  }
  {
    const auto path = b.scope("pool");
    x = mean(x, {2, 3});
  }
  x = b.linear("fc", x, {.out_features = 10});
  graph.add_output("output", x);
  EXPECT_EQ(capture(layers, input), dump(graph));
}

TEST(Layers, DeformableConvolutionTakesOffsetsAndAMask) {
  const auto maps = [](const char* name, double channels) {
    auto spec = layer(name, "conv2d", {{"out_channels", {channels}}, {"kernel_size", {3}}, {"padding", {1}}});
    spec->inputs = {"in"};
    return spec;
  };
  const auto deform = [](std::vector<std::string> inputs) {
    return layer("deform", "deform_conv2d", {{"out_channels", {4}}, {"kernel_size", {3}}, {"padding", {1}}}, std::move(inputs));
  };
  const TensorType input{.shape = {2, 3, 8, 8}};
  Graph graph;
  Builder b(graph);
  const Value x = b.input("input", input);
  const Value offsets = b.conv2d("offsets", x, {.out_channels = 18, .kernel_size = 3, .padding = 1});
  const Value mask = b.conv2d("mask", x, {.out_channels = 9, .kernel_size = 3, .padding = 1});
  graph.add_output("output", b.deform_conv2d("deform", x, offsets, {.out_channels = 4, .kernel_size = 3, .padding = 1}, mask));
  EXPECT_EQ(capture(list_of(maps("offsets", 18), maps("mask", 9), deform({"in", "offsets", "mask"})), input), dump(graph));
  capture(list_of(maps("offsets", 18), deform({"in", "offsets"})), input);
  expect_parts(error_of(list_of(maps("offsets", 17), deform({"in", "offsets"}))), {"deform", "offset must be [2,18*D,8,8]"});
  expect_parts(error_of(list_of(deform({"in"}))), {"takes two or more inputs"});
  expect_parts(error_of(list_of(maps("a", 18), deform({"in", "a", "a", "a"}))), {"but 4 inputs"});
}

TEST(Layers, EveryKindBuildsWithItsDefaults) {
  // Kinds with required options get them here; all other kinds must build with their defaults.
  const std::map<std::string, Settings> required{
      {"permute", {{"dims", {0, 2, 3, 1}}}}, {"reshape", {{"shape", {2, -1}}}}, {"mean", {{"dim", {1}}}}};
  for (const ComponentKind& kind : layer_kinds()) {
    if (kind.type == "rename" || kind.type == "deform_conv2d") continue;  // need text options, maps of offsets; tested below
    const std::string type(kind.type);
    const bool several = type == "add" || type == "sub" || type == "mul" || type == "maximum" || type == "swiglu" || type == "concat";
    const bool index = type == "embedding", sequence = type == "lstm" || type == "gru" || type == "rnn";
    OptionList layers = list_of(layer("", type, required.contains(type) ? required.at(type) : Settings{},
                                      several ? std::vector<std::string>{"in", "in"} : std::vector<std::string>{}));
    const Shape shape = sequence ? Shape{2, 4, 8} : type.ends_with("3d") ? Shape{2, 4, 8, 8, 8} : Shape{2, 4, 8, 8};
    EXPECT_NO_THROW(capture(layers, {.dtype = index ? DType::kI64 : DType::kF32, .shape = shape})) << type;
    EXPECT_FALSE(kind.doc.empty());
  }
}

TEST(Layers, UnnamedLayersAreCalledByTheirType) {
  Graph graph;
  Builder b(graph);
  build_layers(
      b, list_of(layer("", "relu"), layer("", "conv2d"), layer("", "relu"), layer("", "conv2d"), layer("", "add", {}, {"relu", "relu2"})),
      b.input("input", {.shape = {2, 1, 4, 4}}));
  std::vector<std::string> paths;
  for (const Node& node : graph.nodes()) paths.push_back(node.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"relu", "conv2d", "relu2", "conv2d2", "add"}));
}

TEST(Layers, GroupsSeeTheLayersAroundThem) {
  // A skip connection into a group, as in an encoder-decoder model.
  const std::string text =
      capture(list_of(layer("stem", "relu"), group("up", list_of(layer("act", "tanh"), layer("join", "concat", {}, {"act", "stem"})))),
              {.shape = {1, 2, 4, 4}});
  expect_parts(text, {"[1,4,4,4]", "up.join"});
}

TEST(Layers, MistakesNameTheLayersPath) {
  expect_parts(error_of(list_of(group("layer1", list_of(layer("relu", "relu"), layer("add", "add", {}, {"rleu", "in"}))))),
               {"'rleu'", "layer1.add", "did you mean 'relu'"});
  expect_parts(error_of(list_of(layer("relu", "relu"), layer("sum", "add"))), {"add takes two or more inputs, but has 1", "sum"});
  expect_parts(error_of(list_of(layer("a", "relu"), layer("b", "relu", {}, {"a", "in"}))),
               {"relu takes one input, but 2 are given", "at b"});
  expect_parts(error_of(list_of(layer("a", "relu"), layer("a", "relu"))), {"two layers have this name", "at a"});
  expect_parts(error_of(list_of(layer("in", "relu"))), {"'in' is reserved for the group's input"});
  expect_parts(error_of(list_of(layer("conv", "conv2d", {{"kernel_size", {1, 2, 3}}}))),
               {"kernel_size needs one number or two", "at conv"});
  expect_parts(error_of(list_of(group("g", list_of(layer("conv", "conv2d", {{"kernel_size", {9}}}))))), {"g.conv"});
  expect_parts(error_of(list_of(layer("a", "flatten"), layer("cat", "concat", {}, {"a", "in"}))), {"at cat"});
}

TEST(Layers, MistakesHaveTheKeyOfTheLayer) {
  const OptionList layers =
      list_of(layer("a", "relu"), group("g", list_of(layer("b", "relu"), layer("conv", "conv2d", {{"kernel_size", {9}}})), 2));
  Graph graph;
  Builder b(graph);
  try {
    build_layers(b, layers, b.input("input", {.shape = {2, 3, 8, 8}}));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), "layers.1.layers.1");
  }
}

TEST(Layers, PreluHasASlopeForAllChannelsOrForEach) {
  for (const int64_t slopes : {1, 3}) {
    const OptionList layers = list_of(layer("act", "prelu", {{"num_parameters", {static_cast<double>(slopes)}}, {"init", {0.5}}}));
    Graph graph;
    Builder b(graph);
    graph.add_output("output", build_layers(b, layers, b.input("input", {.shape = {2, 3, 1, 2}})));
    ASSERT_EQ(b.parameters().size(), 1u);
    EXPECT_EQ(b.parameters()[0].name, "act.weight");
    EXPECT_EQ(b.parameters()[0].type.shape, Shape{slopes});
    EXPECT_TRUE(b.parameters()[0].trainable);
    EXPECT_EQ(initialize(b.parameters()[0], 0).to_doubles(), std::vector<double>(static_cast<size_t>(slopes), 0.5));
    RefArray weight{{slopes}, {}};
    for (int64_t i = 0; i < slopes; ++i) weight.v.push_back(0.1 * static_cast<double>(i + 1));
    const auto values = interpret(graph, {{"input", {{2, 3, 1, 2}, {1, -1, 2, -2, 3, -3, 0, -4, -5, 5, -6, 6}}}, {"act.weight", weight}});
    const RefArray& y = values.at(graph.find_output("output"));
    for (int64_t i = 0; i < 12; ++i) {
      const double x = std::vector<double>{1, -1, 2, -2, 3, -3, 0, -4, -5, 5, -6, 6}[static_cast<size_t>(i)];
      const double slope = slopes == 1 ? 0.1 : 0.1 * static_cast<double>(i / 2 % 3 + 1);
      EXPECT_DOUBLE_EQ(y[i], x > 0 ? x : slope * x) << i;
    }
  }
  expect_parts(error_of(list_of(layer("act", "prelu", {{"num_parameters", {2}}}))),
               {"num_parameters is 2", "number of channels", "at act"});
}

TEST(Layers, NamesOfDimensionsThatDifferAreAnError) {
  auto rename = layer("swap", "rename");
  Setter setter("names", {}, {"N", "C", "W", "H"});
  rename->layer.params->options(setter);
  const TensorType input{.shape = {2, 3, 8, 8}, .names = {"N", "C", "H", "W"}};
  expect_parts(error_of(list_of(std::move(rename), layer("sum", "add", {}, {"swap", "in"})), input), {"sum", "W", "H"});
}

TEST(Layers, ModelChecksItsInput) {
  LayersModel params;
  params.input.emplace().shape = {1, 28, 28};
  params.input->names = {"C", "H", "W"};
  params.layers = list_of(layer("act", "relu"));
  Component model;
  model.type = "layers";
  model.params = params.clone();
  EXPECT_EQ(model_info(model).input_shape, (std::vector<int64_t>{1, 28, 28}));
  Graph graph;
  Builder b(graph);
  EXPECT_EQ(build_model(b, model, b.input("input", {.shape = {4, 1, 28, 28}})).front().second.shape(), Shape({4, 1, 28, 28}));
  try {
    build_model(b, model, b.input("other", {.shape = {4, 3, 28, 28}}));
    FAIL();
  } catch (const Error& error) {
    expect_parts(error.message(), {"[1,28,28]", "[3,28,28]"});
  }
}

}  // namespace
}  // namespace galley
