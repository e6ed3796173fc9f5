// Laws: sums over eight logical replicas have the same bits for 1 to 8 ranks and any number of threads, and are those of the tree; a rank
// holds no more arrays than the order needs; another order has other bits.

#include "libcore/comm/leaf_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr int64_t kCount = 40'000;  // more than two grains: threads divide it

/// Values of different magnitudes, so that sums round.
std::vector<std::vector<float>> random_leaves(int leaves, int64_t count) {
  std::vector<std::vector<float>> all;
  uint64_t x = 0x9E3779B97F4A7C15ull;
  for (int v = 0; v < leaves; ++v) {
    std::vector<float> leaf;
    for (int64_t i = 0; i < count; ++i) {
      x = x * 6364136223846793005ull + 1442695040888963407ull;
      const double unit = static_cast<double>(x >> 11) / 9007199254740992.0 - 0.5;
      leaf.push_back(static_cast<float>(std::ldexp(unit, static_cast<int>(x >> 60))));
    }
    all.push_back(std::move(leaf));
  }
  return all;
}

/// By recursion, as the header of reduction_tree states.
float by_recursion(const std::vector<std::vector<float>>& leaves, size_t begin, size_t end, size_t i) {
  if (end - begin == 1) return leaves[begin][i];
  size_t first = 1;
  while (2 * first < end - begin) first *= 2;
  return by_recursion(leaves, begin, begin + first, i) + by_recursion(leaves, begin + first, end, i);
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<uint32_t> expected_bits(const std::vector<std::vector<float>>& leaves) {
  std::vector<float> sums;
  for (size_t i = 0; i < leaves.front().size(); ++i) sums.push_back(by_recursion(leaves, 0, leaves.size(), i));
  return bits_of(sums);
}

/// The sum over so many ranks, each of which adds its leaves one after the other. `most`: the largest number of arrays of a rank.
std::vector<float> over_ranks(const std::vector<std::vector<float>>& leaves, int ranks, size_t* most = nullptr) {
  const ReductionTree tree(static_cast<int>(leaves.size()), ranks);
  const auto count = static_cast<int64_t>(leaves.front().size());
  std::vector<LeafSums> sums;
  for (int r = 0; r < ranks; ++r) {
    sums.emplace_back(tree, r, count);
    const LeafRange own = tree.owned(r);
    for (int v = own.begin; v < own.end; ++v) sums.back().add(leaves[static_cast<size_t>(v)]);
    if (most != nullptr) *most = std::max(*most, sums.back().arrays());
  }
  std::vector<const void*> parts;
  for (const LeafSums& of_rank : sums) {
    for (const void* part : of_rank.partials()) parts.push_back(part);
  }
  std::vector<float> result(leaves.front().size());
  tree.reduce(parts, result.data(), count, DType::kF32, ReduceOp::kSum);
  return result;
}

TEST(LeafSums, BitsDependNeitherOnRanksNorOnThreads) {
  const std::vector<std::vector<float>> leaves = random_leaves(8, kCount);
  const std::vector<uint32_t> expected = expected_bits(leaves);
  const int before = compute_threads();
  for (const int threads : {1, 2, 3, 5}) {
    set_compute_threads(threads);
    std::vector<const float*> pointers;
    for (const std::vector<float>& leaf : leaves) pointers.push_back(leaf.data());
    std::vector<float> whole(kCount);
    tree_sum(pointers, whole.data(), kCount);
    EXPECT_EQ(bits_of(whole), expected) << threads << " threads";
    for (int ranks = 1; ranks <= 8; ++ranks) EXPECT_EQ(bits_of(over_ranks(leaves, ranks)), expected) << ranks << " ranks, " << threads;
  }
  set_compute_threads(before);
}

TEST(LeafSums, AnyNumberOfLeaves) {
  for (int number = 1; number <= 17; ++number) {
    const std::vector<std::vector<float>> leaves = random_leaves(number, 50);
    const std::vector<uint32_t> expected = expected_bits(leaves);
    for (int ranks = 1; ranks <= number; ++ranks) EXPECT_EQ(bits_of(over_ranks(leaves, ranks)), expected) << number << ' ' << ranks;
  }
}

TEST(LeafSums, ASumFromLeftToRightHasOtherBits) {  // the negative control
  const std::vector<std::vector<float>> leaves = random_leaves(8, 1000);
  std::vector<float> sum = leaves[0];
  for (size_t v = 1; v < leaves.size(); ++v) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += leaves[v][i];
  }
  EXPECT_NE(bits_of(sum), expected_bits(leaves));
}

TEST(LeafSums, HoldsAsFewArraysAsTheOrderNeeds) {
  const std::vector<std::vector<float>> leaves = random_leaves(8, 16);
  for (const auto& [ranks, arrays] :
       {std::pair(1, 3), std::pair(2, 2), std::pair(3, 2), std::pair(4, 1), std::pair(5, 2), std::pair(8, 1)}) {
    size_t most = 0;
    over_ranks(leaves, ranks, &most);
    EXPECT_EQ(most, static_cast<size_t>(arrays)) << ranks << " ranks";
  }
}

TEST(LeafSums, LeavesInPartsGoToThePlaceOfTheCaller) {
  const std::vector<std::vector<float>> leaves = random_leaves(8, 40);
  for (const int ranks : {1, 3}) {
    const ReductionTree tree(8, ranks);
    std::vector<float> sums(static_cast<size_t>(tree.partials(0).size()) * 100, 0.0f);
    LeafSums parts(tree, 0, 100, sums.data()), whole(tree, 0, 40);
    for (int v = 0; v < tree.owned(0).end; ++v) {
      const std::span<const float> leaf = leaves[static_cast<size_t>(v)];
      const std::vector<LeafSums::Part> two{{.at = 64, .values = leaf.subspan(30)}, {.at = 0, .values = leaf.first(30)}};
      parts.add(two);
      whole.add(leaf);
    }
    ASSERT_EQ(parts.partials().size(), whole.partials().size());
    for (size_t p = 0; p < whole.partials().size(); ++p) {
      const auto *found = static_cast<const float*>(parts.partials()[p]), *expected = static_cast<const float*>(whole.partials()[p]);
      EXPECT_EQ(found, sums.data() + 100 * p);
      for (size_t i = 0; i < 100; ++i) {
        const float right = i < 30 ? expected[i] : i >= 64 && i < 74 ? expected[i - 34] : 0.0f;
        EXPECT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(right)) << ranks << " " << p << " " << i;
      }
    }
  }
}

TEST(LeafSums, CanBeUsedAgain) {
  const std::vector<std::vector<float>> leaves = random_leaves(8, 100);
  const ReductionTree tree(8, 1);
  LeafSums sums(tree, 0, 100);
  for (const int step : {1, 2, 3}) {
    for (const std::vector<float>& leaf : leaves) sums.add(leaf);
    EXPECT_EQ(sums.missing(), 0);
    const auto* first = static_cast<const float*>(sums.partials().front());
    EXPECT_EQ(bits_of(std::vector<float>(first, first + 100)), expected_bits(leaves)) << step;
    sums.clear();
    EXPECT_EQ(sums.missing(), 8);
  }
  EXPECT_EQ(sums.arrays(), 3u);
  EXPECT_THROW(sums.partials(), InternalError);
}

}  // namespace
}  // namespace galley
