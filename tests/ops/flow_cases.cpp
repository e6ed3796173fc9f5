// Cases of grid_sample and of the operators of optical flow.

#include <cmath>

#include "libcore/ops/flow.h"
#include "libcore/ops/grid_sample.h"
#include "libcore/ops/unary.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

/// Numbers that float32 holds, so that kernels and the reference see equal positions.
Value positions(CaseInputs& in, const Shape& shape, double low, double high) {
  RandomStream random(9, cat("positions ", shape.elements()));
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<float>(low + (high - low) * random.uniform()));
  return in.values(shape, values);
}

std::vector<OpCase> grid_sample_cases() {
  std::vector<OpCase> cases;
  const auto attrs_of = [](GridSampleMode mode, GridPadding padding, bool align) {
    GridSampleAttrs attrs;
    attrs.mode = mode;
    attrs.padding_mode = padding;
    attrs.align_corners = align;
    return attrs;
  };
  const auto hand = [&](const std::string& name, const GridSampleAttrs& attrs, std::vector<double> points, std::vector<double> expected) {
    const auto count = static_cast<int64_t>(points.size()) / 2;
    cases.push_back(
        {.name = "grid_sample_" + name,
         .build =
             [=](CaseInputs& in) { grid_sample(in.values({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), in.values({1, 1, count, 2}, points), attrs); },
         .expected = std::move(expected),
         .forward_only = true});
  };
  // The border of the image is half a pixel from its first center: a quarter of the corner's value.
  hand("hand", attrs_of(GridSampleMode::kBilinear, GridPadding::kZeros, false), {0, 0, -1, -1, 0, 0.5, -9, 0}, {3.5, 0.25, 5, 0});
  hand("hand_aligned", attrs_of(GridSampleMode::kBilinear, GridPadding::kZeros, true), {0, 0, -1, -1, 1, 1, 0.5, -1}, {3.5, 1, 6, 2.5});
  hand("hand_border", attrs_of(GridSampleMode::kBilinear, GridPadding::kBorder, false), {-1, -1, 5, -5, 0, 3}, {1, 3, 5});
  // Half a pixel above the first center mirrors to itself; columns -1.5 to 0.5.
  hand("hand_reflection", attrs_of(GridSampleMode::kBilinear, GridPadding::kReflection, false), {-1, -1, -5.0 / 3, -0.5}, {1, 1.5});
  // Middles between two pixels go to the even one: column 0.5 to 0, 1.5 to 2.
  hand("hand_nearest", attrs_of(GridSampleMode::kNearest, GridPadding::kZeros, true), {-0.5, -1, 0.5, -1, 0.2, 0.6, 2.1, 0}, {1, 3, 5, 0});
  for (const GridPadding padding : {GridPadding::kZeros, GridPadding::kBorder, GridPadding::kReflection}) {
    for (const bool align : {false, true}) {
      const auto name = cat("grid_sample_", kGridPaddingNames[static_cast<size_t>(padding)], align ? "_aligned" : "");
      cases.push_back({.name = name, .build = [=](CaseInputs& in) {
                         grid_sample(in.real({2, 3, 5, 4}), positions(in, {2, 3, 2, 2}, -1.9, 1.9),
                                     attrs_of(GridSampleMode::kBilinear, padding, align));
                       }});
    }
  }
  cases.push_back({.name = "grid_sample_nearest_gradient", .build = [=](CaseInputs& in) {
                     grid_sample(in.real({2, 2, 4, 3}), in.fixed(positions(in, {2, 3, 3, 2}, -1.2, 1.2)),
                                 attrs_of(GridSampleMode::kNearest, GridPadding::kZeros, false));
                   }});
  cases.push_back(
      {.name = "grid_sample_large",
       .build = [=](CaseInputs& in) { grid_sample(in.real({2, 37, 9, 11}), positions(in, {2, 13, 17, 2}, -1.3, 1.3), GridSampleAttrs()); },
       .large = true});
  return cases;
}

std::vector<OpCase> lookup_cases() {
  std::vector<OpCase> cases;
  // One pixel of the first image, features (3, 4), moves by (1.5, 0): between columns 1 and 2 of a row of four pixels. Radius 0.
  cases.push_back({.name = "correlation_lookup_hand",
                   .build =
                       [](CaseInputs& in) {
                         CorrelationLookupAttrs attrs;
                         attrs.radius = 0;
                         correlation_lookup(in.fixed(in.values({1, 2, 1, 1}, {1.5, 0})), in.values({1, 2, 1, 1}, {3, 4}),
                                            {in.values({1, 2, 1, 4}, {0, 1, 2, 0, 0, 0, 1, 0})}, attrs);
                       },
                   .expected = {(0.5 * 3 + 0.5 * (6 + 4)) / std::sqrt(2.0)}});
  // Values are ordered by column, then by row, of the window: the second is one row below the first. The flow is exactly (1, 1).
  cases.push_back({.name = "correlation_lookup_order",
                   .build =
                       [](CaseInputs& in) {
                         CorrelationLookupAttrs attrs;
                         attrs.radius = 1;
                         std::vector<double> level;
                         for (int i = 0; i < 25; ++i) level.push_back(i);
                         correlation_lookup(in.fixed(in.values({1, 2, 1, 1}, {2, 2})), in.values({1, 1, 1, 1}, {1}),
                                            {in.values({1, 1, 5, 5}, level)}, attrs);
                       },
                   .expected = {6, 11, 16, 7, 12, 17, 8, 13, 18}});
  const auto random = [&](const std::string& name, const Shape& first, std::vector<std::array<int64_t, 2>> levels, int64_t radius,
                          double reach, bool large) {
    cases.push_back({.name = "correlation_lookup_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           CorrelationLookupAttrs attrs;
                           attrs.radius = radius;
                           const Value flow = in.fixed(positions(in, {first[0], 2, first[2], first[3]}, -reach, reach));
                           const Value features = in.real(first);
                           std::vector<Value> pyramid;
                           for (const auto& size : levels) pyramid.push_back(in.real({first[0], first[1], size[0], size[1]}));
                           correlation_lookup(flow, features, pyramid, attrs);
                         },
                     .large = large});
  };
  random("levels", {2, 3, 3, 4}, {{3, 4}, {1, 2}}, 1, 3, false);
  random("outside", {1, 2, 2, 3}, {{2, 3}}, 2, 40, false);
  random("channels", {1, 37, 5, 6}, {{5, 6}, {2, 3}, {1, 1}}, 3, 4, true);
  return cases;
}

std::vector<OpCase> upsample_cases() {
  std::vector<OpCase> cases;
  const auto attrs_of = [](int64_t factor) {
    ConvexUpsampleAttrs attrs;
    attrs.factor = factor;
    return attrs;
  };
  // Equal logits: a ninth of the sum of the neighbors inside, times 2.
  cases.push_back({.name = "convex_upsample_hand",
                   .build =
                       [=](CaseInputs& in) {
                         convex_upsample(in.values({1, 1, 1, 2}, {9, 18}), in.values({1, 36, 1, 2}, std::vector<double>(72, 0.25)),
                                         attrs_of(2));
                       },
                   .expected = {6, 6, 6, 6, 6, 6, 6, 6}});
  const auto random = [&](const std::string& name, const Shape& flow, int64_t factor, bool large) {
    cases.push_back({.name = "convex_upsample_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           convex_upsample(in.real(flow), in.real({flow[0], 9 * factor * factor, flow[2], flow[3]}), attrs_of(factor));
                         },
                     .large = large});
  };
  random("two", {2, 2, 3, 4}, 2, false);
  random("three", {1, 1, 2, 3}, 3, false);
  random("eight", {1, 2, 4, 5}, 8, true);
  return cases;
}

}  // namespace

std::vector<OpCase> flow_cases() {
  std::vector<OpCase> cases = grid_sample_cases();
  for (const auto& more : {lookup_cases(), upsample_cases()}) cases.insert(cases.end(), more.begin(), more.end());
  cases.push_back({.name = "detach_hand",
                   .build = [](CaseInputs& in) { detach(in.fixed(in.values({3}, {1, -2, 3}))); },
                   .expected = {1, -2, 3},
                   .forward_only = true});
  cases.push_back({.name = "detach_maps", .build = [](CaseInputs& in) { detach(in.fixed(in.real({2, 3, 4, 5}))); }, .forward_only = true});
  return cases;
}

}  // namespace galley::test
