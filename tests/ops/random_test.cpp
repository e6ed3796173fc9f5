// Laws of random masks: the share of dropped elements, independence of the division of a batch, dependence on each part of the key.

#include "libcore/ops/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

/// Dropout or stochastic depth of ones [samples, elements]; the first sample has the global index `first`.
RefArray masked_ones(int64_t samples, int64_t elements, int64_t step, int64_t first, double p, int64_t stream = 11, bool rows = false) {
  Graph graph;
  TensorType type;
  type.shape = Shape{samples, elements};
  TensorType key;
  key.dtype = DType::kI64;
  key.shape = Shape{3};
  const Value x = graph.add_input("x", type, ValueRole::kInput), rng = graph.add_input("rng", key, ValueRole::kInput);
  Value y;
  if (rows) {
    StochasticDepthAttrs attrs;
    attrs.p = p;
    attrs.stream = stream;
    y = stochastic_depth(x, rng, attrs);
  } else {
    DropoutAttrs attrs;
    attrs.p = p;
    attrs.stream = stream;
    y = dropout(x, rng, attrs);
  }
  RefArray ones{{samples, elements}, std::vector<double>(static_cast<size_t>(samples * elements), 1)};
  RefArray seed{{3}, {5, static_cast<double>(step), static_cast<double>(first)}};
  return interpret(graph, {{"x", ones}, {"rng", seed}}).at(y.id());
}

int64_t zeros(const RefArray& array) { return std::count(array.v.begin(), array.v.end(), 0.0); }

TEST(RandomMask, DropsTheShareAndScalesTheRest) {
  const double p = 0.3;
  const RefArray y = masked_ones(100, 200, 1, 0, p);
  // Four standard deviations of a binomial of 20000.
  EXPECT_NEAR(static_cast<double>(zeros(y)), 20000 * p, 4 * std::sqrt(20000 * p * (1 - p)));
  for (double value : y.v) EXPECT_TRUE(value == 0 || value == 1 / (1 - p)) << value;
  const RefArray rows = masked_ones(2000, 2, 1, 0, p, 11, true);
  EXPECT_NEAR(static_cast<double>(zeros(rows)) / 2, 2000 * p, 4 * std::sqrt(2000 * p * (1 - p)));
  for (int64_t i = 0; i < 2000; ++i) EXPECT_EQ(rows[2 * i], rows[2 * i + 1]) << "a sample is dropped whole";
}

TEST(RandomMask, MicroBatchesDrawWhatTheWholeBatchDraws) {
  for (bool rows : {false, true}) {
    const RefArray whole = masked_ones(8, 13, 3, 100, 0.5, 11, rows), half = masked_ones(4, 13, 3, 104, 0.5, 11, rows);
    EXPECT_TRUE(std::equal(half.v.begin(), half.v.end(), whole.v.begin() + 4 * 13));
  }
}

TEST(RandomMask, StepStreamAndSampleAllMatter) {
  const RefArray base = masked_ones(4, 64, 3, 100, 0.5);
  EXPECT_NE(base.v, masked_ones(4, 64, 4, 100, 0.5).v);
  EXPECT_NE(base.v, masked_ones(4, 64, 3, 101, 0.5).v);
  EXPECT_NE(base.v, masked_ones(4, 64, 3, 100, 0.5, 12).v);
  EXPECT_EQ(base.v, masked_ones(4, 64, 3, 100, 0.5).v);
  EXPECT_NE(mask_bits(1, 0, 0, 0, 0), mask_bits(0, 1, 0, 0, 0));
}

}  // namespace
}  // namespace galley
