// Cases of collectives. Without other ranks, a sum is its own part, and parts of others are zero; sums over ranks are in
// tests/runtime and tests/train.

#include "libcore/ops/collective.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> collective_cases() {
  std::vector<OpCase> cases;
  // Of tensor parallelism, whose collectives have gradients.
  const auto of_tensor = [] {
    CollectiveAttrs attrs;
    attrs.name = "x";
    attrs.tensor = true;
    return attrs;
  };
  cases.push_back({.name = "all_reduce_start_hand",
                   .build = [of_tensor](CaseInputs& in) { all_reduce_start(in.values({3}, {1, -2, 3}), of_tensor()); },
                   .expected = {1, -2, 3}});
  cases.push_back({.name = "all_reduce_wait_hand",
                   .build = [of_tensor](CaseInputs& in) { all_reduce_wait(in.values({3}, {1, -2, 3}), of_tensor()); },
                   .expected = {1, -2, 3}});
  const auto from_zero = [] {
    BroadcastAttrs attrs;
    attrs.name = "x";
    return attrs;
  };
  cases.push_back({.name = "broadcast_start", .build = [from_zero](CaseInputs& in) { broadcast_start(in.real({2, 3, 5}), from_zero()); }});
  cases.push_back({.name = "broadcast_wait", .build = [from_zero](CaseInputs& in) { broadcast_wait(in.real({2, 3, 5}), from_zero()); }});
  cases.push_back(
      {.name = "all_reduce_start_image", .build = [of_tensor](CaseInputs& in) { all_reduce_start(in.real({2, 3, 5, 4}), of_tensor()); }});
  cases.push_back(
      {.name = "all_reduce_wait_image", .build = [of_tensor](CaseInputs& in) { all_reduce_wait(in.real({2, 3, 5, 4}), of_tensor()); }});
  cases.push_back({.name = "all_reduce_start_many",
                   .build = [of_tensor](CaseInputs& in) { all_reduce_start(in.real({300001}), of_tensor()); },
                   .forward_only = true});
  const auto second_of_two = [] {
    SegmentAttrs attrs;
    attrs.name = "x";
    attrs.rank = 1;
    attrs.ranks = 2;
    attrs.tensor = true;
    return attrs;
  };
  cases.push_back({.name = "reduce_scatter_start_many",
                   .build = [second_of_two](CaseInputs& in) { reduce_scatter_start(in.real({300032}), second_of_two()); },
                   .forward_only = true});
  cases.push_back(
      {.name = "reduce_scatter_wait", .build = [second_of_two](CaseInputs& in) { reduce_scatter_wait(in.real({96}), second_of_two()); }});
  cases.push_back(
      {.name = "all_gather_start", .build = [second_of_two](CaseInputs& in) { all_gather_start(in.real({48}), second_of_two()); }});
  cases.push_back({.name = "all_gather_wait_many",
                   .build = [second_of_two](CaseInputs& in) { all_gather_wait(in.real({300032}), second_of_two()); },
                   .forward_only = true});
  cases.push_back(
      {.name = "reduce_scatter_start", .build = [second_of_two](CaseInputs& in) { reduce_scatter_start(in.real({32}), second_of_two()); }});
  cases.push_back(
      {.name = "all_gather_wait", .build = [second_of_two](CaseInputs& in) { all_gather_wait(in.real({32}), second_of_two()); }});
  cases.push_back({.name = "sum_gradient", .build = [](CaseInputs& in) { sum_gradient(in.real({2, 3, 5}), "x"); }});
  const auto sums_gradient = [second_of_two] {
    SegmentAttrs attrs = second_of_two();
    attrs.sums_gradient = true;
    return attrs;
  };
  cases.push_back({.name = "all_gather_start_sums_gradient",
                   .build = [sums_gradient](CaseInputs& in) { all_gather_start(in.real({16}), sums_gradient()); }});
  return cases;
}

}  // namespace galley::test
