// Cases of Winograd convolutions: kernels against the reference of the same operator. The test of the pass that inserts them
// (tests/backends/cpu/use_winograd_test.cpp) compares them with plain convolutions.

#include <limits>

#include "libcore/backends/cpu/rewrite/winograd.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

Value convolve(CaseInputs& in, const Shape& x, int64_t outputs, std::vector<int64_t> padding, Activation activation = Activation::kNone,
               bool bias = false, bool residual = false) {
  WinogradConv2dAttrs attrs;
  attrs.padding = std::move(padding);
  attrs.activation = activation;
  const Value image = in.real(x);
  const Value transformed = winograd_weights(in.weight({outputs, x[1], 3, 3}), {});
  const auto pad = pair(attrs.padding);
  return winograd_conv2d(image, transformed, bias ? in.vector(outputs) : Value(), attrs,
                         residual ? in.real({x[0], outputs, x[2] + 2 * pad[0] - 2, x[3] + 2 * pad[1] - 2}) : Value());
}

}  // namespace

std::vector<OpCase> winograd_cases() {
  std::vector<OpCase> cases;
  // Terms of 36 products cancel, so the error of a float32 kernel is twice that of plain sums.
  const auto add = [&](std::string name, std::function<void(CaseInputs&)> build) {
    cases.push_back({.name = "winograd_" + name, .build = std::move(build), .kernel_tolerance = 4e-5, .forward_only = true});
  };
  for (const auto& [outputs, channels] : {std::pair<int64_t, int64_t>{16, 16}, {19, 35}, {40, 5}, {1, 1}, {64, 48}}) {
    for (const bool backward : {false, true}) {
      WinogradWeightsAttrs attrs;
      attrs.backward = backward;
      add(cat("weights_", outputs, "_", channels, backward ? "_backward" : ""),
          [=, outputs = outputs, channels = channels](CaseInputs& in) { winograd_weights(in.weight({outputs, channels, 3, 3}), attrs); });
    }
  }
  struct Geometry {
    std::string name;
    Shape x;
    int64_t outputs;
    std::vector<int64_t> padding;
  };
  for (const Geometry& g : std::vector<Geometry>{{"whole_tiles", {2, 16, 8, 12}, 32, {1}},
                                                 {"edges", {1, 17, 7, 9}, 19, {1}},
                                                 {"no_padding", {3, 24, 6, 11}, 16, {0}},
                                                 {"wide_padding", {1, 16, 5, 5}, 20, {2}},
                                                 {"uneven_padding", {1, 33, 6, 4}, 18, {0, 2}},
                                                 {"narrower_than_a_tile", {2, 18, 3, 2}, 16, {1}},
                                                 {"one_result", {2, 20, 3, 3}, 16, {0}},
                                                 {"few_channels", {1, 3, 6, 6}, 5, {1}},
                                                 {"many_tiles", {5, 16, 27, 26}, 16, {1}},
                                                 {"many_channels", {2, 200, 10, 9}, 136, {1}}}) {
    add(g.name, [=](CaseInputs& in) { convolve(in, g.x, g.outputs, g.padding); });
  }
  for (const Geometry& g : std::vector<Geometry>{{"whole_tiles", {2, 16, 8, 12}, 32, {1}},
                                                 {"edges", {1, 17, 7, 9}, 19, {1}},
                                                 {"no_padding", {3, 24, 6, 11}, 16, {0}},
                                                 {"uneven_padding", {1, 33, 6, 4}, 18, {0, 2}},
                                                 {"narrower_than_a_tile", {2, 18, 3, 2}, 16, {1}},
                                                 {"few_channels", {1, 3, 6, 6}, 5, {1}},
                                                 {"one_tile", {1, 16, 4, 4}, 16, {1}},
                                                 {"many_tiles", {6, 16, 27, 26}, 16, {1}},
                                                 {"shared_blocks", {35, 112, 5, 5}, 96, {1}},
                                                 {"shared_blocks_in_rounds", {950, 96, 1, 1}, 80, {1}}}) {
    add(cat("backward_weights_", g.name), [=](CaseInputs& in) {
      Conv2dBackwardWeightsAttrs attrs;
      attrs.padding = g.padding;
      attrs.kernel_size = {3};
      const auto pad = pair(g.padding);
      winograd_conv2d_backward_weights(in.real(g.x), in.real({g.x[0], g.outputs, g.x[2] + 2 * pad[0] - 2, g.x[3] + 2 * pad[1] - 2}), attrs);
    });
  }
  for (int a = 0; a < static_cast<int>(kActivationNames.size()); ++a) {
    for (const bool residual : {false, true}) {
      add(cat(kActivationNames[static_cast<size_t>(a)], residual ? "_residual" : ""),
          [=](CaseInputs& in) { convolve(in, {2, 18, 6, 9}, 21, {1}, static_cast<Activation>(a), true, residual); });
    }
  }
  // The activation keeps NaN, which affects the whole tile.
  add("nan_relu", [](CaseInputs& in) {
    WinogradConv2dAttrs attrs;
    attrs.padding = {1};
    attrs.activation = Activation::kRelu;
    const Value image = in.values({1, 16, 4, 4}, std::vector<double>(256, std::numeric_limits<double>::quiet_NaN()));
    winograd_conv2d(image, winograd_weights(in.weight({16, 16, 3, 3}), {}), {}, attrs);
  });
  return cases;
}

}  // namespace galley::test
