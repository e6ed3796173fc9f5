// Groups: ranks of a mesh run collectives along both axes, by every transport.

#include "libcore/comm/group.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "libcore/comm/leaf_sums.h"
#include "libcore/comm/rank_scope.h"
#include "tests/comm/ranks.h"

namespace galley {
namespace {

TEST(Groups, OfAMeshHaveNeighborsInTensor) {
  EXPECT_EQ(tensor_group(5, 2), (std::vector<int>{4, 5}));
  EXPECT_EQ(data_group(5, 8, 2), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(tensor_group(2, 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(data_group(2, 6, 3), (std::vector<int>{2, 5}));
}

class Group : public testing::TestWithParam<Transport> {};

/// Numbers of a rank, exact in f32, so that sums do not depend on their order.
float number(int rank, int64_t i) { return static_cast<float>((rank + 1) * 100 + i % 37); }

/// Ranks 0 .. 5 as 2 x 3: along `tensor` 0-2 and 3-5, along `data` pairs three apart. Sums of both axes are under way at the same time.
TEST_P(Group, BothAxesComputeTheirOwnSums) {
  constexpr int kRanks = 6, kTensor = 3;
  auto communicators = communicators_of(GetParam(), kRanks, {.timeout_s = 60});
  const auto errors = as_ranks(communicators, [&](Communicator& world) {
    const std::vector<int> row = tensor_group(world.rank(), kTensor), column = data_group(world.rank(), kRanks, kTensor);
    GroupCommunicator tensor(world, row), data(world, column);
    ASSERT_EQ(tensor.rank(), world.rank() % kTensor);
    ASSERT_EQ(data.rank(), world.rank() / kTensor);
    for (const int64_t count : {1, 5, 100, 70000}) {
      std::vector<float> bucket, sum;
      for (int64_t i = 0; i < count; ++i) bucket.push_back(number(world.rank(), i));
      sum = bucket;
      const Ticket ahead = data.start(
          {.kind = CollectiveKind::kAllReduce, .name = "grads", .input = bucket.data(), .output = bucket.data(), .count = count});
      for (int again = 0; again < 2; ++again) {
        std::vector<float> own = sum;
        tensor.all_reduce("layer", own.data(), own.data(), count, DType::kF32);
        for (int64_t i = 0; i < count; ++i) {
          float expected = 0;
          for (const int r : row) expected += number(r, i);
          ASSERT_EQ(own[static_cast<size_t>(i)], expected) << i;
        }
      }
      data.wait(ahead);
      for (int64_t i = 0; i < count; ++i) {
        float expected = 0;
        for (const int r : column) expected += number(r, i);
        ASSERT_EQ(bucket[static_cast<size_t>(i)], expected) << i;
      }
      world.barrier("between");
    }
    constexpr int64_t kPart = 32;
    std::vector<float> all(kPart * kTensor, -1), part;
    for (int64_t i = 0; i < kPart; ++i) part.push_back(number(world.rank(), i));
    tensor.all_gather("parts", part.data(), all.data(), kPart * kTensor, DType::kF32);
    for (int r = 0; r < kTensor; ++r) {
      for (int64_t i = 0; i < kPart; ++i) ASSERT_EQ(all[static_cast<size_t>(r * kPart + i)], number(row[static_cast<size_t>(r)], i));
    }
    // In place, as the operators run it.
    tensor.reduce_scatter("ranges", all.data(), all.data() + tensor.rank() * kPart, kPart * kTensor, DType::kF32);
    for (int64_t i = 0; i < kPart; ++i)
      ASSERT_EQ(all[static_cast<size_t>(tensor.rank() * kPart + i)], kTensor * number(row[static_cast<size_t>(tensor.rank())], i));
    int64_t root = world.rank();
    tensor.broadcast("root", &root, 1, DType::kI64, 1);
    EXPECT_EQ(root, row[1]);
    data.barrier("end");
    int64_t largest = world.rank();
    data.all_reduce("largest", &largest, &largest, 1, DType::kI64, ReduceOp::kMax);
    EXPECT_EQ(largest, column.back());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Group, SumsLeavesInTheOrderOfOneRank) {
  // Of 8 leaves, three ranks have 2, 3 and 3: several partial sums each. Thirds, whose sums depend on their order.
  constexpr int kRanks = 6, kTensor = 2, kLeaves = 8;
  const auto leaf = [](int l, int64_t i) { return 1.0 / (3 + 7 * l + static_cast<double>(i)); };
  std::vector<std::vector<double>> leaves(kLeaves);
  std::vector<const double*> all;
  for (int l = 0; l < kLeaves; ++l) {
    for (int64_t i = 0; i < 50; ++i) leaves[static_cast<size_t>(l)].push_back(leaf(l, i));
    all.push_back(leaves[static_cast<size_t>(l)].data());
  }
  std::vector<double> expected(50);
  sum_leaves(nullptr, "sums", ReductionTree(kLeaves, 1), all, expected);
  auto communicators = communicators_of(GetParam(), kRanks, {.timeout_s = 60});
  const auto errors = as_ranks(communicators, [&](Communicator& world) {
    GroupCommunicator data(world, data_group(world.rank(), kRanks, kTensor));
    const ReductionTree tree(kLeaves, data.size());
    const LeafRange own = tree.owned(data.rank());
    std::vector<double> sums(50);
    sum_leaves(&data, "sums", tree, {all.data() + own.begin, static_cast<size_t>(own.end - own.begin)}, sums);
    EXPECT_EQ(sums, expected);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Group, SendsAsManyBytesAsAllRanksAlone) {
  auto communicators = communicators_of(GetParam(), 4, {.timeout_s = 60});
  const auto errors = as_ranks(communicators, [](Communicator& world) {
    GroupCommunicator pair(world, tensor_group(world.rank(), 2));
    std::vector<float> array(96, 1);
    pair.all_reduce("sum", array.data(), array.data(), 96, DType::kF32);
    // Half of it to the other, and the own half's sum.
    EXPECT_EQ(pair.traffic().bytes, 2 * 48 * 4);
    EXPECT_EQ(world.traffic(CollectiveKind::kSend).bytes, 2 * 48 * 4);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Group, AFailedRankEndsTheOthers) {
  auto communicators = communicators_of(GetParam(), 4, {.timeout_s = 60});
  const auto errors = as_ranks(communicators, [](Communicator& world) {
    GroupCommunicator pair(world, data_group(world.rank(), 4, 2));
    if (world.rank() == 3) throw std::runtime_error("broken");
    std::vector<float> array(64, 1);
    pair.all_reduce("sum", array.data(), array.data(), 64, DType::kF32);
    world.barrier("end");
  });
  EXPECT_EQ(errors[3], "broken");
  for (const int r : {0, 1, 2}) EXPECT_NE(errors[static_cast<size_t>(r)].find("broken"), std::string::npos) << r << errors[0];
}

/// A rank whose collective is not complete frees its arrays after an exception. AddressSanitizer sees others that read them later.
TEST_P(Group, ARankThatLeavesIsNotReadAnyMore) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    auto communicators = communicators_of(GetParam(), GetParam() == Transport::kNodes ? 4 : 3, {.timeout_s = 60});
    const auto errors = as_ranks(communicators, [](Communicator& world) {
      auto array = std::make_unique<std::vector<float>>(size_t{4096}, 1.0f);
      const RankScope scope(&world);
      const auto start = [&] {
        RankScope::current()->start({.kind = CollectiveKind::kAllReduce,
                                     .dtype = DType::kF32,
                                     .name = "sum",
                                     .input = array->data(),
                                     .output = array->data(),
                                     .count = 4096});
      };
      start();
      if (world.rank() == 2) throw std::runtime_error("broken");
      RankScope::current()->wait(array->data());
      world.barrier("end");
    });
    EXPECT_EQ(errors[2], "broken");
    for (const int r : {0, 1}) EXPECT_NE(errors[static_cast<size_t>(r)], "") << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Group,
                         testing::Values(Transport::kThreads, Transport::kShared, Transport::kMessages, Transport::kNodes),
                         [](const auto& of) { return transport_name(of.param); });

}  // namespace
}  // namespace galley
