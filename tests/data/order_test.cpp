// The order of samples: permutations, epochs, slices, batches.
#include "libcore/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "libcore/base/error.h"

namespace galley {
namespace {

std::vector<int64_t> values_of(const Permutation& permutation, int64_t size) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(permutation(i));
  return values;
}

TEST(Permutation, IsABijection) {
  for (const int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097, 60000}) {
    std::vector<int64_t> values = values_of(Permutation(size, 1, "p", 0), size);
    std::sort(values.begin(), values.end());
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i) << size;
  }
}

TEST(Permutation, DependsOnSeedPurposeAndIndex) {
  const auto base = values_of(Permutation(100, 1, "p", 0), 100);
  EXPECT_EQ(base, values_of(Permutation(100, 1, "p", 0), 100));
  EXPECT_NE(base, values_of(Permutation(100, 2, "p", 0), 100));
  EXPECT_NE(base, values_of(Permutation(100, 1, "q", 0), 100));
  EXPECT_NE(base, values_of(Permutation(100, 1, "p", 1), 100));
}

TEST(Permutation, AllOrdersOfFiveAreEquallyLikely) {
  std::map<std::vector<int64_t>, int> seen;
  constexpr int kDraws = 24000;
  for (uint64_t i = 0; i < kDraws; ++i) ++seen[values_of(Permutation(5, 3, "uniform", i), 5)];
  ASSERT_EQ(seen.size(), 120u);
  double chi_square = 0;
  for (const auto& [order, count] : seen) chi_square += (count - 200.0) * (count - 200.0) / 200.0;
  // 119 degrees of freedom: mean 119, standard deviation 15.4; five of them above.
  EXPECT_FALSE(!(chi_square < 196)) << chi_square;
}

TEST(Permutation, NeighborsPartInLargeOnes) {
  constexpr int64_t kSize = 50000;
  const auto values = values_of(Permutation(kSize, 4, "far", 0), kSize);
  double sum = 0, product = 0;
  int close = 0;
  for (size_t i = 0; i < kSize; ++i) {
    const double a = static_cast<double>(values[i]) / kSize - 0.5, b = static_cast<double>(values[(i + 1) % kSize]) / kSize - 0.5;
    product += 12 * a * b;
    sum += 12 * a * (static_cast<double>(i) / kSize - 0.5);
    close += std::abs(values[i] - values[(i + 1) % kSize]) == 1;
  }
  // Correlations with the neighbor and with the position: standard error 1 / sqrt(50000) = 0.0045, five of them.
  EXPECT_NEAR(product / kSize, 0, 0.0224);
  EXPECT_NEAR(sum / kSize, 0, 0.0224);
  EXPECT_LT(close, 12);  // two are expected
}

OrderOptions order_options(int64_t batch, LastBatchRule last, bool shuffle) {
  OrderOptions options;
  options.batch = batch;
  options.last_batch = last;
  options.shuffle = shuffle;
  options.seed = 9;
  return options;
}

TEST(SampleOrder, EachEpochHoldsEachSampleOnce) {
  for (const bool shuffle : {false, true}) {
    const SampleOrder order(23, order_options(5, LastBatchRule::kWrap, shuffle));
    std::vector<std::vector<int64_t>> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> seen;
      for (int64_t i = 0; i < 23; ++i) {
        const auto place = order.at(epoch * 23 + i);
        EXPECT_EQ(place.epoch, epoch);
        seen.push_back(place.index);
      }
      epochs.push_back(seen);
      std::sort(seen.begin(), seen.end());
      for (int64_t i = 0; i < 23; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
    }
    EXPECT_EQ(epochs[0] != epochs[1], shuffle);
  }
}

TEST(SampleOrder, LastBatchRules) {
  const SampleOrder wrap(23, order_options(5, LastBatchRule::kWrap, false)), keep(23, order_options(5, LastBatchRule::kKeep, false)),
      drop(23, order_options(5, LastBatchRule::kDrop, false));
  EXPECT_EQ(wrap.epoch_samples(), 23);
  EXPECT_EQ(wrap.batch_samples(20), 5);
  EXPECT_EQ(wrap.at(24).index, 1);
  EXPECT_EQ(keep.batch_samples(20), 3);
  EXPECT_EQ(keep.batch_samples(23), 5);
  EXPECT_EQ(drop.epoch_samples(), 20);
  EXPECT_EQ(drop.at(20).epoch, 1);
  EXPECT_THROW(SampleOrder(3, order_options(5, LastBatchRule::kDrop, false)), Error);
}

TEST(SampleOrder, SlicesAreDisjointAndSeeded) {
  OrderOptions options = order_options(5, LastBatchRule::kKeep, true);
  options.slice_seed = 77;
  const auto members = [&](const char* text) {
    options.slice.parse(text);
    const SampleOrder order(1000, options);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < order.size(); ++i) seen.insert(order.at(i).index);
    EXPECT_EQ(static_cast<int64_t>(seen.size()), order.size());
    return seen;
  };
  const std::set<int64_t> first = members("0%..90%"), rest = members("90%..100%");
  EXPECT_EQ(first.size(), 900u);
  EXPECT_EQ(rest.size(), 100u);
  for (const int64_t index : rest) EXPECT_FALSE(first.contains(index));
  EXPECT_GT(*std::max_element(first.begin(), first.end()), 900);  // a permuted slice reaches everywhere
  options.slice_seed.reset();
  const std::set<int64_t> plain = members("10..13");
  EXPECT_EQ(plain, (std::set<int64_t>{10, 11, 12}));
}

TEST(SampleOrder, ReplacementsStayInTheSliceAndCoverIt) {
  OrderOptions options = order_options(5, LastBatchRule::kKeep, true);
  options.slice.parse("10..20");
  const SampleOrder order(100, options);
  EXPECT_EQ(order.instead_of(3, 0).index, order.at(3).index);
  std::set<int64_t> seen;
  for (int64_t tries = 0; tries < 10; ++tries) seen.insert(order.instead_of(3, tries).index);
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(*seen.begin(), 10);
  EXPECT_EQ(*seen.rbegin(), 19);
}

}  // namespace
}  // namespace galley
