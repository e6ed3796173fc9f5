// Cases of the gradients of a 1x1 convolution followed by a batch norm: kernels against the reference. The test of the pass that inserts
// the operators (tests/passes/graph_passes_test.cpp) compares them with the separate gradients.

#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct PointwiseGeometry {
  std::string name;
  Shape x;
  int64_t outputs;
  Activation activation = Activation::kNone;
  bool affine = true, residual = false;
};

/// The inputs of both operators besides the gradient, away from kinks of activations, where float32 and double may be on different sides:
/// normalized values are within 2.4, gamma is small, and beta is far enough from the kinks.
struct PointwiseOperands {
  Value between, mean, var, gamma, beta, x, weight;
};
/// `stored`: the value between convolution and norm is an input; else it is the output of the convolution, with a small weight.
PointwiseOperands operands(CaseInputs& in, const PointwiseGeometry& g, bool stored = true) {
  const std::vector<double> kinks = g.activation == Activation::kHardswish ? std::vector<double>{-3, 3} : std::vector<double>{0, 6};
  const bool bent = g.activation != Activation::kNone;
  const Fill gamma = bent ? Fill{.low = 0.1, .high = 0.25} : Fill{.low = 0.5, .high = 1.5};
  const Fill beta = bent ? Fill{.low = kinks[0] - 2, .high = kinks[1] + 2, .kinks = kinks, .margin = 0.65} : Fill{};
  PointwiseOperands o;
  if (stored) o.between = in.real({g.x[0], g.outputs, g.x[2], g.x[3]}, {.low = -1, .high = 3});
  o.mean = in.vector(g.outputs, {.low = 0.9, .high = 1.1});
  o.var = in.vector(g.outputs, {.low = 0.8, .high = 1.2});
  if (g.affine) o.gamma = in.vector(g.outputs, gamma);
  if (g.affine) o.beta = in.vector(g.outputs, beta);
  o.x = in.real(g.x);
  const double most = stored ? 1 : 1 / static_cast<double>(g.x[1]);
  o.weight = in.weight({g.outputs, g.x[1], 1, 1}, {.low = -most, .high = most});
  return o;
}

void add_batch_norm_backward(std::vector<OpCase>& cases) {
  for (const PointwiseGeometry& g : std::vector<PointwiseGeometry>{{"even", {2, 16, 6, 8}, 64, Activation::kRelu},
                                                                   {"expands", {2, 24, 9, 7}, 72, Activation::kHardswish},
                                                                   {"odd", {3, 19, 5, 6}, 67},
                                                                   {"close", {2, 40, 4, 7}, 41, Activation::kRelu6},
                                                                   {"most_channels", {1, 48, 5, 5}, 130, Activation::kRelu},
                                                                   {"more_channels_than_are_taken", {1, 49, 3, 3}, 65},
                                                                   {"narrows", {1, 20, 3, 3}, 17},
                                                                   {"few_channels", {2, 15, 4, 4}, 16},
                                                                   {"residual", {2, 21, 7, 5}, 70, Activation::kRelu, true, true},
                                                                   {"residual_alone", {2, 17, 5, 5}, 33, Activation::kNone, true, true},
                                                                   {"no_affine", {2, 17, 6, 5}, 35, Activation::kNone, false},
                                                                   {"blocks_and_parts", {3, 20, 31, 23}, 50, Activation::kRelu},
                                                                   {"long_rows", {1, 16, 9, 8}, 1200, Activation::kHardswish},
                                                                   {"one_pixel", {1, 16, 1, 1}, 32}}) {
    cases.push_back({.name = "pointwise_batch_norm_backward_" + g.name,
                     .build =
                         [=](CaseInputs& in) {
                           BatchNormBackwardAttrs a;
                           a.activation = g.activation;
                           a.residual = g.residual;
                           const PointwiseOperands o = operands(in, g);
                           const Value grad = in.real(o.between.shape()), y = g.residual && g.activation == Activation::kRelu
                                                                                  ? in.real(o.between.shape(), {.kinks = {0}})
                                                                                  : Value();
                           pointwise_batch_norm_backward(grad, o.between, o.mean, o.var, o.gamma, o.beta, y, o.x, o.weight, a);
                         },
                     .forward_only = true});
  }
}

struct Depthwise : PointwiseGeometry {
  std::vector<int64_t> kernel, stride, padding;
};

std::vector<Depthwise> depthwise_geometries() {
  return {{{"even", {2, 16, 6, 8}, 64, Activation::kRelu}, {3, 3}, {1}, {1}},
          {{"strided", {2, 24, 9, 7}, 72, Activation::kHardswish}, {5, 5}, {2}, {2}},
          {{"plain", {2, 18, 7, 6}, 50}, {3, 3}, {1}, {1}},
          {{"relu6_no_padding", {1, 32, 8, 9}, 41, Activation::kRelu6}, {3, 3}, {1}, {0}},
          {{"no_affine", {2, 17, 5, 6}, 35, Activation::kNone, false}, {3, 3}, {2}, {1}},
          {{"most_channels", {2, 48, 7, 6}, 130, Activation::kRelu6}, {5, 5}, {1}, {2}},
          {{"more_channels_than_are_taken", {1, 49, 5, 5}, 56, Activation::kRelu}, {3, 3}, {1}, {1}},
          {{"higher_than_wide", {2, 16, 40, 3}, 33, Activation::kHardswish}, {5, 3}, {1, 2}, {2, 1}},
          {{"wide_lines", {1, 17, 6, 220}, 36, Activation::kRelu}, {3, 3}, {2}, {1}},
          {{"residual", {2, 24, 9, 7}, 72, Activation::kRelu, true, true}, {3, 3}, {1}, {1}},
          {{"blocks_and_parts", {3, 20, 31, 23}, 50, Activation::kRelu, true, true}, {3, 3}, {1}, {1}}};
}

BatchNormDepthwiseAttrs pointwise_attrs(const Depthwise& g) {
  BatchNormDepthwiseAttrs a;
  a.activation = g.activation;
  a.stride = g.stride;
  a.padding = g.padding;
  return a;
}

void depthwise_backward(CaseInputs& in, const Depthwise& g, const PointwiseOperands& o, Value depthwise, Value moments) {
  const BatchNormDepthwiseAttrs a = pointwise_attrs(g);
  const Shape y = conv_shape(a.window(g.outputs), {g.x[0], g.outputs, g.x[2], g.x[3]}, depthwise.shape());
  pointwise_batch_norm_depthwise_backward(in.real(y), depthwise, o.mean, o.var, o.gamma, o.beta, o.x, o.weight, a,
                                          g.residual ? in.real(g.x) : Value(), moments);
}

void add_depthwise(std::vector<OpCase>& cases) {
  for (const Depthwise& g : depthwise_geometries()) {
    cases.push_back({.name = "pointwise_batch_norm_depthwise_" + g.name,
                     .build =
                         [=](CaseInputs& in) {
                           const Value x = in.real(g.x), weight = in.weight({g.outputs, g.x[1], 1, 1}),
                                       kernel = in.weight({g.outputs, 1, g.kernel[0], g.kernel[1]});
                           pointwise_batch_norm_depthwise(x, weight, kernel,
                                                          g.affine ? in.vector(g.outputs, {.low = 0.5, .high = 1.5}) : Value(),
                                                          g.affine ? in.vector(g.outputs) : Value(), pointwise_attrs(g));
                         },
                     .forward_only = true});
    cases.push_back({.name = "pointwise_batch_norm_depthwise_backward_" + g.name,
                     .build =
                         [=](CaseInputs& in) {
                           const PointwiseOperands o = operands(in, g, false);
                           depthwise_backward(in, g, o, in.weight({g.outputs, 1, g.kernel[0], g.kernel[1]}), {});
                         },
                     .forward_only = true});
    cases.push_back({.name = "pointwise_batch_norm_depthwise_backward_of_moments_" + g.name,
                     .build =
                         [=](CaseInputs& in) {
                           const PointwiseOperands o = operands(in, g, false);
                           const Value depthwise = in.weight({g.outputs, 1, g.kernel[0], g.kernel[1]});
                           depthwise_backward(
                               in, g, o, depthwise,
                               pointwise_batch_norm_depthwise(o.x, o.weight, depthwise, o.gamma, o.beta, pointwise_attrs(g)).moments);
                         },
                     .forward_only = true});
  }
}

}  // namespace

std::vector<OpCase> pointwise_cases() {
  std::vector<OpCase> cases;
  add_batch_norm_backward(cases);
  add_depthwise(cases);
  return cases;
}

}  // namespace galley::test
