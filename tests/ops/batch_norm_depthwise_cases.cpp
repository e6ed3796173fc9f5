// Cases of batch norm followed by a depthwise convolution.

#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> batch_norm_depthwise_cases() {
  struct Geometry {
    std::string name;
    Shape x;
    std::vector<int64_t> kernel, stride, padding;
    Activation activation = Activation::kNone;
    bool affine = true;
  };
  const std::vector<Geometry> geometries{
      {"3x3", {2, 16, 7, 6}, {3, 3}, {1}, {1}},
      {"3x3_relu", {2, 24, 6, 7}, {3, 3}, {1}, {1}, Activation::kRelu},
      {"3x3_strided", {2, 19, 9, 8}, {3, 3}, {2}, {1}, Activation::kHardswish},
      {"3x3_strided_odd", {3, 8, 7, 5}, {3, 3}, {2}, {1}, Activation::kRelu6},
      {"5x5", {2, 40, 6, 6}, {5, 5}, {1}, {2}, Activation::kHardswish},
      {"5x5_strided", {2, 33, 9, 7}, {5, 5}, {2}, {2}, Activation::kRelu},
      {"7x7_wider_than_image", {2, 16, 3, 3}, {7, 7}, {1}, {3}, Activation::kHardswish},
      {"2x4_uneven", {3, 17, 8, 11}, {2, 4}, {1, 3}, {0, 2}, Activation::kRelu},
      {"4x1", {2, 20, 8, 5}, {4, 1}, {2, 1}, {1, 0}},
      {"6x2_strides_left_over", {2, 5, 12, 10}, {6, 2}, {5, 4}, {0}, Activation::kHardswish},
      {"1x1", {3, 35, 4, 3}, {1, 1}, {1}, {0}, Activation::kRelu},
      {"far_padding", {2, 6, 3, 4}, {2, 3}, {2}, {3}, Activation::kHardswish},
      {"no_affine", {3, 21, 5, 4}, {3, 3}, {1}, {1}, Activation::kHardswish, false},
      {"bands_and_parts", {9, 18, 37, 29}, {3, 3}, {1}, {1}, Activation::kRelu},
      {"bands_and_parts_strided", {5, 36, 41, 38}, {3, 3}, {2}, {1}, Activation::kHardswish},
      {"tall", {1, 3, 150, 9}, {5, 3}, {2, 1}, {2, 1}},
      {"one_channel", {4, 1, 6, 5}, {3, 3}, {1}, {1}},
      {"empty_batch", {0, 5, 4, 3}, {3, 3}, {1}, {1}},
  };
  std::vector<OpCase> cases;
  for (const Geometry& g : geometries) {
    // No element is near a kink of the activation, where finite differences give neither slope: normalized values are within 1.8, gamma is
    // small, and beta is far enough from the kinks.
    const std::vector<double> kinks = g.activation == Activation::kHardswish ? std::vector<double>{-3, 3} : std::vector<double>{0, 6};
    const bool bent = g.activation != Activation::kNone;
    const Fill gamma = bent ? Fill{.low = 0.1, .high = 0.3} : Fill{.low = 0.5, .high = 1.5};
    const Fill beta = bent ? Fill{.low = kinks[0] - 2, .high = kinks[1] + 2, .kinks = kinks, .margin = 0.6} : Fill{};
    cases.push_back({.name = "batch_norm_depthwise_" + g.name,
                     .build =
                         [=](CaseInputs& in) {
                           BatchNormDepthwiseAttrs a;
                           a.activation = g.activation;
                           a.stride = g.stride;
                           a.padding = g.padding;
                           const Value x = in.real(g.x, {.low = -1, .high = 3}), weight = in.weight({g.x[1], 1, g.kernel[0], g.kernel[1]});
                           const Value scale = g.affine ? in.vector(g.x[1], gamma) : Value();
                           batch_norm_depthwise(x, weight, scale, g.affine ? in.vector(g.x[1], beta) : Value(), a);
                         },
                     .differentiable_outputs = 1,
                     .large = g.x.elements() > 100000,
                     .low_precision = true});
  }
  // Mean 2, variance 1 (eps 0): -1 and 1, relu: 0 and 1; the kernel's taps around each.
  cases.push_back({.name = "batch_norm_depthwise_hand",
                   .build =
                       [](CaseInputs& in) {
                         BatchNormDepthwiseAttrs a;
                         a.eps = 0;
                         a.activation = Activation::kRelu;
                         a.padding = {0, 1};
                         batch_norm_depthwise(in.values({1, 1, 1, 4}, {1, 3, 3, 1}), in.values({1, 1, 1, 3}, {5, 7, 11}), {}, {}, a);
                       },
                   .expected = {11, 18, 12, 5},
                   .differentiable_outputs = 1,
                   .forward_only = true});
  return cases;
}

}  // namespace galley::test
