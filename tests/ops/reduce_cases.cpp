// Cases of the reductions.

#include <limits>

#include "libcore/ops/reduce.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

void add_reductions(std::vector<OpCase>& cases) {
  struct Simple {
    std::string name;
    Value (*apply)(Value, const ReduceAttrs&);
    std::vector<double> columns, all;  // of [[1,5,3],[4,2,6]], hand values
  };
  const std::vector<Simple> simple{{"sum", sum, {5, 7, 9}, {21}},
                                   {"mean", mean, {2.5, 3.5, 4.5}, {3.5}},
                                   {"amax", amax, {4, 5, 6}, {6}},
                                   {"amin", amin, {1, 2, 3}, {1}}};
  const std::vector<double> matrix{1, 5, 3, 4, 2, 6};
  const auto attrs_of = [](std::vector<int64_t> axes, bool keepdim) {
    ReduceAttrs attrs;
    attrs.axes = std::move(axes);
    attrs.keepdim = keepdim;
    return attrs;
  };
  for (const Simple& s : simple) {
    const auto add = [&](const std::string& name, const ReduceAttrs& attrs, const Shape& shape) {
      cases.push_back({.name = s.name + "_" + name,
                       .build = [s, attrs, shape](CaseInputs& in) { s.apply(in.real(shape, {.distinct = true}), attrs); }});
    };
    cases.push_back({.name = s.name + "_hand",
                     .build = [s, matrix, attrs_of](CaseInputs& in) { s.apply(in.values({2, 3}, matrix), attrs_of({0}, false)); },
                     .expected = s.columns});
    cases.push_back({.name = s.name + "_all_hand",
                     .build = [s, matrix, attrs_of](CaseInputs& in) { s.apply(in.values({2, 3}, matrix), attrs_of({}, false)); },
                     .expected = s.all});
    // At most 48 elements, so that the gradient check perturbs all: the gradient of an extreme value is zero almost everywhere.
    add("space", attrs_of({2, 3}, false), {2, 3, 2, 4});
    add("space_kept", attrs_of({-1, -2}, true), {2, 3, 2, 4});
    add("channels", attrs_of({0, 2, 3}, false), {2, 3, 2, 4});
    add("middle", attrs_of({1}, false), {3, 4, 4});
    add("everything", attrs_of({}, true), {3, 4, 4});
    add("alternating", attrs_of({0, 2}, false), {2, 3, 2, 4});
    add("nothing", attrs_of({1}, false), {3, 1, 5});
    // Enough elements for several threads and stages; lines and columns that are not multiples of vectors.
    const auto large = [&](const std::string& name, const ReduceAttrs& attrs, const Shape& shape) {
      cases.push_back({.name = s.name + "_" + name,
                       .build = [s, attrs, shape](CaseInputs& in) { s.apply(in.real(shape), attrs); },
                       .forward_only = true});
    };
    large("large_space", attrs_of({2, 3}, false), {3, 67, 11, 13});
    large("large_channels", attrs_of({0, 2, 3}, true), {3, 67, 11, 13});
    large("large_everything", attrs_of({}, false), {3, 67, 31, 23});
    large("large_bias", attrs_of({0}, false), {40009, 3});
    large("large_alternating", attrs_of({0, 2, 4}, true), {7, 5, 19, 6, 23});
    // -inf, inf; NaN affects only its line.
    const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    for (const int64_t axis : {int64_t{0}, int64_t{1}}) {
      cases.push_back({.name = cat(s.name, "_strange_", axis),
                       .build =
                           [=](CaseInputs& in) {
                             std::vector<double> x(20 * 20, 1);
                             for (size_t i = 0; i < 20; ++i)
                               x[i * 20 + i] = i == 7 ? nan : i == 12 ? inf : i == 15 ? -inf : static_cast<double>(i % 3);
                             for (size_t i = 0; i < 20; ++i) x[i * 20 + 3] = x[3 * 20 + i] = -inf;
                             x[2 * 20 + 5] = nan;
                             s.apply(in.values({20, 20}, x), attrs_of({axis}, false));
                           },
                       .forward_only = true});
    }
  }
  cases.push_back({.name = "amax_of_u8_rows",
                   .build =
                       [attrs_of](CaseInputs& in) {
                         std::vector<double> x(3 * 301);
                         for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * 37 % 251);
                         amax(in.values({3, 301}, x, DType::kU8), attrs_of({1}, false));
                       },
                   .forward_only = true});
  cases.push_back(
      {.name = "sum_of_nothing", .build = [attrs_of](CaseInputs& in) { sum(in.real({2, 0}), attrs_of({1}, false)); }, .expected = {0, 0}});
}

void add_argmax_and_topk(std::vector<OpCase>& cases) {
  const std::vector<double> scores{3, 7, 7, 1, -1, -5, -1, -2};
  const auto argmax_attrs = [](int64_t axis, bool keepdim) {
    ArgmaxAttrs attrs;
    attrs.axis = axis;
    attrs.keepdim = keepdim;
    return attrs;
  };
  // Among equal values the first one.
  cases.push_back({.name = "argmax_hand",
                   .build = [=](CaseInputs& in) { argmax(in.values({2, 4}, scores), argmax_attrs(-1, false)); },
                   .expected = {1, 0}});
  cases.push_back({.name = "argmax_rows",
                   .build = [=](CaseInputs& in) { argmax(in.values({2, 4}, scores), argmax_attrs(0, true)); },
                   .expected = {0, 0, 0, 0}});
  cases.push_back({.name = "argmax_channels",
                   .build = [=](CaseInputs& in) { argmax(in.real({2, 5, 3, 7}, {.distinct = true}), argmax_attrs(1, false)); }});
  // Ties, NaN (the first one), only -inf; lines that are not multiples of vectors, along and across memory.
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  std::vector<double> strange(6 * 37);
  for (size_t i = 0; i < strange.size(); ++i) strange[i] = static_cast<double>(i * i % 11);
  for (size_t i = 0; i < 37; ++i) strange[37 + i] = strange[4 * 37 + i] = -inf;
  for (const size_t i : {2 * 37 + 5, 2 * 37 + 30, 3 * 37 + 36, 5 * 37 + 0}) strange[i] = nan;
  std::vector<double> turned(strange.size());
  for (size_t i = 0; i < strange.size(); ++i) turned[i % 37 * 6 + i / 37] = strange[i];
  for (const bool across : {false, true}) {
    cases.push_back({.name = cat("argmax_strange_", across ? "across" : "along"), .build = [=](CaseInputs& in) {
                       argmax(in.values(across ? Shape{37, 6} : Shape{6, 37}, across ? turned : strange),
                              argmax_attrs(across ? 0 : 1, false));
                     }});
  }
  cases.push_back({.name = "argmax_classes", .build = [=](CaseInputs& in) { argmax(in.real({53, 1003}), argmax_attrs(-1, true)); }});
  cases.push_back({.name = "argmax_pixels", .build = [=](CaseInputs& in) { argmax(in.real({2, 21, 13, 37}), argmax_attrs(1, true)); }});
  const auto topk_attrs = [](int64_t k, int64_t axis) {
    TopkAttrs attrs;
    attrs.k = k;
    attrs.axis = axis;
    return attrs;
  };
  cases.push_back({.name = "topk_hand",
                   .build = [=](CaseInputs& in) { topk(in.values({2, 4}, scores), topk_attrs(3, -1)); },
                   .expected = {7, 7, 3, -1, -1, -2}});
  cases.push_back({.name = "topk_classes", .build = [=](CaseInputs& in) { topk(in.real({6, 11}, {.distinct = true}), topk_attrs(5, 1)); }});
  cases.push_back(
      {.name = "topk_middle", .build = [=](CaseInputs& in) { topk(in.real({3, 7, 4}, {.distinct = true}), topk_attrs(2, 1)); }});

  for (const bool across : {false, true}) {
    cases.push_back({.name = cat("topk_strange_", across ? "across" : "along"), .build = [=](CaseInputs& in) {
                       topk(in.values(across ? Shape{37, 6} : Shape{6, 37}, across ? turned : strange), topk_attrs(7, across ? 0 : 1));
                     }});
  }
  cases.push_back({.name = "topk_many", .build = [=](CaseInputs& in) { topk(in.real({23, 1003}), topk_attrs(5, -1)); }});
  std::vector<double> repeated;
  for (int i = 0; i < 2 * 401; ++i) repeated.push_back(i % 97 == 5 ? std::numeric_limits<double>::quiet_NaN() : i * 37 % 29 - 14);
  for (const int64_t axis : {0, 1}) {
    cases.push_back({.name = cat("topk_repeated_", axis), .build = [=](CaseInputs& in) {
                       topk(in.values(axis == 1 ? Shape{2, 401} : Shape{401, 2}, repeated), topk_attrs(150, axis));
                     }});
  }
  cases.push_back({.name = "topk_large", .build = [=](CaseInputs& in) { topk(in.real({5, 1003}), topk_attrs(300, -1)); }});
  cases.push_back({.name = "topk_all", .build = [=](CaseInputs& in) { topk(in.real({3, 128}), topk_attrs(128, -1)); }});
}

void add_sums_of_squares(std::vector<OpCase>& cases) {
  cases.push_back({.name = "sum_squares_hand",
                   .build =
                       [](CaseInputs& in) {
                         const Value x[] = {in.values({2}, {1, -2}), in.values({}, {3})};
                         sum_squares(x);
                       },
                   .expected = {14}});
  cases.push_back({.name = "sum_squares_many", .build = [](CaseInputs& in) {
                     const Value x[] = {in.real({2, 5, 3, 7}), in.real({13}), in.real({3, 4})};
                     sum_squares(x);
                   }});
  // Several pieces, of odd sizes; weights, whose gradients may be blocked.
  cases.push_back({.name = "sum_squares_large",
                   .build =
                       [](CaseInputs& in) {
                         const Value x[] = {in.real({7, 33, 13, 11}), in.weight({65, 3, 3, 3}), in.vector(20001), in.real({0, 3})};
                         sum_squares(x);
                       },
                   .forward_only = true});
  cases.push_back({.name = "sum_squares_not_a_number",
                   .build =
                       [](CaseInputs& in) {
                         const Value x[] = {in.values({3}, {1, std::numeric_limits<double>::quiet_NaN(), 2}), in.real({40})};
                         sum_squares(x);
                       },
                   .forward_only = true});
}

}  // namespace

std::vector<OpCase> reduce_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_reductions, add_argmax_and_topk, add_sums_of_squares}) add(cases);
  return cases;
}

}  // namespace galley::test
