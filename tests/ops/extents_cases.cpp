// Cases of fill_outside and extents_after, and of means, norms and regions inside extents.

#include "libcore/ops/extents.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/roi_align.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

/// Extents of two images of [2,C,6,9]: less in both axes, and all of it; of three also an image without pixels.
Value extents_of(CaseInputs& in, int64_t samples) {
  const std::vector<double> all{4, 5, 6, 9, 0, 0};
  return in.values({samples, 2}, {all.begin(), all.begin() + 2 * samples}, DType::kI64);
}

void add_fills(std::vector<OpCase>& cases) {
  cases.push_back(
      {.name = "fill_outside_hand",
       .build =
           [](CaseInputs& in) { fill_outside(in.values({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), in.values({1, 2}, {1, 2}, DType::kI64), -7); },
       .expected = {1, 2, -7, -7, -7, -7}});
  for (const int64_t channels : {1, 5}) {
    cases.push_back({.name = cat("fill_outside_", channels),
                     .build = [=](CaseInputs& in) { fill_outside(in.real({3, channels, 6, 9}), extents_of(in, 3), 0.5); },
                     .low_precision = true});
  }
  cases.push_back(
      {.name = "fill_outside_wide",
       .build = [](CaseInputs& in) { fill_outside(in.real({2, 64, 40, 33}), in.values({2, 2}, {40, 20, 17, 33}, DType::kI64)); },
       .large = true});
  for (const DType dtype : {DType::kU8, DType::kI8}) {
    cases.push_back({.name = cat("fill_outside_", dtype),
                     .build = [=](CaseInputs& in) { fill_outside(in.quantized(dtype, {2, 3, 6, 9}, 0, 100), extents_of(in, 2), 7); },
                     .forward_only = true});
  }
}

void add_extents_after(std::vector<OpCase>& cases) {
  const auto after = [&](const std::string& name, const ExtentsAfterAttrs& attrs, std::vector<double> expected) {
    cases.push_back({.name = "extents_after_" + name,
                     .build = [=](CaseInputs& in) { extents_after(in.values({3, 2}, {32, 64, 33, 1, 0, 7}, DType::kI64), attrs); },
                     .expected = std::move(expected)});
  };
  ExtentsAfterAttrs attrs;
  attrs.kernel_size = {3};
  attrs.stride = {2};
  attrs.padding = {1};
  after("window", attrs, {16, 32, 17, 1, 0, 4});
  attrs.kernel_size = {7, 1};
  attrs.stride = {2, 3};
  attrs.padding = {3, 0};
  after("axes", attrs, {16, 22, 17, 1, 0, 3});
  attrs = {};
  attrs.kernel_size = {3};
  attrs.dilation = {4};
  after("dilated", attrs, {24, 56, 25, 0, 0, 0});
  attrs = {};
  attrs.factor = {2, 1};
  after("factor", attrs, {64, 64, 66, 1, 0, 7});
}

void add_means(std::vector<OpCase>& cases) {
  cases.push_back({.name = "mean_inside_hand",
                   .build =
                       [](CaseInputs& in) {
                         emit(adaptive_avg_pool2d_op(),
                              {in.values({1, 2, 2, 2}, {1, 9, 3, 9, 10, 9, 30, 9}), in.values({1, 2}, {2, 1}, DType::kI64)},
                              AdaptiveAvgPool2dAttrs());
                       },
                   .expected = {2, 20}});
  for (const int64_t channels : {1, 3, 70}) {
    cases.push_back({.name = cat("mean_inside_", channels), .build = [=](CaseInputs& in) {
                       emit(adaptive_avg_pool2d_op(), {in.real({3, channels, 6, 9}), extents_of(in, 3)}, AdaptiveAvgPool2dAttrs());
                     }});
  }
  cases.push_back({.name = "quantized_mean_inside",
                   .build =
                       [](CaseInputs& in) {
                         QuantizedAdaptiveAvgPool2dAttrs attrs;
                         attrs.input_scale = 0.5;
                         attrs.input_zero_point = 3;
                         attrs.output_dtype = DType::kU8;
                         attrs.output_scale = 0.25;
                         emit(quantized_adaptive_avg_pool2d_op(), {in.quantized(DType::kU8, {2, 3, 6, 9}, 0, 100), extents_of(in, 2)},
                              attrs);
                       },
                   .forward_only = true});
}

void add_norms(std::vector<OpCase>& cases) {
  for (const bool affine : {true, false}) {
    cases.push_back({.name = cat("group_norm_inside", affine ? "" : "_no_affine"),
                     .build =
                         [=](CaseInputs& in) {
                           GroupNormAttrs attrs;
                           attrs.groups = 2;
                           const Value x = in.real({2, 6, 6, 9}), gamma = affine ? in.vector(6) : Value();
                           emit(group_norm_op(), {x, gamma, affine ? in.vector(6) : Value(), extents_of(in, 2)}, attrs);
                         },
                     .differentiable_outputs = 1});
  }
  cases.push_back({.name = "group_norm_inside_lines",
                   .build =
                       [](CaseInputs& in) {
                         GroupNormAttrs attrs;
                         attrs.groups = 8;
                         const Value extents = in.values({2, 2}, {33, 20, 40, 33}, DType::kI64);
                         emit(group_norm_op(), {in.real({2, 64, 40, 33}, {.low = 40, .high = 43}), in.vector(64), in.vector(64), extents},
                              attrs);
                       },
                   .differentiable_outputs = 1,
                   .kernel_tolerance = 2e-4,
                   .large = true});
}

void add_regions(std::vector<OpCase>& cases) {
  // At the right and lower border of the own pixels, samples read the last of them.
  cases.push_back({.name = "roi_align_inside_hand",
                   .build =
                       [](CaseInputs& in) {
                         RoiAlignAttrs attrs;
                         attrs.output_size = {1, 1};
                         attrs.sampling_ratio = 1;
                         const Value x = in.values({1, 1, 2, 3}, {1, 2, 9, 9, 9, 9}), boxes = in.fixed(in.values({1, 1, 4}, {1, 0, 2, 1}));
                         emit(roi_align_op(), {x, boxes, Value(), in.values({1, 2}, {1, 2}, DType::kI64)}, attrs);
                       },
                   .expected = {2}});
  cases.push_back({.name = "roi_align_inside", .build = [](CaseInputs& in) {
                     RoiAlignAttrs attrs;
                     attrs.output_size = {2, 3};
                     attrs.sampling_ratio = 2;
                     attrs.spatial_scale = {0.25, 0.125};
                     const Value fine = in.real({2, 3, 8, 10}), coarse = in.real({2, 3, 4, 5});
                     const Value boxes = in.fixed(in.values({2, 3, 4}, {0, 0, 16, 16, 4,  3,  15.5, 16, 0, 0, 16, 12,  //
                                                                        0, 0, 40, 32, 20, 20, 40,   32, 3, 3, 12, 9}));
                     const Value extents = in.values({2, 4}, {4, 4, 2, 2, 8, 10, 4, 5}, DType::kI64);
                     emit(roi_align_op(), {fine, boxes, Value(), extents, coarse}, attrs);
                   }});
}

}  // namespace

std::vector<OpCase> extents_cases();  // harness.cpp

std::vector<OpCase> extents_cases() {
  std::vector<OpCase> cases;
  for (void (*add)(std::vector<OpCase>&) : {add_fills, add_extents_after, add_means, add_norms, add_regions}) add(cases);
  return cases;
}

}  // namespace galley::test
