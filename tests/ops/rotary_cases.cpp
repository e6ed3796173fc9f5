// Cases of rotary position embeddings and of root mean square normalization.

#include <cmath>
#include <numbers>

#include "libcore/ops/rms_norm.h"
#include "libcore/ops/rotary.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct Turn {
  std::string name;
  Shape x;
  int64_t positions, dims;
  RotaryLayout layout;
  int64_t heads = 0;
  bool inverse = false;
  std::vector<double> position = {};
};

void add_rotary(std::vector<OpCase>& cases) {
  // A quarter turn at position 1: (1, 2) becomes (-2, 1); position 0 stays.
  for (const RotaryLayout layout : {RotaryLayout::kHalves, RotaryLayout::kInterleaved}) {
    const bool halves = layout == RotaryLayout::kHalves;
    cases.push_back({.name = halves ? "rotary_hand_halves" : "rotary_hand_interleaved",
                     .build =
                         [=](CaseInputs& in) {
                           RotaryAttrs attrs;
                           attrs.layout = layout;
                           // Two positions of two pairs; the second pair does not turn.
                           const Value table = in.fixed(in.values({2, 4}, {1, 1, 0, 0, 0, 1, 1, 0}, DType::kF32));
                           rotary(in.values({1, 2, 1, 4}, {1, 2, 3, 4, 1, 2, 3, 4}), table, {}, attrs);
                         },
                     .expected = halves ? std::vector<double>{1, 2, 3, 4, -3, 2, 1, 4} : std::vector<double>{1, 2, 3, 4, -2, 1, 3, 4}});
  }
  using enum RotaryLayout;
  for (const Turn& t : std::vector<Turn>{{"halves", {2, 3, 2, 6}, 3, 6, kHalves},
                                         {"interleaved", {2, 3, 2, 6}, 5, 6, kInterleaved},
                                         {"part_of_a_head", {2, 3, 2, 7}, 3, 4, kHalves},
                                         {"part_interleaved", {2, 3, 2, 7}, 3, 4, kInterleaved, 0, true},
                                         {"some_heads", {2, 3, 6, 4}, 3, 4, kHalves, 4},
                                         {"vectors_and_a_half", {1, 5, 3, 80}, 5, 76, kHalves, 2, true},
                                         {"positions", {3, 2, 2, 4}, 9, 4, kHalves, 0, false, {7, 0, 3}},
                                         {"nothing", {0, 2, 2, 4}, 9, 4, kHalves}}) {
    cases.push_back({.name = "rotary_" + t.name,
                     .build =
                         [=](CaseInputs& in) {
                           RotaryAttrs attrs;
                           attrs.layout = t.layout;
                           attrs.heads = t.heads;
                           attrs.inverse = t.inverse;
                           const Value x = in.real(t.x), table = in.fixed(in.f32({t.positions, t.dims}));
                           rotary(x, table, t.position.empty() ? Value() : in.values({t.x[0]}, t.position, DType::kI64), attrs);
                         },
                     .low_precision = true});
  }
  // Quarter turns, and 1/7 of one; the angle of position 5000 in double.
  cases.push_back({.name = "rotary_table_hand",
                   .build =
                       [](CaseInputs& in) {
                         RotaryTableAttrs attrs;
                         attrs.positions = 3;
                         attrs.frequencies = {std::numbers::pi / 2};
                         attrs.factor = 2;
                         rotary_table(in.graph(), attrs);
                       },
                   .expected = {2, 0, 0, 2, -2, 0}});
  // The same rows, of positions that are given: 2, 0, 1 and 5.
  cases.push_back({.name = "rotary_table_positions",
                   .build =
                       [](CaseInputs& in) {
                         RotaryTableAttrs attrs;
                         attrs.frequencies = {std::numbers::pi / 2};
                         attrs.factor = 2;
                         rotary_table(in.values({2, 2}, {2, 0, 1, 5}, DType::kI64), attrs);
                       },
                   .expected = {-2, 0, 2, 0, 0, 2, 0, 2}});
  // Sequences of 4 and of 8 tokens, where the base grows beyond 4: the second frequency of the longer one is divided by 2 * 8 / 4 - 1.
  cases.push_back({.name = "rotary_table_lengths",
                   .build =
                       [](CaseInputs& in) {
                         RotaryTableAttrs attrs;
                         attrs.frequencies = {std::numbers::pi / 2, 3 * std::numbers::pi / 2};
                         attrs.limit = 4;
                         attrs.growth = 2;
                         const Value position = in.values({2, 2}, {0, 1, 0, 1}, DType::kI64);
                         rotary_table(position, attrs, in.values({2}, {4, 8}, DType::kI64));
                       },
                   .expected = {1, 1, 0, 0, 0, 0, 1, -1, 1, 1, 0, 0, 0, 0, 1, 1}});
  cases.push_back({.name = "rotary_table_far", .build = [](CaseInputs& in) {
                     RotaryTableAttrs attrs;
                     attrs.positions = 5001;
                     attrs.frequencies = rotary_frequencies(8);
                     rotary_table(in.graph(), attrs);
                   }});
}

void add_rms_norm(std::vector<OpCase>& cases) {
  // 3 and 4: the mean of squares is 12.5.
  cases.push_back({.name = "rms_norm_hand",
                   .build =
                       [](CaseInputs& in) {
                         RmsNormAttrs attrs;
                         attrs.eps = 0;
                         attrs.offset = 1;
                         rms_norm(in.values({1, 2}, {3, 4}), in.values({2}, {0, 1}), attrs);
                       },
                   .expected = {3 / std::sqrt(12.5), 8 / std::sqrt(12.5)},
                   .differentiable_outputs = 1});
  struct Norm {
    std::string name;
    Shape x;
    bool weight = true, large = false;
    double offset = 0;
  };
  for (const Norm& n : std::vector<Norm>{{"rows", {5, 7}},
                                         {"heads", {2, 3, 2, 8}, true, false, 1},
                                         {"no_weight", {4, 9}, false},
                                         {"vector", {11}},
                                         {"vectors_and_a_half", {3, 2, 41}},
                                         {"blocks", {130, 300}, true, true},
                                         {"packs", {7, 264}, true, false, 1},
                                         {"nothing", {0, 4}}}) {
    cases.push_back({.name = "rms_norm_" + n.name,
                     .build =
                         [=](CaseInputs& in) {
                           RmsNormAttrs attrs;
                           attrs.eps = 1e-3;
                           attrs.offset = n.offset;
                           const Value x = in.real(n.x);
                           rms_norm(x, n.weight ? in.vector(n.x[-1]) : Value(), attrs);
                         },
                     .differentiable_outputs = 1,
                     .large = n.large,
                     .low_precision = true});
  }
}

}  // namespace

std::vector<OpCase> rotary_cases() {
  std::vector<OpCase> cases;
  add_rotary(cases);
  add_rms_norm(cases);
  return cases;
}

}  // namespace galley::test
