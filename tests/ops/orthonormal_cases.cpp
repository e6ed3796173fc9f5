// Cases of orthonormal_columns.

#include "libcore/ops/orthonormal.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> orthonormal_cases() {
  std::vector<OpCase> cases;
  cases.push_back({.name = "orthonormal_columns_hand",
                   .build = [](CaseInputs& in) { orthonormal_columns(in.values({2, 2}, {3, 1, 4, 2})); },
                   .expected = {0.6, -0.8, 0.8, 0.6}});
  // The second column is twice the first one, the third one zero.
  cases.push_back({.name = "orthonormal_columns_dependent",
                   .build = [](CaseInputs& in) { orthonormal_columns(in.values({2, 4}, {0, 0, 0, 1, 2, 4, 0, 1})); },
                   .expected = {0, 0, 0, 1, 1, 0, 0, 0}});
  cases.push_back({.name = "orthonormal_columns_tall", .build = [](CaseInputs& in) { orthonormal_columns(in.real({301, 4})); }});
  cases.push_back({.name = "orthonormal_columns_one", .build = [](CaseInputs& in) { orthonormal_columns(in.real({7, 1})); }});
  cases.push_back({.name = "orthonormal_columns_wide", .build = [](CaseInputs& in) { orthonormal_columns(in.real({67, 33})); }});
  return cases;
}

}  // namespace galley::test
