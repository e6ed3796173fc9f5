// Law: operators in forms that no model of the zoo uses survive a round trip: exported, imported, computed.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "libcore/base/error.h"
#include "libcore/nn/attention.h"
#include "libcore/nn/builder.h"
#include "libcore/onnx/export/export.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

using Make = std::function<Value(Builder& b, Value x)>;

struct Form {
  const char* name;
  Shape input;  // batch 2
  Make make;
};

Captured captured(const Form& form, int64_t batch) {
  Captured made;
  Builder b(made.graph, {.mode = Mode::kEvaluation});
  Shape shape = form.input;
  shape[0] = batch;
  made.graph.add_output("output", form.make(b, b.input("input", {.shape = shape})));
  made.parameters = b.take_parameters();
  return made;
}

void write(const Form& form, const std::string& path, bool open_batch) {
  const Captured two = captured(form, 2), three = captured(form, 3);
  OnnxExport what;
  what.graph = &two.graph;
  if (open_batch) what.other = &three.graph;
  what.values = [&](const std::string& name) {
    return values_of(
        *std::find_if(two.parameters.begin(), two.parameters.end(), [&](const ParameterSpec& spec) { return spec.name == name; }));
  };
  write_onnx(path, onnx_document(what));
}

MaxPool2dAttrs max_window(std::vector<int64_t> kernel, int64_t stride, int64_t padding, bool ceil) {
  MaxPool2dAttrs attrs;
  attrs.kernel_size = std::move(kernel);
  attrs.stride = {stride};
  attrs.padding = {padding};
  attrs.ceil_mode = ceil;
  return attrs;
}
AvgPool2dAttrs mean_window(int64_t kernel, int64_t stride, int64_t padding, bool ceil, bool counts) {
  AvgPool2dAttrs attrs;
  attrs.kernel_size = {kernel};
  attrs.stride = {stride};
  attrs.padding = {padding};
  attrs.ceil_mode = ceil;
  attrs.count_include_pad = counts;
  return attrs;
}
Value adaptive(Value x, std::vector<int64_t> size) {
  AdaptiveAvgPool2dAttrs attrs;
  attrs.output_size = std::move(size);
  return adaptive_avg_pool2d(x, attrs);
}
Value resized(Value x, std::vector<int64_t> size, ResizeMode mode, bool corners) {
  ResizeAttrs attrs;
  attrs.size = std::move(size);
  attrs.mode = mode;
  attrs.align_corners = corners;
  return resize(x, attrs);
}

const Shape kImage{2, 4, 7, 9};

std::vector<Form> pool_forms() {
  return {
      {"max_pool_ceil", kImage, [](Builder&, Value x) { return max_pool2d(x, max_window({3, 2}, 2, 0, true)).y; }},
      {"max_pool_ceil_that_ends_in_the_padding",
       {2, 4, 7, 7},
       [](Builder&, Value x) { return max_pool2d(x, max_window({2}, 3, 1, true)).y; }},
      {"avg_pool_counts_padding", kImage, [](Builder&, Value x) { return avg_pool2d(x, mean_window(3, 2, 1, false, true)); }},
      {"avg_pool_leaves_padding_out", kImage, [](Builder&, Value x) { return avg_pool2d(x, mean_window(3, 2, 1, false, false)); }},
      {"avg_pool_ceil", {2, 4, 8, 8}, [](Builder&, Value x) { return avg_pool2d(x, mean_window(3, 2, 0, true, true)); }},
      {"avg_pool_ceil_counts_padding", {2, 4, 8, 8}, [](Builder&, Value x) { return avg_pool2d(x, mean_window(3, 2, 1, true, true)); }},
      {"adaptive_to_windows_of_two_sizes", kImage, [](Builder&, Value x) { return adaptive(x, {3, 4}); }},
      {"adaptive_to_more_than_there_is", {2, 4, 1, 2}, [](Builder&, Value x) { return adaptive(x, {3, 3}); }},
      {"adaptive_to_equal_windows", {2, 4, 6, 8}, [](Builder&, Value x) { return adaptive(x, {3, 2}); }},
      {"resize_half_pixels", kImage, [](Builder&, Value x) { return resized(x, {12, 5}, ResizeMode::kBilinear, false); }},
      {"resize_corners", kImage, [](Builder&, Value x) { return resized(x, {12, 5}, ResizeMode::kBilinear, true); }},
      {"resize_nearest", kImage, [](Builder&, Value x) { return resized(x, {14, 18}, ResizeMode::kNearest, false); }},
  };
}

std::vector<Form> layer_forms() {
  return {
      {"group_norm", kImage, [](Builder& b, Value x) { return b.group_norm("norm", x, {.groups = 2}); }},
      {"layer_norm_of_two_axes", kImage, [](Builder& b, Value x) { return b.layer_norm("norm", x, {.dims = 2, .eps = 1e-3}); }},
      {"layer_norm_without_parameters", kImage, [](Builder& b, Value x) { return b.layer_norm("norm", x, {.affine = false}); }},
      {"batch_norm_without_parameters", kImage, [](Builder& b, Value x) { return b.batch_norm("norm", x, {.affine = false}); }},
      {"linear_of_rank_3",
       {2, 5, 6},
       [](Builder& b, Value x) { return b.linear("a", b.linear("b", x, {.out_features = 7, .bias = false}), {.out_features = 3}); }},
      {"attention_of_packed_heads",
       {2, 5, 12},
       [](Builder& b, Value x) {
         const Value bias = b.parameter("bias", {1, 2, 5, 5}, Init::normal(1), "test");
         return self_attention(b, x, {.heads = 2, .causal = true, .bias = bias});
       }},
      {"attention_of_groups",
       {2, 5, 48},
       [](Builder&, Value x) {
         AttentionAttrs attrs;
         attrs.window = 2;
         attrs.softcap = 0.5;
         attrs.scale = 3;
         const Value all = reshape(x, {x.shape()[0], 5, 12, 4});
         return attention({.q = slice(all, 2, 0, 4), .k = slice(all, 2, 4, 8)}, attrs).o;
       }},
      {"attention_of_windows",
       {2, 8, 12},
       [](Builder& b, Value x) {
         const Value windows = reshape(x, {4 * x.shape()[0], 2, 12}), bias = b.parameter("bias", {4, 2, 2, 2}, Init::normal(1), "test");
         return reshape(self_attention(b, windows, {.heads = 2, .bias = bias}), {x.shape()[0], 8, 4});
       }},
      {"matmul_transposed", {2, 5, 6}, [](Builder&, Value x) { return matmul(x, x, {true, false}); }},
  };
}

std::vector<Form> elementwise_forms() {
  return {
      {"gelu_tanh",
       {2, 9},
       [](Builder&, Value x) {
         GeluAttrs attrs;
         attrs.approximate = GeluApproximation::kTanh;
         return gelu(x, attrs);
       }},
      {"activations",
       {2, 9},
       [](Builder&, Value x) {
         return concat({gelu(x), silu(x), hardswish(affine(x, 4)), hardsigmoid(x), relu6(affine(x, 9)), tanh(x), sigmoid(x)}, 1);
       }},
      {"functions",
       {2, 9},
       [](Builder&, Value x) {
         const Value positive = affine(square(x), 1, 0.5);
         return concat({exp(x), log(positive), sqrt(positive), rsqrt(positive), sin(x), cos(x), neg(x), abs(x), reciprocal(positive),
                        pow(positive, 1.5), clamp(x, -0.3, 0.4)},
                       1);
       }},
      {"of_two",
       {2, 9},
       [](Builder&, Value x) {
         const Value y = affine(x, -2, 0.1), z = affine(square(x), 1, 1);
         return concat({add(x, y), sub(x, y), mul(x, y), div(x, z), maximum(x, y), minimum(x, y), power(z, x), where(less(x, y), x, z),
                        where(greater(x, y), x, z), where(equal(x, x), y, z)},
                       1);
       }},
      {"rounding",
       {2, 9},
       [](Builder&, Value x) {
         const QuantParams narrow{.scale = 0.0078125, .zero_point = 60, .dtype = DType::kU8, .qmin = 0, .qmax = 127},
             wide{.scale = 0.015625, .zero_point = -3, .dtype = DType::kI8, .qmin = -128, .qmax = 127};
         return dequantize(quantize(dequantize(quantize(x, narrow), narrow), wide), wide);
       }},
  };
}

std::vector<Form> reduction_forms() {
  return {
      {"reductions", kImage,
       [](Builder&, Value x) {
         ReduceAttrs pixels;
         pixels.axes = {2, -1};
         return concat({sum(x, {2, 3}), mean(x, {2, 3}), amax(x, pixels), amin(x, pixels)}, 1);
       }},
      {"softmaxes", kImage,
       [](Builder&, Value x) {
         SoftmaxAttrs attrs;
         attrs.axis = 1;
         return concat({softmax(x, attrs), log_softmax(x)}, 1);
       }},
      {"ranks",
       {2, 9},
       [](Builder&, Value x) {
         TopkAttrs k;
         k.k = 3;
         return add(topk(x, k).values, cast(reshape(argmax(x), {-1, 1}), DType::kF32));
       }},
  };
}

std::vector<Form> shape_forms() {
  return {
      {"pieces", kImage,
       [](Builder&, Value x) {
         SliceAttrs third;
         third.axis = 3;
         third.start = 1;
         third.end = -1;
         third.step = 3;
         return pad(slice(concat(split(x, {1, 3}, 1)), third), {0, 0, 1, 0, 0, 2, 1, 1}, 0.25);
       }},
      {"windows",
       {2, 4, 6, 8},
       [](Builder&, Value x) {
         // A batch that grows and shrinks again, as in window attention.
         const int64_t n = x.shape()[0];
         const Value w = reshape(permute(reshape(x, {n, 4, 3, 2, 4, 2}), {0, 2, 4, 1, 3, 5}), {n * 12, 4, 4});
         return reshape(permute(reshape(matmul(w, w), {n, 3, 4, 4, 2, 2}), {0, 3, 1, 4, 2, 5}), {n, 4, 6, 8});
       }},
      {"token_of_each_sample",
       {2, 3, 4},
       [](Builder& b, Value x) {
         return concat({broadcast_to(b.parameter("token", {1, 1, 4}, Init::zeros(), "vit"), {x.shape()[0], 1, 4}), x}, 1);
       }},
  };
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = [] {
    std::vector<Form> result;
    for (const auto& part : {pool_forms(), layer_forms(), elementwise_forms(), reduction_forms(), shape_forms()})
      result.insert(result.end(), part.begin(), part.end());
    return result;
  }();
  return all;
}

class Operators : public testing::TestWithParam<Form> {};

TEST_P(Operators, ComeBack) {
  const Form& form = GetParam();
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  for (const bool open_batch : {true, false}) {
    write(form, path, open_batch);
    Shape shape = form.input;
    shape[0] = open_batch ? 5 : 2;
    const Tensor input = numbers(shape), expected = compute(captured(form, shape[0]), input);
    const double difference = largest_difference(expected, compute(capture(onnx_component(path), shape), input));
    EXPECT_GT(largest(expected), 0);
    EXPECT_TRUE(difference <= 2e-6 * std::max(1.0, largest(expected)))
        << difference << " of " << largest(expected);  // float32 rounding of a few operations
  }
}
INSTANTIATE_TEST_SUITE_P(Forms, Operators, testing::ValuesIn(forms()), [](const auto& info) { return info.param.name; });

TEST(OperatorsWithoutForm, AreNamedWithTheirModule) {
  const auto refused = [](const Make& make, std::string_view reason, const Shape& input = {2, 4, 7, 9}) {
    const TemporaryFolder folder;
    try {
      write({"refused", input, make}, folder / "m.onnx", true);
      ADD_FAILURE() << "exported, instead of " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      EXPECT_NE(error.message().find(reason), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("at here.inside"), std::string::npos) << error.message();
    }
  };
  const auto in_module = [](const Make& make) -> Make {
    return [make](Builder& b, Value x) {
      const auto outer = b.scope("here");
      const auto inner = b.scope("inside");
      return make(b, x);
    };
  };
  refused(in_module([](Builder&, Value x) {
            AdaptiveMaxPool2dAttrs attrs;
            attrs.output_size = {3, 4};
            return adaptive_max_pool2d(x, attrs).y;
          }),
          "adaptive_max_pool2d");
  refused(in_module([](Builder&, Value x) { return max_pool2d(x, max_window({3}, 3, 1, true)).y; }), "ceil_mode", {2, 4, 6, 8});
  refused(in_module([](Builder&, Value x) { return affine(x, static_cast<double>(x.shape()[0])); }), "depend on the batch");
  refused(in_module([](Builder&, Value x) { return cast(max_pool2d(x, max_window({2}, 2, 0, false)).index, DType::kF32); }),
          "no equivalent of an output");
  refused(in_module([](Builder& b, Value x) {
            const Value lengths = cast(b.parameter("lengths", {x.shape()[0]}, Init::constant(3), "test"), DType::kI64);
            return attention({.q = x, .lengths = lengths}).o;
          }),
          "lengths and positions", {2, 7, 6, 3});
}

}  // namespace
}  // namespace galley
