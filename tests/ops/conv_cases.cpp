// Cases of convolution; its backward operators are tested through the gradient rule of each.

#include "libcore/ops/conv.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

Conv2dAttrs attrs_of(std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation, int64_t groups,
                     Activation activation = Activation::kNone) {
  Conv2dAttrs a;
  a.stride = std::move(stride);
  a.padding = std::move(padding);
  a.dilation = std::move(dilation);
  a.groups = groups;
  a.activation = activation;
  return a;
}

struct Geometry {
  std::string name;
  Shape x, weight;
  Conv2dAttrs attrs;
  bool bias = false;
};

std::vector<Geometry> geometries() {
  return {
      {"plain", {2, 3, 7, 5}, {4, 3, 3, 3}, attrs_of({1}, {1}, {1}, 1), true},
      {"no_padding", {1, 2, 5, 6}, {3, 2, 3, 2}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise", {2, 17, 5, 3}, {19, 17, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_tiles", {3, 21, 17, 19}, {83, 21, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_tiles_wide_input", {2, 70, 4, 5}, {18, 70, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_rows", {2, 17, 25, 23}, {19, 17, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_rows_and_half_a_panel", {3, 40, 19, 20}, {24, 40, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_rows_few_channels", {1, 5, 33, 35}, {8, 5, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_rows_whole_panels", {1, 48, 32, 33}, {16, 48, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_strided", {2, 16, 7, 6}, {8, 16, 1, 1}, attrs_of({2}, {0}, {1}, 1)},
      {"pointwise_strided_few_channels", {2, 5, 7, 6}, {8, 5, 1, 1}, attrs_of({2}, {0}, {1}, 1)},
      {"strided_groups", {2, 8, 9, 7}, {6, 4, 3, 3}, attrs_of({2, 1}, {1, 0}, {1}, 2), true},
      {"dilated", {2, 3, 9, 8}, {4, 3, 3, 3}, attrs_of({1}, {2}, {2}, 1)},
      {"dilated_strided", {1, 4, 11, 9}, {5, 4, 3, 2}, attrs_of({2}, {1, 2}, {2, 3}, 1)},
      {"depthwise", {2, 19, 7, 7}, {19, 1, 3, 3}, attrs_of({1}, {1}, {1}, 19)},
      {"depthwise_5x5_strided", {2, 16, 9, 9}, {16, 1, 5, 5}, attrs_of({2}, {2}, {1}, 16)},
      {"depthwise_5x5", {3, 24, 6, 7}, {24, 1, 5, 5}, attrs_of({1}, {2}, {1}, 24)},
      {"depthwise_3x3_strided", {2, 35, 8, 7}, {35, 1, 3, 3}, attrs_of({2}, {1}, {1}, 35)},
      {"depthwise_2x4", {10, 17, 5, 8}, {17, 1, 2, 4}, attrs_of({1, 3}, {0, 2}, {1}, 17)},
      {"depthwise_7x7_wider_than_image", {1, 16, 3, 3}, {16, 1, 7, 7}, attrs_of({1}, {3}, {1}, 16)},
      {"depthwise_few_channels", {2, 5, 6, 5}, {5, 1, 3, 3}, attrs_of({1}, {1}, {1}, 5)},
      {"depthwise_many_channels", {2, 150, 18, 17}, {150, 1, 3, 3}, attrs_of({1}, {1}, {1}, 150)},
      {"panels_3x3", {2, 36, 5, 6}, {32, 36, 3, 3}, attrs_of({1}, {1}, {1}, 1)},
      {"panels_left_over", {2, 35, 6, 5}, {47, 35, 2, 3}, attrs_of({1}, {0, 2}, {1}, 1)},
      {"panels_strided", {2, 36, 9, 8}, {32, 36, 3, 3}, attrs_of({2}, {1}, {1}, 1)},
      {"panels_pointwise_strided", {3, 132, 7, 6}, {128, 132, 1, 1}, attrs_of({3, 2}, {0}, {1}, 1)},
      {"panels_pointwise_padded", {1, 132, 2, 3}, {128, 132, 1, 1}, attrs_of({1}, {1}, {1}, 1)},
      {"panels_many_channels", {1, 300, 2, 2}, {272, 300, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"panels_blocks_of_pixels", {1, 36, 17, 18}, {32, 36, 1, 2}, attrs_of({1}, {0, 1}, {1}, 1)},
      {"wide_panels_strided", {1, 60, 7, 8}, {64, 60, 3, 3}, attrs_of({2}, {1}, {1}, 1)},
      {"wide_panels_left_over", {1, 59, 5, 7}, {63, 59, 2, 3}, attrs_of({1, 2}, {0, 2}, {1}, 1)},
      {"wide_panels_many_channels", {1, 300, 1, 4}, {272, 300, 1, 2}, attrs_of({2}, {0}, {1}, 1)},
      {"depthwise_multiplier", {1, 4, 5, 5}, {8, 1, 3, 3}, attrs_of({1}, {1}, {1}, 4), true},
      {"few_channels", {2, 3, 33, 29}, {16, 3, 3, 3}, attrs_of({2}, {1}, {1}, 1)},
      {"few_channels_panels_left_over", {2, 3, 9, 15}, {41, 3, 7, 7}, attrs_of({2}, {3}, {1}, 1)},
      {"few_channels_blocks_of_lines", {1, 1, 41, 90}, {33, 1, 5, 2}, attrs_of({1}, {4, 1}, {1}, 1)},
      {"few_channels_strides_left_over", {3, 4, 11, 23}, {9, 4, 2, 6}, attrs_of({3, 5}, {0}, {1}, 1)},
      {"few_channels_wider_than_image", {2, 2, 3, 2}, {24, 2, 7, 5}, attrs_of({1}, {3}, {1}, 1)},
      {"stem", {1, 3, 17, 15}, {8, 3, 7, 7}, attrs_of({2}, {3}, {1}, 1)},
      {"one_channel", {2, 1, 6, 6}, {5, 1, 3, 3}, attrs_of({1}, {1}, {1}, 1), true},
      {"kernel_of_image", {3, 4, 4, 3}, {6, 4, 4, 3}, attrs_of({1}, {0}, {1}, 1), true},
      {"one_pixel", {5, 21, 1, 1}, {10, 21, 1, 1}, attrs_of({1}, {0}, {1}, 1), true},
      {"one_pixel_strided", {1, 40, 1, 1}, {33, 40, 1, 1}, attrs_of({2}, {0}, {1}, 1)},
      {"one_pixel_many_images", {18, 7, 1, 1}, {5, 7, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"one_pixel_padded", {2, 6, 1, 1}, {5, 6, 1, 1}, attrs_of({3}, {1}, {1}, 1), true},  // reads only padding
      {"one_pixel_groups", {2, 6, 1, 1}, {4, 3, 1, 1}, attrs_of({1}, {0}, {1}, 2)},
      {"rows_left_over", {1, 3, 8, 10}, {4, 3, 3, 3}, attrs_of({3}, {0}, {1}, 1)},
      {"empty_batch", {0, 3, 7, 5}, {4, 3, 3, 3}, attrs_of({1}, {1}, {1}, 1), true},
  };
}

void add_volumes(std::vector<OpCase>& cases) {
  const std::vector<Geometry> volumes{
      {"plain", {2, 3, 4, 5, 6}, {4, 3, 3, 3, 3}, attrs_of({1}, {1}, {1}, 1), true},
      {"no_padding", {1, 2, 3, 5, 4}, {3, 2, 2, 3, 2}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise", {2, 17, 3, 5, 3}, {19, 17, 1, 1, 1}, attrs_of({1}, {0}, {1}, 1)},
      {"pointwise_strided", {2, 5, 4, 5, 4}, {18, 5, 1, 1, 1}, attrs_of({2}, {0}, {1}, 1)},
      {"strided_groups", {2, 8, 5, 6, 7}, {6, 4, 3, 3, 3}, attrs_of({2, 1, 2}, {1, 0, 1}, {1}, 2), true},
      {"dilated", {1, 3, 7, 6, 8}, {4, 3, 3, 2, 3}, attrs_of({1}, {2, 1, 0}, {2, 1, 3}, 1)},
      {"depthwise", {1, 16, 4, 5, 5}, {16, 1, 3, 3, 3}, attrs_of({1}, {1}, {1}, 16)},
      {"planes", {1, 35, 3, 7, 6}, {33, 35, 1, 3, 3}, attrs_of({1, 2, 2}, {0, 1, 1}, {1}, 1)},
      {"lines", {1, 35, 5, 4, 3}, {33, 35, 3, 1, 1}, attrs_of({2, 1, 1}, {1, 0, 0}, {1}, 1)},
      {"stem", {1, 3, 4, 9, 11}, {20, 3, 3, 7, 7}, attrs_of({1, 2, 2}, {1, 3, 3}, {1}, 1)},
      {"one_frame", {2, 4, 1, 5, 5}, {3, 4, 3, 3, 3}, attrs_of({1}, {1}, {1}, 1)},
      {"empty_batch", {0, 3, 4, 5, 6}, {4, 3, 3, 3, 3}, attrs_of({1}, {1}, {1}, 1), true},
  };
  for (const Geometry& g : volumes) {
    cases.push_back({.name = "conv3d_" + g.name,
                     .build =
                         [g](CaseInputs& in) {
                           const Value x = in.real(g.x), weight = in.weight(g.weight);
                           conv3d(x, weight, g.bias ? in.vector(g.weight[0]) : Value(), g.attrs);
                         },
                     .low_precision = true});
  }
}

void add_geometries(std::vector<OpCase>& cases) {
  for (const Geometry& g : geometries()) {
    cases.push_back({.name = "conv2d_" + g.name,
                     .build =
                         [g](CaseInputs& in) {
                           const Value x = in.real(g.x), weight = in.weight(g.weight);
                           conv2d(x, weight, g.bias ? in.vector(g.weight[0]) : Value(), g.attrs);
                         },
                     .low_precision = true});
  }
}

/// Input gradients that are added to a residual, and a weight gradient of a large image.
void add_backward_cases(std::vector<OpCase>& cases) {
  struct Onto {
    std::string name;
    Shape x, weight;
    std::vector<int64_t> stride, padding;
  };
  for (const Onto& o : std::vector<Onto>{{"3x3", {2, 17, 9, 7}, {19, 17, 3, 3}, {1}, {1}},
                                         {"3x3_strided", {2, 32, 9, 8}, {16, 32, 3, 3}, {2}, {1}},
                                         {"pointwise", {2, 35, 5, 6}, {48, 35, 1, 1}, {1}, {0}},
                                         {"pointwise_strided", {2, 16, 7, 6}, {32, 16, 1, 1}, {2}, {0}},
                                         {"pointwise_rows", {2, 24, 25, 23}, {19, 24, 1, 1}, {1}, {0}},
                                         {"pointwise_rows_left_over", {1, 21, 33, 35}, {67, 21, 1, 1}, {1}, {0}}}) {
    cases.push_back({.name = "conv2d_backward_data_residual_" + o.name,
                     .build =
                         [o](CaseInputs& in) {
                           Conv2dBackwardDataAttrs attrs;
                           attrs.stride = o.stride;
                           attrs.padding = o.padding;
                           attrs.input_size = {o.x[2], o.x[3]};
                           conv2d_backward_data(in.real(conv_shape(attrs, o.x, o.weight)), in.weight(o.weight), attrs, in.real(o.x));
                         },
                     .forward_only = o.name.starts_with("pointwise_rows"),
                     .low_precision = true});
  }
  for (const bool strided : {false, true}) {
    cases.push_back({.name = cat("conv3d_backward_data_residual", strided ? "_strided" : ""),
                     .build =
                         [strided](CaseInputs& in) {
                           const Shape x{2, 17, 4, 6, 5}, weight{19, 17, 3, 3, 3};
                           Conv2dBackwardDataAttrs attrs;
                           attrs.stride = {strided ? 2 : 1};
                           attrs.padding = {1};
                           attrs.input_size = {4, 6, 5};
                           conv3d_backward_data(in.real(conv_shape(attrs, x, weight)), in.weight(weight), attrs, in.real(x));
                         },
                     .forward_only = !strided,
                     .low_precision = true});
  }
  // Blocks of pixels, several for each thread.
  cases.push_back({.name = "conv2d_backward_weights_wide_panels_blocks_of_pixels",
                   .build =
                       [](CaseInputs& in) {
                         Conv2dBackwardWeightsAttrs attrs;
                         attrs.stride = {2, 1};
                         attrs.kernel_size = {1, 2};
                         conv2d_backward_weights(in.real({4, 48, 63, 34}), in.real({4, 64, 32, 33}), attrs);
                       },
                   .forward_only = true});
}

void add_hand_cases(std::vector<OpCase>& cases) {
  // [1,1,3,3] of 1..9 with kernel [[1,2],[3,4]]: 1+4+12+20 = 37 and so on; plus bias 1.
  cases.push_back({.name = "conv2d_hand",
                   .build =
                       [](CaseInputs& in) {
                         conv2d(in.values({1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}), in.values({1, 1, 2, 2}, {1, 2, 3, 4}),
                                in.values({1}, {1}), {});
                       },
                   .expected = {38, 48, 68, 78}});
  cases.push_back({.name = "conv2d_hand_groups",
                   .build =
                       [](CaseInputs& in) {
                         conv2d(in.values({1, 2, 1, 2}, {1, 2, 3, 4}), in.values({2, 1, 1, 1}, {10, 100}), {}, attrs_of({1}, {0}, {1}, 2));
                       },
                   .expected = {10, 20, 300, 400}});
}

void add_fused_volume(std::vector<OpCase>& cases) {
  cases.push_back({.name = "conv3d_fused_relu_residual",
                   .build =
                       [](CaseInputs& in) {
                         const Value x = in.real({2, 6, 3, 5, 4}), weight = in.weight({9, 6, 3, 3, 3}), bias = in.vector(9);
                         conv3d(x, weight, bias, attrs_of({1}, {1}, {1}, 1, Activation::kRelu), in.real({2, 9, 3, 5, 4}));
                       },
                   .forward_only = true});
}

/// Every activation fused into a convolution, with and without a residual.
void add_fused_cases(std::vector<OpCase>& cases) {
  for (int a = 0; a < static_cast<int>(kActivationNames.size()); ++a) {
    const auto activation = static_cast<Activation>(a);
    for (bool residual : {false, true}) {
      cases.push_back({.name = cat("conv2d_fused_", kActivationNames[static_cast<size_t>(a)], residual ? "_residual" : ""),
                       .build =
                           [=](CaseInputs& in) {
                             const Value x = in.real({2, 6, 5, 7}), weight = in.weight({9, 6, 3, 3}), bias = in.vector(9);
                             conv2d(x, weight, bias, attrs_of({1}, {1}, {1}, 1, activation), residual ? in.real({2, 9, 5, 7}) : Value());
                           },
                       .forward_only = true});
    }
    cases.push_back({.name = cat("conv2d_fused_rows_", kActivationNames[static_cast<size_t>(a)]),
                     .build =
                         [=](CaseInputs& in) {
                           const Value x = in.real({1, 26, 34, 33}), weight = in.weight({43, 26, 1, 1});
                           conv2d(x, weight, in.vector(43), attrs_of({1}, {0}, {1}, 1, activation), in.real({1, 43, 34, 33}));
                         },
                     .forward_only = true});
    cases.push_back({.name = cat("conv2d_fused_one_pixel_", kActivationNames[static_cast<size_t>(a)]),
                     .build =
                         [=](CaseInputs& in) {
                           const Value x = in.real({3, 26, 1, 1}), weight = in.weight({11, 26, 1, 1});
                           conv2d(x, weight, in.vector(11), attrs_of({1}, {0}, {1}, 1, activation));
                         },
                     .forward_only = true});
  }
}

}  // namespace

std::vector<OpCase> conv_cases() {
  std::vector<OpCase> cases;
  add_geometries(cases);
  add_volumes(cases);
  add_backward_cases(cases);
  add_hand_cases(cases);
  add_fused_cases(cases);
  add_fused_volume(cases);
  return cases;
}

}  // namespace galley::test
