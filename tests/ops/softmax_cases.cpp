// Cases of softmax and its logarithm.

#include "libcore/ops/softmax.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> softmax_cases() {
  std::vector<OpCase> cases;
  for (bool logarithm : {false, true}) {
    const std::string name = logarithm ? "log_softmax_" : "softmax_";
    const auto apply = logarithm ? log_softmax : softmax;
    struct Line {
      std::string name;
      Shape x;
      int64_t axis;
    };
    for (const Line& l : std::vector<Line>{{"rows", {3, 10}, -1}, {"channels", {2, 5, 3, 4}, 1}, {"first", {4, 3}, 0}, {"one", {3, 1}, 1}, {"long", {2, 257}, 1}, {"empty", {0, 5}, 1}}) {
      cases.push_back({.name = name + l.name, .build = [=](CaseInputs& in) {
                         SoftmaxAttrs a;
                         a.axis = l.axis;
                         apply(in.real(l.x, {.low = -3, .high = 3}), a);
                       }});
    }
    // exp(1000) overflows where the maximum is not taken off first; log 3 apart: 1/4 and 3/4.
    cases.push_back({.name = name + "hand", .build = [=](CaseInputs& in) { apply(in.fixed(in.values({2}, {1000, 1000 + 1.0986122886681098})), {}); },
                     .expected = logarithm ? std::vector<double>{-1.3862943611, -0.2876820724} : std::vector<double>{0.25, 0.75},
                     .kernel_tolerance = 1e-4});  // the inputs are rounded to 2^-15 first
  }
  return cases;
}

}  // namespace galley::test
