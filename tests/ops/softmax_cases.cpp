// Cases of softmax and its logarithm.

#include <limits>

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
    for (const Line& l : std::vector<Line>{{"rows", {3, 10}, -1},
                                           {"channels", {2, 5, 3, 4}, 1},
                                           {"first", {4, 3}, 0},
                                           {"one", {3, 1}, 1},
                                           {"long", {2, 257}, 1},
                                           {"empty", {0, 5}, 1}}) {
      cases.push_back({.name = name + l.name, .build = [=](CaseInputs& in) {
                         SoftmaxAttrs a;
                         a.axis = l.axis;
                         apply(in.real(l.x, {.low = -3, .high = 3}), a);
                       }});
    }
    // Enough elements for several threads; lengths of lines and bundles that are not multiples of vectors.
    for (const Line& l : std::vector<Line>{
             {"classes", {41, 1003}, -1}, {"pixels", {2, 21, 13, 37}, 1}, {"middle", {3, 65, 131}, 1}, {"heads", {2, 3, 19, 77}, 3}}) {
      cases.push_back({.name = name + l.name, .build = [=](CaseInputs& in) {
                         SoftmaxAttrs a;
                         a.axis = l.axis;
                         const Value x = in.real(l.x, {.low = -30, .high = 30}), y = apply(x, a);
                         (logarithm ? log_softmax_backward : softmax_backward)(in.real(l.x), y, a);
                       }});
    }
    // NaN or inf make their line NaN; -inf has probability 0; lines of only -inf are NaN.
    const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    const std::vector<double> strange{1, nan, 2, 3, inf, 1, 1, -inf, 2, -inf, -inf, -inf};
    for (const bool rows : {true, false}) {
      cases.push_back({.name = cat(name, "strange_", rows ? "rows" : "columns"),
                       .build =
                           [=](CaseInputs& in) {
                             SoftmaxAttrs a;
                             a.axis = rows ? 1 : 0;
                             apply(in.values(rows ? Shape{4, 3} : Shape{3, 4}, strange), a);
                           },
                       .forward_only = true});
    }
    // exp(1000) overflows unless the maximum is subtracted first; a difference of log 3 gives 1/4 and 3/4.
    cases.push_back({.name = name + "hand",
                     .build = [=](CaseInputs& in) { apply(in.fixed(in.values({2}, {1000, 1000 + 1.0986122886681098})), {}); },
                     .expected = logarithm ? std::vector<double>{-1.3862943611, -0.2876820724} : std::vector<double>{0.25, 0.75},
                     .kernel_tolerance = 1e-4});  // the inputs are rounded to 2^-15 first
  }
  return cases;
}

}  // namespace galley::test
