// Cases of pooling.

#include "libcore/ops/pool.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

void add_pools(std::vector<OpCase>& cases) {
  // Neighbors differ by more than the step of finite differences, so that the maximum keeps its position.
  const Fill distinct{.low = -10, .high = 10, .distinct = true};
  struct Window {
    std::string name;
    Shape x;
    std::vector<int64_t> kernel, stride, padding, dilation;
    bool ceil = false, count_pad = true;
  };
  const std::vector<Window> windows{
      {"plain", {2, 3, 6, 8}, {2}, {}, {0}, {1}},
      {"stem", {1, 5, 9, 7}, {3}, {2}, {1}, {1}},
      {"uneven", {2, 3, 7, 9}, {3, 2}, {2, 3}, {1, 0}, {1}},
      {"ceil", {1, 3, 7, 8}, {3}, {2}, {0}, {1}, true},
      {"ceil_padding", {1, 3, 6, 5}, {3}, {2}, {1}, {1}, true},
      {"ceil_padding_valid", {1, 3, 6, 5}, {3}, {2}, {1}, {1}, true, false},
      {"padding_valid", {1, 17, 5, 5}, {3}, {1}, {1}, {1}, false, false},
      {"dilated", {1, 2, 9, 8}, {3}, {1}, {1}, {2}},
      {"packs", {1, 8, 5, 7}, {3}, {2}, {1}, {1}},
      {"packs_dilated", {1, 8, 6, 5}, {2, 3}, {2, 1}, {1}, {2, 1}},
      {"empty_batch", {0, 3, 6, 8}, {2}, {}, {0}, {1}},
  };
  for (const Window& w : windows) {
    if (w.count_pad) {
      cases.push_back({.name = "max_pool2d_" + w.name,
                       .build =
                           [=](CaseInputs& in) {
                             MaxPool2dAttrs a;
                             a.kernel_size = w.kernel;
                             a.stride = w.stride;
                             a.padding = w.padding;
                             a.dilation = w.dilation;
                             a.ceil_mode = w.ceil;
                             max_pool2d(in.real(w.x, distinct), a);
                           },
                       .differentiable_outputs = 1,
                       .low_precision = true});
    }
    if (w.dilation != std::vector<int64_t>{1}) continue;
    cases.push_back({.name = "avg_pool2d_" + w.name,
                     .build =
                         [=](CaseInputs& in) {
                           AvgPool2dAttrs a;
                           a.kernel_size = w.kernel;
                           a.stride = w.stride;
                           a.padding = w.padding;
                           a.ceil_mode = w.ceil;
                           a.count_include_pad = w.count_pad;
                           avg_pool2d(in.real(w.x), a);
                         },
                     .low_precision = true});
  }
  for (const Shape& x : {Shape{2, 19, 7, 5}, Shape{1, 3, 4, 4}, Shape{2, 3, 1, 1}, Shape{1, 8, 5, 6}, Shape{0, 3, 7, 5}}) {
    for (const std::vector<int64_t>& size : {std::vector<int64_t>{1}, std::vector<int64_t>{3, 2}, std::vector<int64_t>{7}}) {
      const std::string name = cat(x[0], "x", x[1], "x", x[2], "x", x[3], "_to_", size.front());
      cases.push_back({.name = "adaptive_avg_pool2d_" + name,
                       .build =
                           [=](CaseInputs& in) {
                             AdaptiveAvgPool2dAttrs a;
                             a.output_size = size;
                             adaptive_avg_pool2d(in.real(x), a);
                           },
                       .low_precision = true});
      cases.push_back({.name = "adaptive_max_pool2d_" + name,
                       .build =
                           [=](CaseInputs& in) {
                             AdaptiveMaxPool2dAttrs a;
                             a.output_size = size;
                             // At most 300 elements, so that neighbors remain apart.
                             const int64_t channels = x[1] > 8 ? 3 : x[1];
                             adaptive_max_pool2d(in.real(Shape{x[0], channels, x[2], x[3]}, distinct), a);
                           },
                       .differentiable_outputs = 1,
                       .low_precision = true});
    }
  }
}

void add_large_and_hand_pools(std::vector<OpCase>& cases) {
  // For kernels: enough planes for several threads.
  cases.push_back({.name = "max_pool2d_large",
                   .build =
                       [](CaseInputs& in) {
                         MaxPool2dAttrs a;
                         a.kernel_size = {3};
                         a.stride = {2};
                         a.padding = {1};
                         max_pool2d(in.real({3, 19, 28, 26}), a);
                       },
                   .forward_only = true});
  cases.push_back({.name = "avg_pool2d_large",
                   .build =
                       [](CaseInputs& in) {
                         AvgPool2dAttrs a;
                         a.kernel_size = {3};
                         a.stride = {2};
                         a.padding = {1};
                         avg_pool2d(in.real({3, 19, 28, 26}), a);
                       },
                   .forward_only = true});
  cases.push_back({.name = "adaptive_max_pool2d_large",
                   .build =
                       [](CaseInputs& in) {
                         AdaptiveMaxPool2dAttrs a;
                         a.output_size = {5, 3};
                         adaptive_max_pool2d(in.real({3, 19, 28, 26}), a);
                       },
                   .forward_only = true});
  const std::vector<double> image{1, 2, 3, 4, 5, 6, 7, 8, 9};
  cases.push_back({.name = "max_pool2d_hand",
                   .build =
                       [=](CaseInputs& in) {
                         MaxPool2dAttrs a;
                         a.stride = {1};
                         max_pool2d(in.values({1, 1, 3, 3}, image), a);
                       },
                   .expected = {5, 6, 8, 9},
                   .differentiable_outputs = 1});
  cases.push_back({.name = "avg_pool2d_hand",
                   .build =
                       [=](CaseInputs& in) {
                         AvgPool2dAttrs a;
                         a.ceil_mode = true;
                         avg_pool2d(in.values({1, 1, 3, 3}, image), a);
                       },
                   .expected = {3, 4.5, 7.5, 9}});
  cases.push_back({.name = "avg_pool2d_hand_padding",
                   .build =
                       [=](CaseInputs& in) {
                         AvgPool2dAttrs a;
                         a.padding = {1};
                         avg_pool2d(in.values({1, 1, 3, 3}, image), a);
                       },
                   .expected = {0.25, 1.25, 2.75, 7}});
  cases.push_back({.name = "adaptive_avg_pool2d_hand",
                   .build =
                       [=](CaseInputs& in) {
                         AdaptiveAvgPool2dAttrs a;
                         a.output_size = {2};
                         adaptive_avg_pool2d(in.values({1, 1, 3, 3}, image), a);
                       },
                   .expected = {3, 4, 6, 7}});
}

}  // namespace

std::vector<OpCase> pool_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_pools, add_large_and_hand_pools}) add(cases);
  return cases;
}

}  // namespace galley::test
