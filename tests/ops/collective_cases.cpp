// Cases of collectives. Without other ranks, a sum is its own part; sums over ranks are in tests/train.

#include "libcore/ops/collective.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> collective_cases() {
  std::vector<OpCase> cases;
  cases.push_back({.name = "all_reduce_start_hand",
                   .build = [](CaseInputs& in) { all_reduce_start(in.values({3}, {1, -2, 3}), "x"); },
                   .expected = {1, -2, 3}});
  cases.push_back({.name = "all_reduce_wait_hand",
                   .build = [](CaseInputs& in) { all_reduce_wait(in.values({3}, {1, -2, 3}), "x"); },
                   .expected = {1, -2, 3}});
  cases.push_back({.name = "all_reduce_start_image", .build = [](CaseInputs& in) { all_reduce_start(in.real({2, 3, 5, 4}), "x"); }});
  cases.push_back({.name = "all_reduce_wait_image", .build = [](CaseInputs& in) { all_reduce_wait(in.real({2, 3, 5, 4}), "x"); }});
  cases.push_back(
      {.name = "all_reduce_start_many", .build = [](CaseInputs& in) { all_reduce_start(in.real({300001}), "x"); }, .forward_only = true});
  return cases;
}

}  // namespace galley::test
