// The zoo's convolutional networks convert completely to integers: one quantize node at the input, none inside.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "libcore/base/digest.h"
#include "libcore/nn/zoo.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/quantize.h"
#include "libcore/quant/names.h"
#include "libcore/runtime/compile.h"
#include "tests/nn/set_option.h"

namespace galley::test {
namespace {

Graph fused_model(const Component& model) {
  Graph graph;
  Builder builder(graph, {.mode = Mode::kEvaluation});
  TensorType input;
  input.dtype = model_info(model).input_dtype;
  input.shape = Shape{1};
  for (int64_t size : model_info(model).input_shape) input.shape.push_back(size);
  graph.add_output("output", build_model(builder, model, builder.input("input", input)).front().second);
  fold_batch_norm(graph);
  fuse_inference(graph);
  graph.remove_dead_nodes();
  return graph;
}
Graph fused_model(std::string_view name) { return fused_model(default_model(name)); }

/// A calibration in which every value has the range -1..1.
Calibration flat_calibration(const Graph& graph) {
  const std::vector<float> values{-1, 0, 1, 0.5f};
  Calibration calibration;
  for (const auto& [id, name] : quant_values(graph)) calibration.values[name].add(values.data(), 1, 4, name);
  return calibration;
}

QuantizeConfig simple_config() {
  QuantizeConfig config;
  config.defaults.activations.observer.type = ObserverType::kMinMax;
  return config;
}

bool has_attention_or_layer_norm(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.is("layer_norm") || node.is("matmul")) return true;
  }
  return false;
}

TEST(QuantizeZoo, ConvolutionalNetworksStayIntegerInside) {
  int converted = 0;
  for (const ComponentKind& kind : models()) {
    if (!is_zoo_model(kind.type)) continue;
    const ModelInfo info = model_info(default_model(kind.type));
    if (info.output != ModelOutput::kClasses || info.input_shape.size() != 3) continue;
    SCOPED_TRACE(kind.type);
    Graph graph = fused_model(kind.type);
    if (has_attention_or_layer_norm(graph)) continue;  // transformers and ConvNeXt: their norms and softmax are in float
    const Calibration calibration = flat_calibration(graph);
    const QuantizationPlan plan = plan_quantization(graph, simple_config(), &calibration);
    const size_t layers = plan.layers.size();
    EXPECT_EQ(plan.quantized_layers(), static_cast<int64_t>(layers));
    const ConvertReport report = convert_quantized(graph, plan);
    verify(graph);
    EXPECT_EQ(report.quantize_nodes, 1);
    EXPECT_EQ(report.dequantize_nodes, 0);
    EXPECT_EQ(report.inner_quantize + report.inner_dequantize, 0) << (report.nodes.empty() ? "" : report.nodes.back());
    // Operators in float are only after the last layer.
    for (const auto& [op, count] : report.float_operators)
      EXPECT_TRUE(op == "adaptive_avg_pool2d" || op == "reshape") << op << " " << count;
    size_t products = 0;
    for (const Node& node : graph.nodes()) {
      products += node.is("quantized_conv2d") || node.is("quantized_linear");
      EXPECT_FALSE(node.is("conv2d") || node.is("linear") || node.is("batch_norm_inference")) << node.path;
    }
    EXPECT_EQ(products, layers);
    ++converted;
  }
  EXPECT_GE(converted, 60);
}

TEST(QuantizeZoo, TransformersConvertTheirProducts) {
  for (const std::string_view name : {"vit_b_16", "convnext_tiny", "swin_t"}) {
    SCOPED_TRACE(name);
    Graph graph = fused_model(name);
    const Calibration calibration = flat_calibration(graph);
    const QuantizationPlan plan = plan_quantization(graph, simple_config(), &calibration);
    const ConvertReport report = convert_quantized(graph, plan);
    verify(graph);
    EXPECT_EQ(plan.quantized_layers(), static_cast<int64_t>(plan.layers.size()));
    // Products whose readers are in float output float values. The outputs of ConvNeXt's three downsampling convolutions are read both by a
    // depthwise convolution, as integers, and by a sum in float.
    EXPECT_EQ(report.dequantize_nodes, name == "convnext_tiny" ? 3 : 0);
    EXPECT_GT(report.float_operators.at("layer_norm"), 0);
  }
}

// Files of version 2026-11-25 and before: attention consisted of more reshapes, so its result had another number.
TEST(QuantizeZoo, PlansOfThePastVersionConvertTheSame) {
  for (const std::string_view name : {"vit_b_16", "swin_t", "swin_v2_t"}) {
    SCOPED_TRACE(name);
    const Graph fused = fused_model(name);
    const Calibration calibration = flat_calibration(fused);
    const QuantizationPlan plan = plan_quantization(fused, simple_config(), &calibration);
    QuantizationPlan past = plan;
    past.values.clear();
    int renamed = 0;
    for (const auto& [value, params] : plan.values) {
      QuantParams marked = params;  // so that every value is told from the others
      marked.scale = static_cast<float>(params.scale * (1 + 0.001 * static_cast<double>(past.values.size())));
      std::string old = value;
      const bool shifted = value.find(".1.attn.") != std::string::npos || value.find(".3.attn.") != std::string::npos ||
                           value.find(".5.attn.") != std::string::npos;
      if (value.ends_with("self_attention.reshape.2")) old.back() = '5', ++renamed;
      if (value.ends_with(".attn.reshape.4")) old.back() = shifted ? '9' : '7', ++renamed;
      past.values[old] = marked;
    }
    EXPECT_EQ(renamed, 12);
    QuantizationPlan present = past;
    for (const auto& [value, params] : plan.values) {
      (void)params;
      if (past.values.contains(value)) continue;
      for (const std::string_view number : {"5", "7", "9"}) {
        const std::string old = value.substr(0, value.size() - 1) + std::string(number);
        if (const auto node = present.values.extract(old); !node.empty()) present.values[value] = node.mapped();
      }
    }
    Graph with_past = fused, with_present = fused;
    convert_quantized(with_past, past);
    convert_quantized(with_present, present);
    EXPECT_EQ(print(with_past), print(with_present));
    // A plan that lacks a value is no plan of the model.
    past.values.erase(std::prev(past.values.end()));
    Graph lacking = fused;
    EXPECT_THROW(convert_quantized(lacking, past), Error);
  }
}

/// "resnet18 static 95 DIGEST": how many nodes the converted graph has, and the digest of its text.
std::string conversion_line(const std::string& name, const Graph& fused, QuantMethod method) {
  QuantizeConfig config = simple_config();
  config.method = method;
  config.fallback = QuantFallback::kFloat;
  const Calibration calibration = flat_calibration(fused);
  Graph graph = fused;
  convert_quantized(graph, plan_quantization(fused, config, &calibration));
  verify(graph);
  Digest digest;
  digest.update(print(graph));
  return cat(name, " ", method_name(method), " ", graph.nodes().size(), " ", digest.hex());
}

// A file of quantized weights contains a plan and loads into the graph that conversion makes from plan and model, so the conversion must
// not change. If it changes for a good reason (a model, or the text form of graphs), the lines that this test prints are the new golden
// file.
TEST(QuantizeZoo, ConvertedGraphsAreThoseOfTheGoldenFile) {
  std::vector<std::pair<std::string, Graph>> models;
  for (const char* name : {"resnet18", "mobilenet_v3_small", "densenet121", "googlenet", "shufflenet_v2_x0_5", "efficientnet_b0",
                           "convnext_tiny", "swin_t", "vit_b_16"})
    models.emplace_back(name, fused_model(name));
  for (const double cell : {0, 1, 2}) {
    Component model = default_model("rnn_lm");
    Setter setter("cell", {cell});
    model.params->options(setter);
    models.emplace_back(cat("rnn_lm_", cell), fused_model(model));
  }
  std::string found;
  for (const auto& [name, graph] : models) {
    for (const QuantMethod method : {QuantMethod::kStatic, QuantMethod::kDynamic, QuantMethod::kWeightOnly})
      found += conversion_line(name, graph, method) + "\n";
  }
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/quantize/graphs.txt");
  const std::string golden((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(found, golden);
}

/// Names of all f32 values that depend on the inputs, sorted.
std::vector<std::string> names_in(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& [id, name] : quant_values(graph)) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

TEST(QuantizeZoo, CompiledProgramsKeepTheNames) {
  // Calibration observes the compiled program without chains, which also has folded weights, reorders and Winograd operators.
  const std::shared_ptr<const Backend> backend = open_backend("cpu", {.chains = false});
  for (const std::string_view name : {"swin_t", "swin_v2_t", "vit_b_16", "convnext_tiny", "resnet18", "mobilenet_v3_small", "googlenet"}) {
    SCOPED_TRACE(name);
    const Graph graph = fused_model(name);
    const std::shared_ptr<const Program> program = compile(graph, {.backend = backend});
    EXPECT_EQ(names_in(program->graph()), names_in(graph));
  }
}

}  // namespace
}  // namespace galley::test
