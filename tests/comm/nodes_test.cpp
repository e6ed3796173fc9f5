// Ranks on several machines: shared memory inside each, messages between them.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/comm/ranks.h"

namespace galley {
namespace {

TEST(Nodes, GroupsLieOnMachines) {
  const auto levels = [](int stride, int size, int per_machine) {
    const auto found = levels_of({stride, size}, per_machine);
    return found ? std::pair(found->inside, found->between) : std::pair(0, 0);
  };
  EXPECT_EQ(levels(1, 8, 4), std::pair(4, 2));
  EXPECT_EQ(levels(2, 4, 4), std::pair(2, 2));  // every second rank
  EXPECT_EQ(levels(1, 2, 4), std::pair(2, 1));  // in a machine
  EXPECT_EQ(levels(4, 2, 4), std::pair(1, 2));  // one rank of each
  EXPECT_EQ(levels(1, 2, 3), std::pair(0, 0));  // the second group of six ranks is on two machines
  EXPECT_EQ(levels(1, 6, 4), std::pair(0, 0));
  EXPECT_EQ(levels(2, 2, 3), std::pair(0, 0));
  EXPECT_EQ(levels(1, 4, 0), std::pair(0, 0));
}

/// Between M machines of P ranks, a rank sends 2 (M-1)/M of its P-th part of an array, not 2 (N-1)/N of all of it. 16-bit sums are f32.
TEST(Nodes, SendOnlyBetweenMachines) {
  constexpr int64_t kCount = 4 * 16 * 50, kBytes = kCount * 4;
  const auto post = std::make_shared<TestMessages::Post>();
  auto all = node_communicators(4, 2, {}, post);
  const auto sent = [&](const std::function<void(Communicator&, float*)>& body) {
    post->bytes.clear();
    for (const std::string& error : as_ranks(all, [&](Communicator& comm) {
           std::vector<float> array(kCount);
           body(comm, array.data());
         }))
      EXPECT_EQ(error, "");
    for (int r = 1; r < 4; ++r) EXPECT_EQ(post->bytes[r], post->bytes[0]);
    return post->bytes[0];
  };
  EXPECT_EQ(sent([](Communicator& comm, float* x) { comm.all_reduce("sum", x, x, kCount, DType::kF32); }), 2 * kBytes / 4);
  EXPECT_EQ(sent([](Communicator& comm, float* x) { comm.all_reduce("sum", x, x, kCount, DType::kBF16); }), kBytes / 4 + kBytes / 8);
  EXPECT_EQ(sent([](Communicator& comm, float* x) { comm.all_gather("all", x + comm.rank() * kCount / 4, x, kCount, DType::kF32); }),
            kBytes / 4);
  EXPECT_EQ(sent([](Communicator& comm, float* x) {
              comm.all_gather("near", x + comm.rank() % 2 * kCount / 2, x, kCount, DType::kF32, {1, 2});
              comm.run({.kind = CollectiveKind::kAllReduce, .name = "near", .input = x, .output = x, .count = kCount, .group = {1, 2}});
            }),
            0);
  EXPECT_EQ(all[0]->traffic(CollectiveKind::kAllGather).bytes, kBytes * 3 / 4 + kBytes / 2);  // as on any transport
}

/// Of arrays that all ranks of a machine share, one copy is written, after all of them have stopped to read the one before.
TEST(Nodes, GatherOneCopyForEachMachine) {
  auto all = node_communicators(4, 2, {}, std::make_shared<TestMessages::Post>());  // no check, for which ranks meet
  for (const std::string& error : as_ranks(all, [](Communicator& comm) {
         EXPECT_EQ(comm.transport(), "shared memory and messages (test)");
         EXPECT_EQ(comm.sharing_memory(), 2);
         constexpr int64_t kCount = 4 * 16 * 40;
         const auto common = comm.allocate_common(kCount * 4);
         ASSERT_NE(common, nullptr);
         auto* whole = reinterpret_cast<int32_t*>(common.get());
         for (int32_t repeat = 0; repeat < 30; ++repeat) {
           std::vector<int32_t> own(kCount / 4, repeat * 10 + comm.rank());
           comm.all_gather("unit", own.data(), whole, kCount, DType::kI32);
           if (comm.rank() % 2 == repeat % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
           for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(whole[i], repeat * 10 + i / (kCount / 4));
         }
         comm.barrier("read");
         if (comm.rank() % 2 == 0) whole[7] = -comm.rank() - 1;
         comm.barrier("written");
         EXPECT_EQ(whole[7], -(comm.rank() / 2 * 2) - 1);  // of this machine
       }))
    EXPECT_EQ(error, "");
}

/// A rank that waits for other machines does its part for neighbors that wait for it.
TEST(Nodes, RanksWaitInDifferentOrders) {
  auto all = node_communicators(4, 2);
  for (const std::string& error : as_ranks(all, [](Communicator& comm) {
         for (int repeat = 0; repeat < 20; ++repeat) {
           float sum = 1;
           const Ticket near =
               comm.start({.kind = CollectiveKind::kAllReduce, .name = "near", .input = &sum, .output = &sum, .count = 1, .group = {1, 2}});
           if (comm.rank() % 2 == 0) comm.wait(near);
           float far = 1;
           comm.all_reduce("far", &far, &far, 1, DType::kF32);
           if (comm.rank() % 2 == 1) comm.wait(near);
           ASSERT_EQ(sum, 2);
           ASSERT_EQ(far, 4);
         }
       }))
    EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace galley
