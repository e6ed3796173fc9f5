// The order in which arrays are added, and their division among ranks.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "libcore/comm/communicator.h"
#include "tests/comm/tree_sums.h"

namespace galley {
namespace {

TEST(ReductionTree, DividesLeavesAmongRanks) {
  const ReductionTree tree(8, 3);
  EXPECT_EQ(tree.owned(0), (LeafRange{0, 2}));
  EXPECT_EQ(tree.owned(1), (LeafRange{2, 5}));
  EXPECT_EQ(tree.owned(2), (LeafRange{5, 8}));
  const auto partials = [&](int rank) { return std::vector<LeafRange>(tree.partials(rank).begin(), tree.partials(rank).end()); };
  EXPECT_EQ(partials(0), (std::vector<LeafRange>{{0, 2}}));
  EXPECT_EQ(partials(1), (std::vector<LeafRange>{{2, 4}, {4, 5}}));
  EXPECT_EQ(partials(2), (std::vector<LeafRange>{{5, 6}, {6, 8}}));
  EXPECT_EQ(tree.most_partials(), 2);
  for (const int ranks : {1, 2, 4, 8}) EXPECT_EQ(ReductionTree(8, ranks).most_partials(), 1) << ranks;
}

TEST(ReductionTree, SumsHaveTheSameBitsForAnyNumberOfRanks) {
  constexpr int64_t kCount = 1531;  // blocks and a remainder
  for (const int leaves : {1, 2, 3, 5, 6, 7, 8, 13, 16}) {
    for (int ranks = 1; ranks <= std::min(leaves, 7); ++ranks) {
      const ReductionTree tree(leaves, ranks);
      std::vector<std::vector<float>> contributions;
      std::vector<const void*> parts;
      for (int r = 0; r < ranks; ++r) {
        contributions.push_back(partials_of(tree, r, kCount));
        for (size_t p = 0; p < tree.partials(r).size(); ++p) parts.push_back(contributions.back().data() + p * kCount);
      }
      std::vector<float> result(kCount);
      tree.reduce(parts, result.data(), kCount, DType::kF32, ReduceOp::kSum);
      for (int64_t i = 0; i < kCount; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(result[static_cast<size_t>(i)]), std::bit_cast<uint32_t>(sum_by_recursion(0, leaves, i)))
            << leaves << " " << ranks;
    }
  }
}

TEST(ReductionTree, ARingHasOtherBits) {  // the negative control: with another order the comparison above would fail
  int different = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    float sum = sample(0, i);
    for (int leaf = 1; leaf < 5; ++leaf) sum += sample(leaf, i);
    different += sum != sum_by_recursion(0, 5, i);
  }
  EXPECT_GT(different, 100);
}

template <class T>
void expect_sums(DType dtype, T (*make)(double), double (*value)(T), double tolerance) {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = 700;
  std::vector<std::vector<T>> inputs(kRanks);
  std::vector<const void*> parts;
  for (int r = 0; r < kRanks; ++r) {
    for (int64_t i = 0; i < kCount; ++i) inputs[static_cast<size_t>(r)].push_back(make((i % 50 - 20) * (r + 1)));
    parts.push_back(inputs[static_cast<size_t>(r)].data());
  }
  const ReductionTree tree(kRanks, kRanks);
  std::vector<T> sum(kCount), most(kCount);
  tree.reduce(parts, sum.data(), kCount, dtype, ReduceOp::kSum);
  tree.reduce(parts, most.data(), kCount, dtype, ReduceOp::kMax);
  for (int64_t i = 0; i < kCount; ++i) {
    const double base = static_cast<double>(i % 50 - 20);
    EXPECT_NEAR(value(sum[static_cast<size_t>(i)]), base * 6, std::abs(base * 6) * tolerance) << dtype;
    EXPECT_EQ(value(most[static_cast<size_t>(i)]), std::max(base, base * 3)) << dtype;
  }
}

TEST(ReductionTree, ReducesEveryType) {
  expect_sums<float>(DType::kF32, [](double x) { return static_cast<float>(x); }, [](float x) { return static_cast<double>(x); }, 0);
  expect_sums<double>(DType::kF64, [](double x) { return x; }, [](double x) { return x; }, 0);
  expect_sums<int64_t>(DType::kI64, [](double x) { return static_cast<int64_t>(x); }, [](int64_t x) { return static_cast<double>(x); }, 0);
  expect_sums<int32_t>(DType::kI32, [](double x) { return static_cast<int32_t>(x); }, [](int32_t x) { return static_cast<double>(x); }, 0);
  // Operands are exact; the sum is rounded once, to 8 and 11 bits.
  expect_sums<uint16_t>(
      DType::kBF16, [](double x) { return bf16_from_float(static_cast<float>(x)); }, [](uint16_t x) { return double{float_from_bf16(x)}; },
      1.0 / 256);
  expect_sums<uint16_t>(
      DType::kF16, [](double x) { return f16_from_float(static_cast<float>(x)); }, [](uint16_t x) { return double{float_from_f16(x)}; },
      1.0 / 2048);
}

TEST(ReductionTree, TheMaximumKeepsNaN) {
  const float nan = std::nanf("");
  const std::vector<float> a{1, nan, 3}, b{2, 1, nan};
  std::vector<float> most(3);
  const std::vector<const void*> parts{a.data(), b.data()};
  ReductionTree(2, 2).reduce(parts, most.data(), 3, DType::kF32, ReduceOp::kMax);
  EXPECT_EQ(most[0], 2);
  EXPECT_TRUE(std::isnan(most[1]) && std::isnan(most[2]));
}

TEST(Segments, CoverTheArrayAtMultiplesOf16) {
  for (const int64_t count : {0, 1, 15, 16, 17, 100, 1000, 4097}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      int64_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const Segment segment = segment_of(count, ranks, r);
        EXPECT_EQ(segment.begin, at);
        EXPECT_TRUE(segment.size() == 0 || segment.begin % 16 == 0);
        at = segment.end;
      }
      EXPECT_EQ(at, count);
    }
  }
}

}  // namespace
}  // namespace galley
