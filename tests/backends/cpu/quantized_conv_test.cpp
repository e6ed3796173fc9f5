// Quantized convolutions and linear layers against the reference, with each multiplication kernel: sums are bit-identical (with unit
// scales, f32 results are the sums); results in u8 and i8 are equal except for ties.

#include <hwy/highway.h>

#include "libcore/backends/cpu/quantized_gemm.h"
#include "tests/backends/cpu/quantized_support.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

using quantized::Path;

/// Forces a multiplication kernel during its lifetime.
class Forced {
 public:
  explicit Forced(Path path) { quantized::force_path(&path); }
  ~Forced() { quantized::force_path(nullptr); }
};

struct Conv {
  const char* name;
  Shape x, w;
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
};

const std::vector<Conv> kConvs{
    {"1x1", {1, 64, 7, 7}, {64, 64, 1, 1}},
    {"1x1 odd", {2, 19, 5, 3}, {37, 19, 1, 1}},
    {"1x1 one channel", {1, 1, 1, 1}, {1, 1, 1, 1}},
    {"1x1 few outputs", {3, 48, 6, 5}, {8, 48, 1, 1}},
    {"1x1 nine outputs", {1, 20, 6, 5}, {9, 20, 1, 1}},
    {"1x1 strided", {2, 24, 9, 7}, {40, 24, 1, 1}, 2},
    {"1x1 padded", {1, 8, 4, 4}, {16, 8, 1, 1}, 1, 1},
    {"3x3", {1, 32, 14, 14}, {48, 32, 3, 3}, 1, 1},
    {"3x3 odd", {2, 13, 9, 11}, {21, 13, 3, 3}, 1, 1},
    {"3x3 strided", {1, 16, 15, 12}, {33, 16, 3, 3}, 2, 1},
    {"3x3 dilated", {1, 12, 12, 13}, {17, 12, 3, 3}, 1, 2, 2},
    {"3x3 wide padding", {1, 4, 3, 3}, {5, 4, 3, 3}, 1, 4},
    {"3x3 padding wider than the image", {1, 4, 1, 1}, {5, 4, 3, 3}, 3, 4},
    {"7x7 first layer", {1, 3, 21, 19}, {40, 3, 7, 7}, 2, 3},
    {"5x5 tall", {1, 6, 30, 6}, {10, 6, 5, 5}, 1, 2},
    {"groups of 8", {1, 32, 7, 7}, {32, 8, 3, 3}, 1, 1, 1, 4},
    {"groups that share blocks", {2, 12, 6, 6}, {18, 4, 3, 3}, 1, 1, 1, 3},
    {"groups of 20", {1, 60, 5, 5}, {60, 20, 1, 1}, 1, 0, 1, 3},
    {"many pixels", {1, 8, 50, 40}, {24, 8, 1, 1}},
    {"deep", {1, 261, 3, 3}, {38, 261, 3, 3}, 1, 1},
    // Depthwise, with one and with several outputs per channel.
    {"dw3", {1, 32, 14, 14}, {32, 1, 3, 3}, 1, 1, 1, 32},
    {"dw3 odd", {2, 23, 9, 7}, {23, 1, 3, 3}, 1, 1, 1, 23},
    {"dw3 strided", {1, 40, 15, 14}, {40, 1, 3, 3}, 2, 1, 1, 40},
    {"dw3 no padding", {1, 16, 8, 9}, {16, 1, 3, 3}, 1, 0, 1, 16},
    {"dw5", {1, 24, 11, 12}, {24, 1, 5, 5}, 1, 2, 1, 24},
    {"dw5 strided", {2, 17, 13, 13}, {17, 1, 5, 5}, 2, 2, 1, 17},
    {"dw7", {1, 18, 9, 9}, {18, 1, 7, 7}, 1, 3, 1, 18},
    {"dw dilated", {1, 16, 12, 12}, {16, 1, 3, 3}, 1, 2, 2, 16},
    {"dw 2x4", {1, 19, 6, 8}, {19, 1, 2, 4}, 1, 1, 1, 19},
    {"dw one pixel", {1, 16, 1, 1}, {16, 1, 3, 3}, 1, 1, 1, 16},
    {"dw tall", {1, 8, 90, 5}, {8, 1, 3, 3}, 1, 1, 1, 8},
    {"dw doubled", {1, 12, 6, 6}, {24, 1, 3, 3}, 1, 1, 1, 12},
    // The remainders of lines after whole vectors of pixels: together with the widths above, every number.
    {"dw 2 wide", {1, 24, 4, 2}, {24, 1, 3, 3}, 1, 1, 1, 24},
    {"dw 11 wide", {1, 24, 4, 11}, {24, 1, 3, 3}, 1, 1, 1, 24},
    {"dw 4 wide", {1, 24, 4, 4}, {24, 1, 5, 5}, 1, 2, 1, 24},
    {"dw 14 wide", {1, 24, 4, 14}, {24, 1, 5, 5}, 1, 2, 1, 24},
};

QuantizedConv2dAttrs attrs_of(const Conv& c) {
  QuantizedConv2dAttrs a;
  a.stride = {c.stride};
  a.padding = {c.padding};
  a.dilation = {c.dilation};
  a.groups = c.groups;
  return a;
}

/// With every multiplication kernel and several numbers of threads, the weight contiguous or in the format that the kernel prefers.
void expect_conv(const Conv& c, QuantizedConv2dAttrs a, DType x_dtype, DType residual, bool bias, double ties, uint32_t seed) {
  for (const Path path : {Path::kExact, Path::kReduced, Path::kVnni, Path::kAmx}) {
    if (!quantized::offers(path)) continue;
    a.saturation = path == Path::kReduced ? Saturation::kReduced : Saturation::kExact;
    Graph graph;
    const MemoryFormat images = MemoryFormat::channels_last();
    const Value x = quantized_input(graph, x_dtype, c.x, images);
    const Value w = quantized_input(graph, DType::kI8, c.w, {}, ValueRole::kParameter);
    const Value scale = quantized_input(graph, DType::kF32, {c.w[0]}), b = bias ? quantized_input(graph, DType::kF32, {c.w[0]}) : Value();
    const Value r = residual == DType::kF32 ? Value() : quantized_input(graph, residual, conv_shape(a, c.x, c.w), images);
    quantized_conv2d(x, w, scale, b, a, r);
    const bool sums = a.output_dtype == DType::kF32 && ties == 0;
    const Range scales = sums ? Range{1, 1} : Range{0.001, 0.01};
    // PyTorch's weights never contain -128, but it is a valid i8.
    const auto inputs = random_inputs(graph, seed, {{}, path == Path::kReduced ? Range{-64, 64} : Range{-128, 127}, scales, {-3, 3}});
    const Tensor want = run_node(graph, inputs, true);
    const Forced forced(path);
    for (const int threads : {1, 3}) {
      std::string implementation;
      expect_same(run_node(graph, inputs, false, threads, &implementation), want,
                  cat(c.name, ", ", threads, " threads, ", static_cast<int>(path)), ties);
      EXPECT_NE(implementation, "");
    }
    const Node& node = graph.nodes().back();
    const KernelQuery query{node, context_of(graph, node), 2};
    const MemoryFormat packed = cpu().choose(query).kernel->preferred_format(query, 1);
    EXPECT_FALSE(packed.is_contiguous());
    graph.value(w.id()).type.format = packed;
    expect_same(run_node(graph, inputs, false, 2), want, cat(c.name, ", packed, ", static_cast<int>(path)), ties);
  }
}

TEST(QuantizedConv, SumsAreExact) {
  ensure_ops_registered();
  for (const Conv& c : kConvs) {
    QuantizedConv2dAttrs a = attrs_of(c);
    a.input_zero_point = 131;
    expect_conv(c, a, DType::kU8, DType::kF32, false, 0, 1);
    a.input_zero_point = 0;
    expect_conv(c, a, DType::kU8, DType::kF32, false, 0, 2);
    a.input_zero_point = -7;
    expect_conv(c, a, DType::kI8, DType::kF32, false, 0, 3);
  }
}

// The largest possible products: 255 x -128 everywhere would saturate 16 bits.
TEST(QuantizedConv, NothingSaturates) {
  ensure_ops_registered();
  for (const int64_t groups : {1, 40}) {
    Graph graph;
    QuantizedConv2dAttrs a;
    a.padding = {1};
    a.groups = groups;
    const Value x = quantized_input(graph, DType::kU8, {1, 40, 4, 4}, MemoryFormat::channels_last()),
                w = quantized_input(graph, DType::kI8, {40, 40 / groups, 3, 3});
    quantized_conv2d(x, w, quantized_input(graph, DType::kF32, {40}), {}, a);
    const auto inputs = random_inputs(graph, 1, {{255, 255}, {-128, -128}, {1, 1}});
    const Tensor want = run_node(graph, inputs, true);
    EXPECT_EQ(want.at({0, 3, 1, 1}), 255.0 * -128 * 9 * 40 / static_cast<double>(groups));
    for (const Path path : {Path::kExact, Path::kVnni, Path::kAmx}) {
      if (!quantized::offers(path)) continue;
      const Forced forced(path);
      expect_same(run_node(graph, inputs, false), want, "largest products");
    }
    expect_same(run_node(graph, inputs, false), want, "the machine's own way");
  }
}

// Real arithmetic in float32 against double: results up to 255 levels, each step within 2^-24, so that about 1e-4 of them lie near enough
// to a tie; activations by polynomials have a relative error of 1e-6.
constexpr double kTies = 1e-3;

TEST(QuantizedConv, Activations) {
  ensure_ops_registered();
  const std::vector<Conv> convs{kConvs[1], kConvs[7], kConvs[20], kConvs[21]};
  for (const Conv& c : convs) {
    for (int activation = 0; activation < static_cast<int>(kActivationNames.size()); ++activation) {
      for (const DType dtype : {DType::kU8, DType::kI8, DType::kF32}) {
        QuantizedConv2dAttrs a = attrs_of(c);
        a.activation = static_cast<Activation>(activation);
        a.input_scale = 0.0173f;
        a.input_zero_point = 30;
        if (dtype == DType::kU8) a.set_output({0.0273f, 13, DType::kU8, 0, 255});
        if (dtype == DType::kI8) a.set_output({0.0312f, -5, DType::kI8, -127, 127});
        expect_conv(c, a, DType::kU8, DType::kF32, true, kTies, 4);
        if (dtype == DType::kF32) continue;
        a.residual_scale = 0.021f;
        a.residual_zero_point = 3;
        expect_conv(c, a, DType::kU8, dtype == DType::kU8 ? DType::kI8 : DType::kU8, true, kTies, 5);
      }
    }
  }
}

// The kernels for older processors, with vectors of 128 bits.
TEST(QuantizedConv, ShortVectors) {
  ensure_ops_registered();
  const Targets only(HWY_SSSE3);
  for (const size_t i : {1, 4, 8, 13, 15, 16, 21, 25}) {
    QuantizedConv2dAttrs a = attrs_of(kConvs[i]);
    a.input_zero_point = 131;
    expect_conv(kConvs[i], a, DType::kU8, DType::kF32, false, 0, 1);
    a.activation = Activation::kHardswish;
    a.set_output({0.5, 13, DType::kU8, 0, 255});
    expect_conv(kConvs[i], a, DType::kU8, DType::kI8, true, kTies, 5);
  }
  EXPECT_EQ(quantized::path_name(Path::kExact), "exact:ssse3");
}

TEST(QuantizedConv, ReducedRange) {
  ensure_ops_registered();
  QuantizedConv2dAttrs a = attrs_of(kConvs[7]);
  a.activation = Activation::kRelu;
  a.set_output({0.05f, 0, DType::kU8, 0, 127});
  expect_conv(kConvs[7], a, DType::kU8, DType::kU8, true, kTies, 6);
}

TEST(QuantizedLinear, AgainstTheReference) {
  ensure_ops_registered();
  const std::vector<std::pair<Shape, int64_t>> sizes{{{1, 64}, 10}, {{5, 33}, 70}, {{1, 500}, 130}, {{2, 3, 7}, 16}, {{100, 9}, 3}};
  for (const auto& [shape, outputs] : sizes) {
    for (const Path path : {Path::kExact, Path::kReduced, Path::kVnni, Path::kAmx}) {
      if (!quantized::offers(path)) continue;
      const Forced forced(path);
      const Range weights = path == Path::kReduced ? Range{-64, 64} : Range{-128, 127};
      const Saturation saturation = path == Path::kReduced ? Saturation::kReduced : Saturation::kExact;
      const int64_t inputs = shape[shape.rank() - 1];
      const auto build = [&, &shape = shape, outputs = outputs](Graph& graph, DType x, const auto& make) {
        make(quantized_input(graph, x, shape), quantized_input(graph, DType::kI8, {outputs, inputs}),
             quantized_input(graph, DType::kF32, {outputs}), quantized_input(graph, DType::kF32, {outputs}));
      };
      for (const DType dtype : {DType::kF32, DType::kU8, DType::kI8}) {
        Graph graph;
        QuantizedLinearAttrs a;
        a.saturation = saturation;
        a.input_zero_point = dtype == DType::kI8 ? -3 : 17;
        a.input_scale = 0.01f;
        a.activation = Activation::kRelu;
        if (dtype != DType::kF32) a.set_output({0.3f, 4, dtype, (dtype == DType::kI8 ? -128 : 0), dtype == DType::kI8 ? 127 : 255});
        build(graph, dtype == DType::kI8 ? DType::kI8 : DType::kU8,
              [&](Value x, Value w, Value s, Value b) { quantized_linear(x, w, s, b, a); });
        const auto values = random_inputs(graph, 7, {{}, weights, {0.001, 0.01}, {-3, 3}});
        const Tensor want = run_node(graph, values, true);
        for (const int threads : {1, 2, 3})
          expect_same(run_node(graph, values, false, threads), want, cat("linear ", shape, " to ", outputs), kTies);
        Graph sums;
        a.activation = Activation::kNone;
        a.input_scale = 1;
        a.input_zero_point = 17;
        a.set_output({});
        a.output_dtype = DType::kF32;
        build(sums, DType::kU8, [&](Value x, Value w, Value s, Value) { quantized_linear(x, w, s, {}, a); });
        const auto units = random_inputs(sums, 8, {{}, weights, {1, 1}});
        expect_same(run_node(sums, units, false, 2), run_node(sums, units, true), cat("sums of linear ", shape));
      }
      Graph graph;
      DynamicQuantizedLinearAttrs a;
      a.saturation = saturation;
      build(graph, DType::kF32, [&](Value x, Value w, Value s, Value b) { dynamic_quantized_linear(x, w, s, b, a); });
      const auto values = random_inputs(graph, 9, {{-1, 3}, weights, {0.001, 0.01}, {-3, 3}});
      const Tensor want = run_node(graph, values, true);
      for (const int threads : {1, 2})
        expect_same(run_node(graph, values, false, threads), want, cat("dynamic linear ", shape, " to ", outputs), kTies);
    }
  }
}

}  // namespace
}  // namespace galley::test
