// Cases of element-wise functions of two values, broadcasting, selection, and sum_to / broadcast_to.

#include "libcore/backends/cpu/rewrite/gates.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/emit.h"
#include "tests/ops/harness.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false in GCC 12: temporaries of an initializer list
#endif

namespace galley::test {

namespace {

struct SimpleBinary {
  std::string name;
  Value (*apply)(Value, Value);
  std::vector<double> y;  // of (1, -2, 3) and (2, -4, 3), hand values
  Fill a, b;              // disjoint where a tie would be a kink
};

Value prelu(Value x, Value weight) { return emit("prelu", {x, weight}); }

std::vector<SimpleBinary> binary_functions() {
  const Fill positive{.low = 0.3, .high = 2};
  return {
      {"add", add, {3, -6, 6}, {}, {}},
      {"sub", sub, {-1, 2, 0}, {}, {}},
      {"mul", mul, {2, 8, 9}, {}, {}},
      {"div", div, {0.5, 0.5, 1}, {}, positive},
      {"maximum", maximum, {2, -2, 3}, {.kinks = {0.1}, .margin = 0.2}, {.low = 0.08, .high = 0.12}},
      {"minimum", minimum, {1, -4, 3}, {.kinks = {0.1}, .margin = 0.2}, {.low = 0.08, .high = 0.12}},
      {"power", power, {1, 0.0625, 27}, positive, {}},
      {"prelu", prelu, {1, 8, 3}, {.kinks = {0}}, {}},
      // silu(1) = 0.7310585786300049, silu(-2) = -0.2384058440442351, silu(3) = 2.8577223804673
      {"swiglu", swiglu, {1.4621171572600098, 0.9536233761769404, 8.5731671414019}, {}, {}},
      {"equal", equal, {0, 0, 1}, {}, {}},
      {"less", less, {1, 0, 0}, {}, {}},
      {"greater", greater, {0, 1, 0}, {}, {}},
  };
}

void add_pairs(std::vector<OpCase>& cases) {
  const std::vector<SimpleBinary> simple = binary_functions();
  struct Pair {
    std::string name;
    Shape a, b;
  };
  const std::vector<Pair> shapes{{"same", {2, 5, 3, 7}, {2, 5, 3, 7}},
                                 {"channel", {2, 5, 3, 7}, {1, 5, 1, 1}},
                                 {"gate", {2, 5, 3, 7}, {2, 5, 1, 1}},
                                 {"vector", {3, 4, 6}, {6}},
                                 {"scalar", {2, 5, 3, 7}, {}},
                                 {"both", {3, 1, 4}, {5, 1}},
                                 {"wider", {4}, {2, 3, 4}},
                                 {"empty", {0, 5, 3, 7}, {1, 5, 1, 1}}};
  for (const SimpleBinary& s : simple) {
    cases.push_back({.name = s.name + "_hand",
                     .build = [s](CaseInputs& in) { s.apply(in.fixed(in.values({3}, {1, -2, 3})), in.fixed(in.values({3}, {2, -4, 3}))); },
                     .expected = s.y});
    for (const Pair& p : shapes) {
      cases.push_back({.name = s.name + "_" + p.name,
                       .build = [s, p](CaseInputs& in) { s.apply(in.real(p.a, s.a), in.real(p.b, s.b)); },
                       .low_precision = s.name == "add" || s.name == "mul" || s.name == "swiglu"});
    }
    // The same value on both sides: its gradients are added.
    if (s.name == "mul" || s.name == "add") {
      cases.push_back({.name = s.name + "_itself", .build = [s](CaseInputs& in) {
                         const Value x = in.real({3, 4});
                         s.apply(x, x);
                       }});
    }
  }
}

void add_choices(std::vector<OpCase>& cases) {
  const std::vector<SimpleBinary> simple = binary_functions();
  cases.push_back(
      {.name = "where_hand",
       .build = [](CaseInputs& in) { where(in.values({3}, {1, 0, 1}, DType::kBool), in.values({3}, {1, 2, 3}), in.values({1}, {-5})); },
       .expected = {1, -5, 3}});
  cases.push_back({.name = "where_broadcast",
                   .build = [](CaseInputs& in) { where(in.values({3, 1}, {1, 0, 1}, DType::kBool), in.real({2, 1, 4}), in.real({})); }});
  for (const DType dtype : {DType::kF64, DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8}) {
    std::vector<double> a, b, condition;
    for (int i = 0; i < 2 * 5 * 3 * 7; ++i) {
      a.push_back(i % 5 + 1);
      b.push_back(i % 7 + 1);
      condition.push_back(i % 3 % 2);
    }
    const Shape image{2, 5, 3, 7};
    for (const SimpleBinary& s : simple) {
      if (s.name != "equal" && s.name != "less" && s.name != "greater") continue;
      cases.push_back({.name = cat(s.name, "_of_", dtype),
                       .build = [=](CaseInputs& in) { s.apply(in.values(image, a, dtype), in.values(image, b, dtype)); }});
      cases.push_back({.name = cat(s.name, "_of_", dtype, "_channel"), .build = [=](CaseInputs& in) {
                         s.apply(in.values({1, 5, 1, 1}, {1, 2, 3, 4, 5}, dtype), in.values(image, b, dtype));
                       }});
    }
    cases.push_back({.name = cat("where_of_", dtype),
                     .build =
                         [=](CaseInputs& in) {
                           where(in.values(image, condition, DType::kBool), in.values(image, a, dtype), in.values(image, b, dtype));
                         },
                     .forward_only = true});
    cases.push_back({.name = cat("where_of_", dtype, "_scalar"),
                     .build =
                         [=](CaseInputs& in) {
                           where(in.values({5, 1, 1}, {1, 0, 0, 1, 1}, DType::kBool), in.values(image, a, dtype),
                                 in.values({}, {3}, dtype));
                         },
                     .forward_only = true});
  }
  cases.push_back({.name = "where_image",
                   .build =
                       [](CaseInputs& in) {
                         where(greater(in.real({2, 5, 3, 7}), in.real({1, 5, 1, 1})), in.real({2, 5, 3, 7}), in.real({2, 5, 3, 7}));
                       },
                   .low_precision = true});
  cases.push_back(
      {.name = "where_large",
       .build = [](CaseInputs& in) { where(less(in.real({4, 19, 31, 33}), in.real({})), in.real({4, 19, 31, 33}), in.real({19, 1, 1})); },
       .forward_only = true});
}

void add_sums_and_broadcasts(std::vector<OpCase>& cases) {
  cases.push_back({.name = "sum_to_hand",
                   .build = [](CaseInputs& in) { sum_to(in.values({2, 3}, {1, 2, 3, 4, 5, 6}), Shape{3}); },
                   .expected = {5, 7, 9}});
  cases.push_back({.name = "sum_to_kept",
                   .build = [](CaseInputs& in) { sum_to(in.values({2, 3}, {1, 2, 3, 4, 5, 6}), Shape{2, 1}); },
                   .expected = {6, 15}});
  cases.push_back({.name = "sum_to_channel", .build = [](CaseInputs& in) { sum_to(in.real({2, 5, 3, 7}), Shape{1, 5, 1, 1}); }});
  // Missing and repeated dimensions together, as for the scale [C,1,1] of a layer.
  cases.push_back({.name = "sum_to_layer_scale", .build = [](CaseInputs& in) { sum_to(in.real({2, 5, 3, 7}), Shape{5, 1, 1}); }});
  cases.push_back({.name = "sum_to_middle", .build = [](CaseInputs& in) { sum_to(in.real({2, 5, 3, 7}), Shape{1, 3, 1}); }});
  cases.push_back({.name = "sum_to_scalar", .build = [](CaseInputs& in) { sum_to(in.real({2, 5, 3, 7}), Shape{}); }});
  cases.push_back({.name = "sum_products_hand",
                   .build =
                       [](CaseInputs& in) {
                         ShapeAttrs a;
                         a.shape = {2, 1};
                         sum_products(in.values({2, 3}, {1, 2, 3, 4, 5, 6}), in.values({2, 3}, {1, 10, 100, 1, 10, 100}), a);
                       },
                   .expected = {321, 654},
                   .forward_only = true});
  // Blocks of 64 channels, whole rows of many images, runs of 64 pixels, and remainders.
  for (const Shape& shape : {Shape{2, 5, 3, 7}, Shape{3, 131, 9, 11}, Shape{17, 7, 2, 3}, Shape{16, 1030, 1, 3}, Shape{2, 4, 13, 17}}) {
    cases.push_back({.name = cat("sum_products_", shape[0], "_", shape[1], "_", shape[2]),
                     .build =
                         [=](CaseInputs& in) {
                           ShapeAttrs a;
                           a.shape = {shape[0], shape[1], 1, 1};
                           sum_products(in.real(shape), in.real(shape), a);
                         },
                     .forward_only = true,
                     .low_precision = true});
  }
  cases.push_back({.name = "sum_products_channels",
                   .build =
                       [](CaseInputs& in) {
                         ShapeAttrs a;
                         a.shape = {5, 1, 1};
                         sum_products(in.real({2, 5, 3, 7}), in.real({2, 5, 3, 7}), a);
                       },
                   .forward_only = true});
  cases.push_back({.name = "broadcast_to_hand",
                   .build = [](CaseInputs& in) { broadcast_to(in.values({2, 1}, {1, 2}), Shape{2, 2, 3}); },
                   .expected = {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}});
  cases.push_back({.name = "broadcast_to_image", .build = [](CaseInputs& in) { broadcast_to(in.real({2, 5, 1, 1}), Shape{2, 5, 3, 7}); }});
}

}  // namespace

std::vector<OpCase> binary_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_pairs, add_choices, add_sums_and_broadcasts}) add(cases);
  return cases;
}

}  // namespace galley::test
