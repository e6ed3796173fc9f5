// Wrong arguments of operators on quantized values are errors that show both sides; results keep formats and names; tables equal the
// operators that they replace.

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/f8.h"
#include "libcore/ops/fake_quantize.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "tests/ops/mistakes.h"

namespace galley {
namespace {

class QuantizedMistakes : public MistakeTest {};

TEST_F(QuantizedMistakes, QuantizeAndLookup) {
  const Value x = input({2, 3}), q = input({2, 3}, DType::kU8);
  graph_.set_path("layer1");
  expect_error([&] { quantize(q, {}); }, {"[quantize]", "must be f32", "u8 [2,3]", "at layer1"});
  expect_error([&] { quantize(x, {0.1, 0, DType::kU8, 0, 255}); }, {"float32 value", "0.1"});
  expect_error([&] { quantize(x, {1, 300, DType::kU8, 0, 255}); }, {"zero point 300", "0..255"});
  expect_error([&] { dequantize(x, {}); }, {"f32 [2,3]"});
  expect_error([&] { dequantize(q, {1, 0, DType::kI8, -128, 127}); }, {"u8 [2,3]", "i8 -128..127"});
  LookupAttrs short_table;
  short_table.table = {1, 2, 3};
  expect_error([&] { lookup(q, short_table); }, {"256 entries", "not 3"});
  LookupAttrs wrong;
  wrong.table.assign(256, 200);
  wrong.dtype = DType::kI8;
  expect_error([&] { lookup(q, wrong); }, {"entry 200", "i8"});
  EXPECT_EQ(requantize(q, {}, {}), q) << "equal parameters need no table";
}

TEST_F(QuantizedMistakes, Products) {
  const Value x = input({1, 4, 9, 9}, DType::kU8), w = input({6, 4, 3, 3}, DType::kI8), scale = input({6});
  expect_error([&] { quantized_conv2d(input({1, 4, 9, 9}), w, scale, {}, {}); },
               {"[quantized_conv2d]", "x must be u8 or i8", "f32 [1,4,9,9]", "quantize it first"});
  expect_error([&] { quantized_conv2d(x, input({6, 4, 3, 3}), scale, {}, {}); }, {"weight must be i8", "f32"});
  expect_error([&] { quantized_conv2d(x, input({6, 5, 3, 3}, DType::kI8), scale, {}, {}); },
               {"weight needs 5 input channels", "input has 4"});
  expect_error([&] { quantized_conv2d(x, w, input({5}), {}, {}); }, {"weight_scale must be f32 [6]", "[5]"});
  expect_error([&] { quantized_conv2d(x, w, scale, input({5}), {}); }, {"bias must be f32 [6]", "[5]"});
  expect_error([&] { quantized_conv2d(x, w, scale, {}, {}, input({1, 6, 9, 9}, DType::kU8)); }, {"residual", "[1,6,7,7]", "[1,6,9,9]"});
  QuantizedConv2dAttrs bad;
  bad.input_zero_point = 256;
  expect_error([&] { quantized_conv2d(x, w, scale, {}, bad); }, {"zero point 256"});
  bad = {};
  bad.output_dtype = DType::kI32;
  expect_error([&] { quantized_conv2d(x, w, scale, {}, bad); }, {"u8 or i8, not i32"});
  // 255 * 128 * 65793 is the largest that 32 bits hold.
  quantized_linear(input({1, 65793}, DType::kU8), input({1, 65793}, DType::kI8), input({1}), {}, {});
  expect_error([&] { quantized_linear(input({1, 65794}, DType::kU8), input({1, 65794}, DType::kI8), input({1}), {}, {}); },
               {"65794 products", "32 bits", "in float"});
  expect_error([&] { quantized_linear(input({4, 7}, DType::kU8), input({5, 8}, DType::kI8), input({5}), {}, {}); },
               {"weight needs 8 input features, but the input has 7"});
  expect_error([&] { dynamic_quantized_linear(input({4, 8}, DType::kU8), input({5, 8}, DType::kI8), input({5}), {}); },
               {"must be f32", "u8"});
}

TEST_F(QuantizedMistakes, F8) {
  const Value x = input({2, 4, 9, 9}), w = input({6, 4, 3, 3}, DType::kF8E4M3), scale = input({6});
  expect_error([&] { f8_conv2d(x, input({6, 4, 3, 3}, DType::kI8), scale, {}, {}); }, {"[f8_conv2d]", "weight must be f8_e4m3", "i8"});
  expect_error([&] { f8_conv2d(x, w, input({5}), {}, {}); }, {"weight_scale must be f32 [6]", "[5]"});
  expect_error([&] { f8_conv2d(x, w, scale, input({5}), {}); }, {"bias must be f32 [6]", "[5]"});
  expect_error([&] { f8_conv2d(x, w, scale, {}, {}, input({2, 6, 9, 9})); }, {"residual", "[2,6,7,7]"});
  expect_error([&] { f8_conv2d(input({2, 4, 9, 9}, DType::kF8E4M3), w, scale, {}, {}); },
               {"x must have a floating-point dtype", "f8_e4m3"});
  F8LinearAttrs attrs;
  attrs.input_scale = 0.1;
  expect_error([&] { f8_linear(input({3, 8}), input({5, 8}, DType::kF8E4M3), input({5}), {}, attrs); }, {"float32 value", "0.1"});
  expect_error([&] { f8_linear(input({3, 8}), input({5, 7}, DType::kF8E4M3), input({5}), {}, {}); }, {"7", "8"});
  expect_error([&] { round_to_f8(x, -1); }, {"positive"});
  expect_error([&] { dequantize_weight(w, scale, input({6}, DType::kI8)); }, {"f8_e4m3", "zero points"});
}

TEST_F(QuantizedMistakes, ElementWiseAndOthers) {
  const Value a = input({2, 4, 3, 3}, DType::kU8), gate = input({2, 4, 1, 1}, DType::kU8), row = input({4, 3, 3}, DType::kU8);
  expect_error([&] { quantized_add(a, row, {}); }, {"[quantized_add]", "[2,4,3,3]", "[4,3,3]", "[N,C,1,1]"});
  expect_error([&] { quantized_mul(gate, a, {}); }, {"a's shape"});
  QuantizedConcatAttrs concat;
  concat.add_input({});
  expect_error([&] { quantized_concat(std::vector<Value>{a, a}, concat); }, {"2 inputs", "there are 1 and 1"});
  concat.add_input({});
  expect_error([&] { quantized_concat(std::vector<Value>{a, gate}, concat); }, {"[2,4,3,3]", "[2,4,1,1]"});
  expect_error([&] { quantized_adaptive_avg_pool2d(row, {}); }, {"[N,C,H,W]"});
  expect_error([&] { dequantize_weight(input({4, 6}, DType::kI8), input({3}), {}); }, {"scale must be f32 [4]", "[3]"});
  DequantizeWeightAttrs packed;
  packed.bits = 4;
  packed.group_size = 4;
  expect_error([&] { dequantize_weight(input({4, 6}, DType::kI8), input({4, 3}), {}, packed); }, {"4 bits must be u8"});
  expect_error([&] { dequantize_weight(input({4, 6}, DType::kU8), input({4, 2}), {}, packed); }, {"[4,3]", "[4,2]"});
  packed.shape = {4, 13};
  expect_error([&] { dequantize_weight(input({4, 6}, DType::kU8), input({4, 4}), {}, packed); }, {"[4,13]", "stored as [4,7]", "[4,6]"});
  FakeQuantizeAttrs fake;
  expect_error([&] { fake_quantize(input({2, 4}), input({4}), input({4}), fake); }, {"scale must be []", "[4]"});
  fake.axis = 1;
  expect_error([&] { fake_quantize(input({2, 4}), input({2}), input({4}), fake); }, {"scale must be [4]", "[2]"});
  expect_error([&] { observe_range(input({0, 4}), input({}), input({}), input({}), {}); }, {"empty array"});
}

TEST_F(QuantizedMistakes, FormatsAndNamesGoOn) {
  const MemoryFormat last = MemoryFormat::channels_last();
  const std::vector<std::string> names{"N", "C", "H", "W"};
  const Value x = input({2, 4, 8, 8}, DType::kF32, last, names), w = input({4, 4, 3, 3}, DType::kI8), scale = input({4});
  const Value q = quantize(x, {});
  QuantizedConv2dAttrs conv;
  conv.set_output({});
  conv.padding = {1};
  const Value y = quantized_conv2d(q, w, scale, {}, conv, q);
  EXPECT_EQ(y.type().format, last);
  EXPECT_EQ(y.type().names, names);
  EXPECT_EQ(y.dtype(), DType::kU8);
  QuantizedBinaryAttrs binary;
  const Value pooled = quantized_adaptive_avg_pool2d(y, {});
  EXPECT_EQ(quantized_mul(y, quantize(pooled, {}), binary).type().format, last);
  EXPECT_EQ(dequantize(y, {}).type().format, last);
  ResizeAttrs resize_attrs;
  resize_attrs.size = {4, 4};
  expect_error([&] { resize(q, resize_attrs); }, {"floating"});
  resize_attrs.mode = ResizeMode::kNearest;
  EXPECT_EQ(resize(q, resize_attrs).dtype(), DType::kU8);
}

/// For each integer, the table of an operator has the quantized result of the operator.
TEST_F(QuantizedMistakes, TablesAreTheirOperators) {
  const QuantParams from{0.0625, 100, DType::kU8, 0, 255}, to{0.03125, -20, DType::kI8, -128, 127};
  ClampAttrs clip;
  clip.min = -1;
  clip.max = 2;
  AffineAttrs line;
  line.scale = -0.5;
  line.shift = 0.25;
  GeluAttrs tanh_form;
  tanh_form.approximate = GeluApproximation::kTanh;
  PowAttrs cube;
  cube.exponent = 3;
  const std::vector<std::function<Value(Value)>> functions{
      [](Value x) { return relu(x); },         [](Value x) { return relu6(x); },
      [](Value x) { return hardswish(x); },    [](Value x) { return hardsigmoid(x); },
      [](Value x) { return sigmoid(x); },      [](Value x) { return silu(x); },
      [](Value x) { return gelu(x); },         [&](Value x) { return gelu(x, tanh_form); },
      [](Value x) { return tanh(x); },         [](Value x) { return exp(x); },
      [](Value x) { return sin(x); },          [](Value x) { return cos(x); },
      [](Value x) { return neg(x); },          [](Value x) { return abs(x); },
      [](Value x) { return square(x); },       [&](Value x) { return pow(x, cube); },
      [&](Value x) { return clamp(x, clip); }, [&](Value x) { return affine(x, line); }};
  const Value q = input({256}, DType::kU8);
  RefArray all{Shape{256}, {}};
  for (int i = 0; i < 256; ++i) all.v.push_back(i);
  std::vector<std::pair<Value, Value>> both;
  for (const auto& function : functions) {
    const Value real = function(dequantize(q, from));
    const Node& node = graph_.nodes().back();
    both.emplace_back(lookup(q, table_of(from, to, scalar_function(*node.op, node.attributes.get()))), real);
  }
  const auto values = interpret(graph_, {{"in0", all}});
  for (const auto& [table, real] : both) {
    for (int64_t i = 0; i < 256; ++i) {
      EXPECT_EQ(values.at(table.id())[i], static_cast<double>(quantize_real(values.at(real.id())[i], to)))
          << "operator of value " << real.id() << " at " << i;
    }
  }
}

TEST_F(QuantizedMistakes, EveryTableOperatorHasAFunction) {
  ensure_ops_registered();
  for (const OpDef* op : all_ops()) {
    if (op->quantize != QuantizeRule::kTable) continue;
    const std::unique_ptr<Options> attributes = op->make_attrs != nullptr ? op->make_attrs() : nullptr;
    EXPECT_TRUE(std::isfinite(scalar_function(*op, attributes.get())(0.5))) << op->name;
  }
}

TEST_F(QuantizedMistakes, CostsCountTheBytesOfIntegers) {
  quantized_conv2d(input({2, 3, 8, 8}, DType::kU8), input({4, 3, 3, 3}, DType::kI8), input({4}), {}, [] {
    QuantizedConv2dAttrs a;
    a.set_output({});
    return a;
  }());
  const Node& node = graph_.nodes().back();
  const Cost cost = cost_of(*node.op, context_of(graph_, node));
  EXPECT_EQ(cost.flops, 2.0 * (2 * 4 * 6 * 6) * (3 * 3 * 3));
  EXPECT_EQ(cost.bytes_read, 2 * 3 * 8 * 8 + 4 * 3 * 3 * 3 + 4 * 4);
  EXPECT_EQ(cost.bytes_written, 2 * 4 * 6 * 6);
}

}  // namespace
}  // namespace galley
