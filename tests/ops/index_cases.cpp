// Cases of gather, scatter_add, one_hot and iota.

#include "libcore/ops/index.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> index_cases() {
  std::vector<OpCase> cases;
  // x[i][index[i][j]] along axis 1; x[index[i][j]][j] along axis 0.
  cases.push_back({.name = "gather_hand",
                   .build =
                       [](CaseInputs& in) {
                         gather(in.values({2, 3}, {1, 2, 3, 4, 5, 6}), in.values({2, 4}, {2, 0, 0, 1, 1, 1, 2, 0}, DType::kI64), 1);
                       },
                   .expected = {3, 1, 1, 2, 5, 5, 6, 4}});
  cases.push_back(
      {.name = "gather_hand_axis_0",
       .build = [](CaseInputs& in) { gather(in.values({3, 2}, {1, 2, 3, 4, 5, 6}), in.values({1, 2}, {2, 0}, DType::kI32), 0); },
       .expected = {5, 2}});
  // Equal indices are added; positions without an index are 0.
  cases.push_back({.name = "scatter_add_hand",
                   .build =
                       [](CaseInputs& in) {
                         scatter_add(in.values({2, 3}, {1, 2, 3, 4, 5, 6}), in.values({2, 3}, {0, 2, 0, 3, 3, 3}, DType::kI64), 1, 4);
                       },
                   .expected = {4, 0, 2, 0, 0, 0, 0, 15}});
  struct Geometry {
    std::string name;
    Shape x;
    int64_t axis, size;
  };
  for (const Geometry& g : std::vector<Geometry>{{"vector", {7}, 0, 5},
                                                 {"first", {5, 3, 4}, 0, 9},
                                                 {"middle", {2, 6, 3, 2}, 1, 4},
                                                 {"last", {3, 2, 5}, -1, 8},
                                                 {"none", {3, 4}, 1, 0},
                                                 {"many", {61, 83}, 1, 257},
                                                 {"many_rows", {83, 61}, 0, 131},
                                                 {"rank_5", {2, 3, 2, 3, 2}, 2, 5}}) {
    const int axis = static_cast<int>(g.axis < 0 ? g.axis + g.x.rank() : g.axis);
    Shape picked = g.x;
    picked[axis] = g.size;
    cases.push_back(
        {.name = "gather_" + g.name, .build = [=](CaseInputs& in) { gather(in.real(g.x), in.integers(picked, 0, g.x[axis]), g.axis); }});
    cases.push_back({.name = "scatter_add_" + g.name, .build = [=](CaseInputs& in) {
                       const Value values = in.real(picked);
                       scatter_add(values, in.integers(picked, 0, g.x[axis]), g.axis, g.x[axis]);
                     }});
  }
  cases.push_back(
      {.name = "gather_integers", .build = [](CaseInputs& in) { gather(in.integers({4, 5}, -9, 9), in.integers({4, 3}, 0, 5), 1); }});
  cases.push_back({.name = "one_hot_hand",
                   .build = [](CaseInputs& in) { one_hot(in.values({3}, {1, 0, 2}, DType::kI64), 3); },
                   .expected = {0, 1, 0, 1, 0, 0, 0, 0, 1}});
  cases.push_back({.name = "one_hot_hand_channels",
                   .build = [](CaseInputs& in) { one_hot(in.values({1, 3}, {1, 0, 1}, DType::kI32), 2, 1, DType::kI64); },
                   .expected = {0, 1, 0, 1, 0, 1}});
  cases.push_back({.name = "one_hot_image", .build = [](CaseInputs& in) { one_hot(in.integers({3, 7, 11}, 0, 19), 19, 1); }});
  cases.push_back(
      {.name = "iota_hand", .build = [](CaseInputs& in) { iota(in.graph(), DType::kI64, {2, 3}, 1); }, .expected = {0, 1, 2, 0, 1, 2}});
  cases.push_back({.name = "iota_hand_axis_0",
                   .build = [](CaseInputs& in) { iota(in.graph(), DType::kF32, {2, 3}, 0); },
                   .expected = {0, 0, 0, 1, 1, 1}});
  return cases;
}

}  // namespace galley::test
