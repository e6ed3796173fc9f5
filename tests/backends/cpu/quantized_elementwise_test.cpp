// Element-wise operators, joins and pools on quantized arrays against the reference; u8 and i8, odd sizes, several threads.

#include "libcore/backends/cpu/quantized_gemm.h"
#include "libcore/ops/quantize.h"
#include "tests/backends/cpu/quantized_support.h"

namespace galley::test {
namespace {

constexpr double kTies = 1e-3;  // float32 against double: see quantized_conv_test.cpp
const MemoryFormat kImages = MemoryFormat::channels_last();

QuantParams params_of(DType dtype, double scale, int64_t zero_point) {
  if (dtype == DType::kF32) return {};
  return {static_cast<float>(scale), zero_point, dtype, dtype == DType::kI8 ? -127 : 0, dtype == DType::kI8 ? 127 : 250};
}
void set_output(QuantizedOutput& a, DType dtype, double scale, int64_t zero_point) {
  if (dtype != DType::kF32) a.set_output(params_of(dtype, scale, zero_point));
}

void expect_case(const Graph& graph, const std::string& what, double ties = kTies, Range range = {}) {
  const auto inputs = random_inputs(graph, 11, {range});
  const std::vector<Tensor> want = run_outputs(graph, inputs, true);
  for (const int threads : {1, 3}) {
    const std::vector<Tensor> got = run_outputs(graph, inputs, false, threads);
    for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i], cat(what, ", ", threads, " threads, output ", i), ties);
  }
}

TEST(QuantizedElementwise, SumsAndProducts) {
  ensure_ops_registered();
  for (const Shape& shape : {Shape{2, 37, 5, 7}, Shape{1, 600, 3, 3}, Shape{1, 16, 40, 40}, Shape{1, 1, 1, 1}}) {
    for (const bool broadcast : {false, true}) {
      for (const auto& [a_dtype, b_dtype, out] :
           {std::array{DType::kU8, DType::kU8, DType::kU8}, std::array{DType::kI8, DType::kU8, DType::kI8},
            std::array{DType::kU8, DType::kI8, DType::kF32}}) {
        for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6, Activation::kHardswish,
                                            Activation::kHardsigmoid, Activation::kSilu}) {
          for (const bool multiply : {false, true}) {
            Graph graph;
            const Value a = quantized_input(graph, a_dtype, shape, kImages),
                        b = quantized_input(graph, b_dtype, broadcast ? Shape{shape[0], shape[1], 1, 1} : shape, kImages);
            QuantizedBinaryAttrs attrs;
            attrs.activation = activation;
            attrs.set_inputs(params_of(a_dtype, 0.031, 7), params_of(b_dtype, 0.0123, 100));
            set_output(attrs, out, multiply ? 0.0213 : 0.0391, 5);
            multiply ? quantized_mul(a, b, attrs) : quantized_add(a, b, attrs);
            expect_case(graph, cat(multiply ? "mul " : "add ", shape, " ", kActivationNames[static_cast<size_t>(activation)],
                                   broadcast ? " broadcast " : " ", out));
          }
        }
      }
    }
  }
}

TEST(QuantizedElementwise, TablesAndConversions) {
  ensure_ops_registered();
  for (const Shape& shape : {Shape{2, 5, 3, 7}, Shape{1, 33, 40, 40}, Shape{1, 1, 1, 1}}) {
    for (const DType dtype : {DType::kU8, DType::kI8}) {
      for (const DType out : {DType::kU8, DType::kI8}) {
        Graph graph;
        lookup(quantized_input(graph, dtype, shape, kImages),
               table_of(params_of(dtype, 0.05, 20), params_of(out, 0.02, 9), [](double x) { return x * x; }));
        expect_case(graph, cat("lookup ", dtype, " ", out), 0);
      }
      Graph to, from;
      quantize(quantized_input(to, DType::kF32, shape, kImages), params_of(dtype, 0.013, 30));
      expect_case(to, cat("quantize ", dtype), 0);
      dequantize(quantized_input(from, dtype, shape, kImages), params_of(dtype, 0.013, 30));
      expect_case(from, cat("dequantize ", dtype), 0);
    }
  }
}

TEST(QuantizedElementwise, Concat) {
  ensure_ops_registered();
  for (const int64_t axis : {1, 3}) {
    Graph graph;
    QuantizedConcatAttrs a;
    a.axis = axis;
    std::vector<Value> parts;
    for (const auto& [size, dtype] : {std::pair{5, DType::kU8}, std::pair{17, DType::kI8}, std::pair{1, DType::kU8}}) {
      parts.push_back(quantized_input(graph, dtype, axis == 1 ? Shape{2, size, 6, 9} : Shape{2, 9, 6, size}, kImages));
      a.add_input(params_of(dtype, 0.01 * static_cast<double>(size), 3));
    }
    set_output(a, DType::kU8, 0.05, 3);
    quantized_concat(parts, a);
    expect_case(graph, cat("concat ", axis), 0);
  }
}

TEST(QuantizedPool, Averages) {
  ensure_ops_registered();
  for (const Shape& shape : {Shape{2, 37, 9, 7}, Shape{1, 960, 7, 7}, Shape{1, 130, 1, 1}, Shape{1, 41, 30, 30}}) {
    for (const DType dtype : {DType::kU8, DType::kI8}) {
      for (const DType out : {DType::kU8, DType::kF32}) {
        for (const int64_t size : {1, 3}) {
          Graph graph;
          QuantizedAdaptiveAvgPool2dAttrs a;
          a.output_size = {size};
          a.set_input(params_of(dtype, 0.031, 60));
          set_output(a, out, 0.0313, 13);
          quantized_adaptive_avg_pool2d(quantized_input(graph, dtype, shape, kImages), a);
          expect_case(graph, cat("adaptive ", shape, size));
        }
        for (const bool include : {false, true}) {
          if (shape[2] < 3) continue;
          Graph graph;
          QuantizedAvgPool2dAttrs a;
          a.kernel_size = {3};
          a.stride = {2};
          a.padding = {1};
          a.ceil_mode = true;
          a.count_include_pad = include;
          a.set_input(params_of(dtype, 0.031, 60));
          set_output(a, out, 0.0273, 13);
          quantized_avg_pool2d(quantized_input(graph, dtype, shape, kImages), a);
          expect_case(graph, cat("average ", shape, include));
        }
      }
    }
  }
}

TEST(QuantizedPool, LargestBytes) {
  ensure_ops_registered();
  for (const DType dtype : {DType::kU8, DType::kI8}) {
    for (const Shape& shape : {Shape{2, 37, 9, 7}, Shape{1, 64, 30, 30}, Shape{1, 121, 6, 5}}) {
      Graph graph;
      MaxPool2dAttrs a;
      a.kernel_size = {3};
      a.stride = {2};
      a.padding = {1};
      max_pool2d(quantized_input(graph, dtype, shape, kImages), a);
      expect_case(graph, cat("max ", dtype, shape), 0,
                  dtype == DType::kI8 ? Range{-2, 1} : Range{0, 3});  // many equal values: the first one counts
    }
  }
}

}  // namespace
}  // namespace galley::test
