// Laws: replicas of one rank or of several sum to the tree over all of them, whatever threads and ranks; what is gathered reaches each
// replica; at most `running` members compute at a time; a member that fails ends the waiting of the others.

#include "libcore/comm/replica_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/comm/local.h"
#include "tests/support/as_ranks.h"

namespace galley {
namespace {

constexpr int kReplicas = 8;
constexpr size_t kGroupCount = 33;

double value_of(int replica, size_t i, int call) { return 1.0 / (3 * replica + static_cast<int>(i) + 7 * call + 1); }

/// As reduction_tree.h defines it.
double summed_by_recursion(int begin, int end, size_t i, int call) {
  if (end - begin == 1) return value_of(begin, i, call);
  int first = 1;
  while (2 * first < end - begin) first *= 2;
  return summed_by_recursion(begin, begin + first, i, call) + summed_by_recursion(begin + first, end, i, call);
}

/// Each rank's replicas add two arrays, one after the other. Returns the number of wrong results.
int wrong_sums(int ranks, int running, int* most_running) {
  const ReductionTree tree(kReplicas, ranks);
  auto communicators = local_communicators(ranks, {.timeout_s = 60});
  std::atomic<int> wrong = 0, now = 0, most = 0;
  const auto errors = as_ranks(communicators, [&](Communicator& rank) {
    const LeafRange own = tree.owned(rank.rank());
    ReplicaGroup group(ranks > 1 ? &rank : nullptr, tree, own.end - own.begin, running);
    std::vector<std::thread> members;
    for (int replica = own.begin; replica < own.end; ++replica) {
      members.emplace_back([&, replica] {
        ReplicaGroup::Member member(group, replica - own.begin);
        for (const int call : {0, 1}) {
          const int together = ++now;
          for (int seen = most; together > seen && !most.compare_exchange_weak(seen, together);) continue;
          std::vector<double> values;
          for (size_t i = 0; i < kGroupCount; ++i) values.push_back(value_of(replica, i, call));
          std::this_thread::yield();
          --now;
          RankScope* scope = RankScope::current();
          scope->start({.kind = CollectiveKind::kAllReduce,
                        .dtype = DType::kF64,
                        .name = "bn",
                        .input = values.data(),
                        .output = values.data(),
                        .count = kGroupCount});
          scope->wait(values.data());
          for (size_t i = 0; i < kGroupCount; ++i)
            wrong += std::bit_cast<uint64_t>(values[i]) != std::bit_cast<uint64_t>(summed_by_recursion(0, kReplicas, i, call));
        }
      });
    }
    for (std::thread& member : members) member.join();
  });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks)));
  if (most_running != nullptr) *most_running = most;
  return wrong;
}

TEST(ReplicaGroup, SumsInTheOrderOfTheTree) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const int running : {1, 2, 8}) EXPECT_EQ(wrong_sums(ranks, running, nullptr), 0) << ranks << " ranks, " << running << " running";
  }
}

TEST(ReplicaGroup, SoManyMembersRunAtATime) {
  for (const int running : {1, 2}) {
    int most = 0;
    wrong_sums(1, running, &most);
    EXPECT_LE(most, running);
  }
}

TEST(ReplicaGroup, GathersForEachMember) {
  constexpr int kRanks = 3;
  constexpr int64_t kPart = 16;
  const ReductionTree tree(kReplicas, kRanks);
  auto communicators = local_communicators(kRanks, {.timeout_s = 60});
  std::atomic<int> wrong = 0;
  const auto errors = as_ranks(communicators, [&](Communicator& rank) {
    const int r = rank.rank();
    ReplicaGroup group(&rank, tree, 2, 2);
    std::vector<std::thread> members;
    for (const int index : {0, 1}) {
      members.emplace_back([&, index] {
        ReplicaGroup::Member member(group, index);
        std::vector<float> whole(kPart * kRanks, -1);
        for (int64_t i = 0; i < kPart; ++i) whole[static_cast<size_t>(r * kPart + i)] = static_cast<float>(100 * r + i);
        member.start({.kind = CollectiveKind::kAllGather,
                      .name = "unit",
                      .input = whole.data() + r * kPart,
                      .output = whole.data(),
                      .count = kPart * kRanks});
        member.wait(whole.data());
        for (int64_t i = 0; i < kPart * kRanks; ++i)
          wrong += whole[static_cast<size_t>(i)] != static_cast<float>(100 * (i / kPart) + i % kPart);
      });
    }
    for (std::thread& each : members) each.join();
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  EXPECT_EQ(wrong, 0);
}

TEST(ReplicaGroup, AFailureEndsTheWaiting) {
  const ReductionTree tree(2, 1);
  ReplicaGroup group(nullptr, tree, 2, 1);
  std::string message;
  std::thread waiting([&] {
    try {
      ReplicaGroup::Member member(group, 0);
      double value = 1;
      member.start({.kind = CollectiveKind::kAllReduce, .dtype = DType::kF64, .name = "bn", .input = &value, .output = &value, .count = 1});
      member.wait(&value);
    } catch (const Error& error) {
      message = error.message();
    }
  });
  group.fail();
  waiting.join();
  EXPECT_EQ(message, "another replica failed");
}

}  // namespace
}  // namespace galley
