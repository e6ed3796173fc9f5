// Cases of dropout and stochastic depth. The masks' laws (share of drops, same draws for split batches) are in random_test.cpp.

#include "libcore/ops/random.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> random_cases() {
  const auto rng = [](CaseInputs& in) { return in.values({3}, {7, 3, 100}, DType::kI64); };
  const auto dropout_attrs = [](double p) {
    DropoutAttrs attrs;
    attrs.p = p;
    attrs.stream = 123456789;
    return attrs;
  };
  const auto depth_attrs = [](double p, StochasticDepthMode mode) {
    StochasticDepthAttrs attrs;
    attrs.p = p;
    attrs.mode = mode;
    attrs.stream = -5;
    return attrs;
  };
  std::vector<OpCase> cases;
  cases.push_back({.name = "dropout_none", .build = [=](CaseInputs& in) { dropout(in.values({2, 2}, {1, 2, 3, 4}), rng(in), dropout_attrs(0)); }, .expected = {1, 2, 3, 4}});
  cases.push_back({.name = "dropout_all", .build = [=](CaseInputs& in) { dropout(in.values({2, 2}, {1, 2, 3, 4}), rng(in), dropout_attrs(1)); }, .expected = {0, 0, 0, 0}});
  cases.push_back({.name = "dropout_features", .build = [=](CaseInputs& in) { dropout(in.real({6, 13}), rng(in), dropout_attrs(0.3)); }});
  cases.push_back({.name = "dropout_image", .build = [=](CaseInputs& in) { dropout(in.real({2, 5, 3, 7}), rng(in), dropout_attrs(0.5)); }});
  cases.push_back({.name = "stochastic_depth_none", .build = [=](CaseInputs& in) {
                     stochastic_depth(in.values({2, 2}, {1, 2, 3, 4}), rng(in), depth_attrs(0, StochasticDepthMode::kRow));
                   }, .expected = {1, 2, 3, 4}});
  cases.push_back({.name = "stochastic_depth_row", .build = [=](CaseInputs& in) {
                     stochastic_depth(in.real({7, 5, 3, 2}), rng(in), depth_attrs(0.4, StochasticDepthMode::kRow));
                   }});
  cases.push_back({.name = "stochastic_depth_batch", .build = [=](CaseInputs& in) {
                     stochastic_depth(in.real({3, 5}), rng(in), depth_attrs(0.4, StochasticDepthMode::kBatch));
                   }});
  return cases;
}

}  // namespace galley::test
