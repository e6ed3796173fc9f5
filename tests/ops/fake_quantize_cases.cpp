// Cases of fake quantization. Its gradients are not the slopes of its results; fake_quantize_test.cpp tests them.

#include <cmath>
#include <limits>

#include "libcore/ops/fake_quantize.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

/// Four bits, one scale for the tensor.
FakeQuantizeAttrs whole_tensor() {
  FakeQuantizeAttrs attrs;
  attrs.qmin = -8;
  attrs.qmax = 7;
  return attrs;
}

/// Four bits, one scale for each channel.
FakeQuantizeAttrs each_channel() {
  FakeQuantizeAttrs attrs = whole_tensor();
  attrs.axis = 1;
  attrs.gradient_factor = 0.25;
  return attrs;
}

void add_fake_quantize(std::vector<OpCase>& cases) {
  const FakeQuantizeAttrs whole = whole_tensor(), channels = each_channel();
  // -0.75/0.5 = -1.5 -> -2; 0.25/0.5 -> 0; 10 -> clamped: 7 - 2; -10 -> -8 - 2
  cases.push_back({.name = "fake_quantize_hand",
                   .build =
                       [=](CaseInputs& in) {
                         fake_quantize(in.values({4}, {-0.75, 0.25, 10, -10}), in.values({}, {0.5}), in.fixed(in.values({}, {2})), whole);
                       },
                   .expected = {-1, 0, 2.5, -5},
                   .straight_through = true});
  for (const Shape& shape : {Shape{2, 5, 3, 7}, Shape{9, 5}, Shape{3, 5, 16, 9}, Shape{0, 5, 2, 2}}) {
    const std::string name = cat("rank", shape.rank(), "_", shape.elements());
    const Fill wide{.low = -3, .high = 3}, scales{.low = 0.1, .high = 0.4};
    cases.push_back({.name = "fake_quantize_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           const Value x = in.real(shape, wide), scale = in.real({}, scales);
                           fake_quantize(x, scale, in.fixed(in.values({}, {1})), whole);
                         },
                     .straight_through = true});
    cases.push_back({.name = "fake_quantize_channels_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           const Value x = in.real(shape, wide), scale = in.real({5}, scales);
                           fake_quantize(x, scale, in.fixed(in.values({5}, {0, 1, -2, 7, -8})), channels);
                         },
                     .straight_through = true});
  }
  cases.push_back({.name = "fake_quantize_first_axis",
                   .build =
                       [=](CaseInputs& in) {
                         FakeQuantizeAttrs a = whole;
                         a.axis = 0;
                         const Value x = in.weight({6, 3, 3, 3}), scale = in.real({6}, {.low = 0.05, .high = 0.2});
                         fake_quantize(x, scale, in.fixed(in.values({6}, std::vector<double>(6))), a);
                       },
                   .straight_through = true});
}

void add_gradients(std::vector<OpCase>& cases) {
  const FakeQuantizeAttrs whole = whole_tensor();
  // One scale's gradient by hand: inside: round(1.5) - 1.5 = 0.5, outside: 7 - 0, -8 - 0; grads 2, 3, 10.
  cases.push_back({.name = "fake_quantize_scale_backward_hand",
                   .build =
                       [=](CaseInputs& in) {
                         fake_quantize_scale_backward(in.values({3}, {2, 3, 10}), in.values({3}, {0.75, 9, -9}), in.values({}, {0.5}),
                                                      in.values({}, {0}), whole);
                       },
                   .expected = {2 * 0.5 + 3 * 7 - 10 * 8}});
  cases.push_back({.name = "fake_quantize_backward_hand",
                   .build =
                       [=](CaseInputs& in) {
                         fake_quantize_backward(in.values({5}, {1, 2, 3, 4, 5}), in.values({5}, {0, 3.74, 3.76, -4.24, -4.26}),
                                                in.values({}, {0.5}), in.values({}, {0}), whole);
                       },
                   .expected = {1, 2, 0, 4, 0}});
}

/// Scales below the smallest allowed one, 2^-23.
void add_least_scales(std::vector<OpCase>& cases) {
  const FakeQuantizeAttrs whole = whole_tensor(), channels = each_channel();
  // They are replaced by the smallest one, and their gradient is that of the smallest one: 5 * 7 + 3 * -8.
  const double least = std::exp2(-23);
  cases.push_back({.name = "fake_quantize_below_least_hand",
                   .build =
                       [=](CaseInputs& in) {
                         fake_quantize(in.values({2, 2}, {1, -1, 1, 0}), in.fixed(in.values({2}, {-3, 0})),
                                       in.fixed(in.values({2}, {0, 0})), channels);
                       },
                   .expected = {7 * least, -8 * least, 7 * least, 0},
                   .straight_through = true});
  cases.push_back({.name = "fake_quantize_backward_below_least_hand",
                   .build =
                       [=](CaseInputs& in) {
                         fake_quantize_backward(in.values({3}, {1, 2, 3}), in.values({3}, {5 * least, -9 * least, 9 * least}),
                                                in.values({}, {-3}), in.values({}, {0}), whole);
                       },
                   .expected = {1, 0, 0}});
  cases.push_back({.name = "fake_quantize_scale_backward_below_least_hand",
                   .build =
                       [=](CaseInputs& in) {
                         fake_quantize_scale_backward(in.values({3}, {5, 3, 2}), in.values({3}, {1, -1, 0}), in.values({}, {-3}),
                                                      in.values({}, {0}), whole);
                       },
                   .expected = {5 * 7 - 3 * 8}});
}

void add_observers(std::vector<OpCase>& cases) {
  const double infinity = std::numeric_limits<double>::infinity();
  ObserveRangeAttrs moving, each;
  moving.averaging = 0.25;
  each.averaging = 1;
  each.axis = 0;
  cases.push_back({.name = "observe_range_first_hand",
                   .build =
                       [=](CaseInputs& in) {
                         observe_range(in.values({3}, {-2, 5, 1}), in.values({}, {infinity}), in.values({}, {-infinity}), in.scalar(1),
                                       moving);
                       },
                   .expected = {-2}});
  // -1 + 0.25 * (-2 + 1)
  cases.push_back({.name = "observe_range_moving_hand",
                   .build =
                       [=](CaseInputs& in) {
                         observe_range(in.values({3}, {-2, 5, 1}), in.values({}, {-1}), in.values({}, {1}), in.scalar(1), moving);
                       },
                   .expected = {-1.25}});
  cases.push_back({.name = "observe_range_frozen_hand",
                   .build =
                       [=](CaseInputs& in) {
                         observe_range(in.values({3}, {-2, 5, 1}), in.values({}, {-1}), in.values({}, {1}), in.scalar(0), moving);
                       },
                   .expected = {-1}});
  cases.push_back({.name = "observe_range_channels_hand",
                   .build =
                       [=](CaseInputs& in) {
                         observe_range(in.values({2, 2}, {-2, 5, 1, 3}), in.values({2}, {-9, -9}), in.values({2}, {9, 9}), in.scalar(1),
                                       each);
                       },
                   .expected = {-2, 1}});
  cases.push_back({.name = "observe_range_image", .build = [=](CaseInputs& in) {
                     const Value x = in.real({3, 5, 17, 9});
                     observe_range(x, in.values({}, {-0.5}), in.values({}, {0.25}), in.scalar(1), moving);
                   }});
  cases.push_back({.name = "observe_range_weight", .build = [=](CaseInputs& in) {
                     const Value x = in.weight({6, 5, 3, 3});
                     observe_range(x, in.values({6}, std::vector<double>(6, -0.5)), in.values({6}, std::vector<double>(6, 0.5)),
                                   in.scalar(1), each);
                   }});
  cases.push_back({.name = "keep_range_hand",
                   .build =
                       [=](CaseInputs& in) {
                         keep_range(in.values({2}, {infinity, -1}), in.values({2}, {-infinity, 1}),
                                    {in.values({2}, {-2, -3}), in.values({2}, {5, 4})});
                       },
                   .expected = {-2, -3}});
}

void add_qparams(std::vector<OpCase>& cases) {
  const double infinity = std::numeric_limits<double>::infinity();
  QparamsFromRangeAttrs affine, symmetric;
  symmetric.qmin = -127;
  symmetric.qmax = 127;
  symmetric.symmetric = true;
  cases.push_back(
      {.name = "qparams_from_range_hand",
       .build = [=](CaseInputs& in) { qparams_from_range(in.values({3}, {-1, 2, -5.1}), in.values({3}, {4.1, 5.1, -1}), affine); },
       .expected = {0.02, 0.02, 0.02}});
  cases.push_back({.name = "qparams_from_range_symmetric_hand",
                   .build = [=](CaseInputs& in) { qparams_from_range(in.values({2}, {-254, 1}), in.values({2}, {127, 127}), symmetric); },
                   .expected = {2, 1}});
  cases.push_back({.name = "qparams_from_range_nothing_hand",
                   .build = [=](CaseInputs& in) { qparams_from_range(in.values({}, {infinity}), in.values({}, {-infinity}), affine); },
                   .expected = {1}});
  cases.push_back({.name = "qparams_from_range_channels", .build = [=](CaseInputs& in) {
                     const Value low = in.real({37}, {.low = -4, .high = 0.5});
                     qparams_from_range(low, in.real({37}, {.low = 1, .high = 3}), affine);
                   }});
}

}  // namespace

std::vector<OpCase> fake_quantize_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_fake_quantize, add_gradients, add_least_scales, add_observers, add_qparams}) add(cases);
  return cases;
}

}  // namespace galley::test
