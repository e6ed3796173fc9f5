// Laws of collectives, over every transport: results, bits, bytes, order, errors.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>

#include "libcore/comm/delayed.h"
#include "libcore/comm/group.h"
#include "tests/comm/ranks.h"
#include "tests/comm/tree_sums.h"

namespace galley {
namespace {

class Transports : public testing::TestWithParam<std::tuple<Transport, int>> {
 protected:
  Transport transport() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  std::vector<std::unique_ptr<Communicator>> make(const DirectOptions& options = {}) const {
    return communicators_of(transport(), ranks(), options);
  }
  /// Runs the body on every rank, and expects no error.
  void run(const std::function<void(Communicator&)>& body) const {
    auto all = make();
    for (const std::string& error : as_ranks(all, body)) EXPECT_EQ(error, "");
  }
};

/// Sizes below a segment, uneven, and above the memory through which arrays are copied.
constexpr int64_t kSizes[] = {0, 1, 100, 4096, 200003};

TEST_P(Transports, AllReduceAndReduceScatterAddInTheOrderOfTheTree) {
  for (const int leaves : {0, 8}) {
    run([&](Communicator& comm) {
      const ReductionTree tree(leaves > 0 ? leaves : comm.size(), comm.size());
      for (const int64_t count : kSizes) {
        const std::vector<float> parts = partials_of(tree, comm.rank(), count);
        const auto memory = comm.allocate(static_cast<int64_t>(parts.size() * sizeof(float)));  // reached directly where possible
        auto* direct = reinterpret_cast<float*>(memory.get());
        std::copy(parts.begin(), parts.end(), direct);
        const Segment own = segment_of(count, comm.size(), comm.rank());
        std::vector<float> copied(static_cast<size_t>(count)), segment(static_cast<size_t>(own.size()));
        comm.run({.kind = CollectiveKind::kReduceScatter,
                  .name = "part",
                  .input = direct,
                  .output = segment.data(),
                  .count = count,
                  .leaves = leaves});
        comm.run({.kind = CollectiveKind::kAllReduce,
                  .name = "copied",
                  .input = parts.data(),
                  .output = copied.data(),
                  .count = count,
                  .leaves = leaves});
        comm.run(
            {.kind = CollectiveKind::kAllReduce, .name = "direct", .input = direct, .output = direct, .count = count, .leaves = leaves});
        int64_t wrong = 0;
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<size_t>(i);
          const float expected = sum_by_recursion(0, tree.leaves(), i);
          wrong += copied[at] != expected;
          wrong += direct[i] != expected;
          if (i >= own.begin && i < own.end) wrong += segment[static_cast<size_t>(i - own.begin)] != expected;
        }
        ASSERT_EQ(wrong, 0) << count << " elements, " << leaves << " leaves, rank " << comm.rank();
      }
    });
  }
}

TEST_P(Transports, SumsOf16BitFloatsAreRoundedOnce) {
  constexpr int64_t kCount = 5000;
  run([&](Communicator& comm) {
    const ReductionTree tree(8, comm.size());
    const auto exact = [](int begin, int end, int64_t i) { return bf16_from_float(sum_by_recursion(begin, end, i)); };
    std::vector<std::vector<uint16_t>> all(8);
    std::vector<const void*> parts;
    std::vector<uint16_t> own, expected(kCount), sum(kCount);
    for (int r = 0; r < comm.size(); ++r) {
      for (const LeafRange& range : tree.partials(r)) {
        std::vector<uint16_t>& part = all[parts.size()];
        for (int64_t i = 0; i < kCount; ++i) part.push_back(exact(range.begin, range.end, i));
        parts.push_back(part.data());
        if (r == comm.rank()) own.insert(own.end(), part.begin(), part.end());
      }
    }
    tree.reduce(parts, expected.data(), kCount, DType::kBF16, ReduceOp::kSum);
    comm.run({.kind = CollectiveKind::kAllReduce,
              .dtype = DType::kBF16,
              .name = "rounded",
              .input = own.data(),
              .output = sum.data(),
              .count = kCount,
              .leaves = 8});
    EXPECT_EQ(sum, expected);
  });
}

TEST_P(Transports, AllGatherAndBroadcastDeliverToEveryRank) {
  run([&](Communicator& comm) {
    for (const int64_t count : kSizes) {
      const Segment own = segment_of(count, comm.size(), comm.rank());
      const auto memory = comm.allocate(count * 4);
      for (const bool direct : {false, true}) {
        std::vector<int32_t> ordinary(static_cast<size_t>(count), -1);
        int32_t* output = direct ? reinterpret_cast<int32_t*>(memory.get()) : ordinary.data();
        for (int64_t i = own.begin; i < own.end; ++i) output[i] = static_cast<int32_t>(i * 7);
        comm.all_gather("gathered", output + own.begin, output, count, DType::kI32);
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(output[i], i * 7);
        const int root = static_cast<int>(count) % comm.size();
        for (int64_t i = 0; i < count; ++i) output[i] = static_cast<int32_t>(i * 5 + comm.rank());
        comm.broadcast("told", output, count, DType::kI32, root);
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(output[i], i * 5 + root);
      }
    }
  });
}

TEST_P(Transports, MessagesArriveInOrder) {
  run([&](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
    if (comm.size() == 1) return;
    for (const int64_t count : kSizes) {
      std::vector<double> first(static_cast<size_t>(count)), second(3), got(first.size()), got_second(3);
      std::iota(first.begin(), first.end(), comm.rank() * 1000.0);
      std::iota(second.begin(), second.end(), comm.rank() * 10.0);
      const auto message = [&](CollectiveKind kind, std::vector<double>& array, int peer) {
        return comm.start({.kind = kind,
                           .dtype = DType::kF64,
                           .name = "message",
                           .input = array.data(),
                           .output = array.data(),
                           .count = static_cast<int64_t>(array.size()),
                           .peer = peer});
      };
      std::vector<Ticket> tickets{message(CollectiveKind::kSend, first, next), message(CollectiveKind::kSend, second, next),
                                  message(CollectiveKind::kReceive, got, before), message(CollectiveKind::kReceive, got_second, before)};
      for (const Ticket ticket : tickets) comm.wait(ticket);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], before * 1000.0 + static_cast<double>(i));
      for (int i = 0; i < 3; ++i) ASSERT_EQ(got_second[static_cast<size_t>(i)], before * 10.0 + i);
    }
  });
}

TEST_P(Transports, MessagesAndCollectivesDoNotMix) {
  run([&](Communicator& comm) {
    const int last = comm.size() - 1;
    if (last == 0) return;
    double sum = 1, message = comm.rank() == 0 ? 1000 : 0;
    Ticket sent = 0;
    if (comm.rank() == 0)
      sent =
          comm.start({.kind = CollectiveKind::kSend, .dtype = DType::kF64, .name = "message", .input = &message, .count = 1, .peer = last});
    comm.all_reduce("sum", &sum, &sum, 1, DType::kF64);
    if (comm.rank() == last) comm.receive("message", &message, 1, DType::kF64, 0);
    if (comm.rank() == 0) comm.wait(sent);
    ASSERT_EQ(sum, comm.size());
    ASSERT_EQ(message, comm.rank() == 0 || comm.rank() == last ? 1000 : 0);
  });
}

TEST_P(Transports, ManyMayBeStartedBeforeTheFirstWaitAndWaitedForInAnyOrder) {
  run([&](Communicator& comm) {
    constexpr int kMany = 40;
    std::vector<std::vector<int64_t>> arrays;
    for (int k = 0; k < kMany; ++k) arrays.emplace_back(static_cast<size_t>(k * 37), comm.rank() + k);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<Ticket> tickets;
      for (int k = 0; k < kMany; ++k) {
        for (int64_t& value : arrays[static_cast<size_t>(k)]) value = comm.rank() + k;
        tickets.push_back(comm.start({.kind = CollectiveKind::kAllReduce,
                                      .dtype = DType::kI64,
                                      .name = "many",
                                      .input = arrays[static_cast<size_t>(k)].data(),
                                      .output = arrays[static_cast<size_t>(k)].data(),
                                      .count = static_cast<int64_t>(arrays[static_cast<size_t>(k)].size())}));
      }
      for (int k = kMany; k-- > 0;) {
        comm.wait(tickets[static_cast<size_t>(k)]);
        const int64_t expected = comm.size() * (comm.size() - 1) / 2 + k * comm.size();
        for (const int64_t value : arrays[static_cast<size_t>(k)]) ASSERT_EQ(value, expected);
      }
      comm.barrier("repeat");
    }
  });
}

TEST_P(Transports, BytesAreThoseOfTheFormulas) {
  run([&](Communicator& comm) {
    const int64_t n = comm.size(), count = 16 * n * 10;
    std::vector<float> array(static_cast<size_t>(count), 1.0f), segment(static_cast<size_t>(count / n));
    comm.all_reduce("sum", array.data(), array.data(), count, DType::kF32);
    comm.reduce_scatter("part", array.data(), segment.data(), count, DType::kF32);
    comm.all_gather("all", segment.data(), array.data(), count, DType::kF32);
    EXPECT_EQ(comm.traffic(CollectiveKind::kReduceScatter).bytes, (n - 1) * count * 4 / n);
    EXPECT_EQ(comm.traffic(CollectiveKind::kAllGather).bytes, (n - 1) * count * 4 / n);
    EXPECT_EQ(comm.traffic(CollectiveKind::kAllReduce).bytes, 2 * (n - 1) * count * 4 / n);
    EXPECT_EQ(comm.traffic().calls, 3);
  });
}

/// Groups sum inside nodes, then between them. `axes` 2: of every second rank of twice as many, whose collectives are messages.
void expect_sums_of_groups(Transport transport, int ranks, int in_node, int leaves, int axes = 1) {
  auto all = communicators_of(transport, axes * ranks);
  const RankGroup inside{1, in_node}, between{in_node, ranks / in_node};
  const auto body = [&](Communicator& world) {
    GroupCommunicator axis(world, data_group(world.rank(), axes * ranks, axes));
    Communicator& comm = axes > 1 ? axis : world;
    const ReductionTree tree(leaves > 0 ? leaves : ranks, ranks);
    const int node = comm.rank() / in_node, outputs = comm.order(leaves, inside).outputs();
    for (const int64_t count : {int64_t{16} * in_node, int64_t{16} * in_node * 3001}) {
      const std::vector<float> parts = partials_of(tree, comm.rank(), count);
      const Segment own = segment_of(count, in_node, comm.rank() % in_node);
      std::vector<float> sums(static_cast<size_t>(own.size() * outputs)), gathered(static_cast<size_t>(count));
      comm.run({.kind = CollectiveKind::kReduceScatter,
                .name = "node",
                .input = parts.data(),
                .output = sums.data(),
                .count = count,
                .leaves = leaves,
                .group = inside});
      if (leaves > 0) {
        const ReductionTree nodes(leaves, ranks / in_node);
        ASSERT_EQ(std::ssize(nodes.partials(node)), outputs);
        ASSERT_EQ(sums[0], sum_by_recursion(nodes.partials(node)[0].begin, nodes.partials(node)[0].end, own.begin));
      }
      comm.run({.kind = CollectiveKind::kAllReduce,
                .name = "nodes",
                .input = sums.data(),
                .output = sums.data(),
                .count = own.size(),
                .leaves = leaves,
                .group = between});
      comm.all_gather("all", sums.data(), gathered.data(), count, DType::kF32, inside);
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float expected = sum_by_recursion(0, tree.leaves(), i), got = gathered[static_cast<size_t>(i)];
        // Without leaves each group has a tree of its own: equal within rounding.
        wrong += leaves > 0 ? got != expected : std::abs(got - expected) > 1e-2;
      }
      ASSERT_EQ(wrong, 0) << count << " elements, rank " << comm.rank();
    }
  };
  for (const std::string& error : as_ranks(all, body)) EXPECT_EQ(error, "");
  if (axes > 1) return;
  for (const auto& comm : all) {  // the formula of hybrid, of 16 + 16 * 3001 floats for each rank of a node
    const double bytes = 4.0 * 16 * in_node * 3002, part = bytes / in_node;
    if (leaves > 0) continue;
    EXPECT_EQ(comm->traffic(CollectiveKind::kReduceScatter).bytes, bytes - part);
    EXPECT_EQ(comm->traffic(CollectiveKind::kAllGather).bytes, bytes - part);
    EXPECT_NEAR(static_cast<double>(comm->traffic(CollectiveKind::kAllReduce).bytes), 2 * part * (1 - 1.0 * in_node / ranks),
                128.0 * ranks / in_node);  // segments are multiples of 16 elements
  }
}

TEST(Groups, SumInTheOrderOfTheTree) {
  for (const Transport transport : {Transport::kThreads, Transport::kShared, Transport::kMessages, Transport::kNodes}) {
    for (const auto& [ranks, in_node] : {std::pair(4, 2), std::pair(6, 2), std::pair(6, 3), std::pair(3, 3), std::pair(4, 1)}) {
      for (const int leaves : {0, 8}) {
        SCOPED_TRACE(cat(transport_name(transport), ", ", ranks, " ranks, ", in_node, " in a node, ", leaves, " leaves"));
        expect_sums_of_groups(transport, ranks, in_node, leaves);
        if (ranks == 4 || in_node == 3) expect_sums_of_groups(transport, ranks, in_node, leaves, 2);
      }
    }
  }
}

TEST_P(Transports, RanksThatDifferAreNamed) {
  if (ranks() == 1) GTEST_SKIP() << "one rank cannot differ";
  auto all = make();
  const std::vector<std::string> errors = as_ranks(all, [](Communicator& comm) {
    std::vector<float> array(100);
    comm.barrier("begin");
    comm.all_reduce(comm.rank() == 1 ? "grads.bucket2" : "grads.bucket1", array.data(), array.data(), 100, DType::kF32);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("different collectives"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1 all_reduce grads.bucket2 of 100 f32"), std::string::npos) << error;
    EXPECT_NE(error.find("all_reduce grads.bucket1 of 100 f32"), std::string::npos) << error;
    EXPECT_NE(error.find("as collective 2"), std::string::npos) << error;
  }
}

TEST_P(Transports, ARankThatFailsEndsTheWaitOfTheOthers) {
  if (ranks() == 1) GTEST_SKIP() << "one rank has no others";
  auto all = make();
  const std::vector<std::string> errors = as_ranks(all, [](Communicator& comm) {
    if (comm.rank() == 1) throw Error(ErrorCode::kResource, "out of memory");
    comm.barrier("never");
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("out of memory"), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(All, Transports,
                         testing::Combine(testing::Values(Transport::kThreads, Transport::kShared, Transport::kMessages),
                                          testing::Values(1, 2, 3, 5)),
                         [](const auto& info) { return cat(transport_name(std::get<0>(info.param)), "_", std::get<1>(info.param)); });

INSTANTIATE_TEST_SUITE_P(Nodes, Transports, testing::Combine(testing::Values(Transport::kNodes), testing::Values(4, 6)),
                         [](const auto& info) { return cat(transport_name(std::get<0>(info.param)), "_", std::get<1>(info.param)); });

TEST(DirectCommunicator, ALateRankIsNamedAfterTheTimeLimit) {
  auto all = local_communicators(3, {.timeout_s = 0.2});
  const std::vector<std::string> errors = as_ranks(all, [](Communicator& comm) {
    comm.set_step(20);
    comm.barrier("first");
    if (comm.rank() != 2) comm.barrier("grads.bucket3");
  });
  EXPECT_EQ(errors[2], "");
  for (int r = 0; r < 2; ++r)
    EXPECT_EQ(errors[static_cast<size_t>(r)], "rank 2 has not reached collective 2 (barrier grads.bucket3) of step 20 within 0.2 s");
}

TEST(DelayedCommunicator, AStepTakesTheLongerOfComputingAndCommunicating) {
  using std::chrono::milliseconds;
  auto inner = local_communicators(2);
  std::vector<std::unique_ptr<Communicator>> all;
  for (auto& each : inner)
    all.push_back(std::make_unique<DelayedCommunicator>(std::move(each), [](const Collective&) { return milliseconds(150); }));
  double overlapped = 0, one_after_other = 0;
  const auto errors = as_ranks(all, [&](Communicator& comm) {
    std::vector<float> array(10, 1.0f);
    const Collective sum{.kind = CollectiveKind::kAllReduce, .name = "sum", .input = array.data(), .output = array.data(), .count = 10};
    const auto compute = [] { std::this_thread::sleep_for(milliseconds(150)); };
    const auto timed = [&](const std::function<void()>& step) {
      const auto began = std::chrono::steady_clock::now();
      step();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    const double first = timed([&] {
      const Ticket ticket = comm.start(sum);
      compute();
      comm.wait(ticket);
    });
    const double second = timed([&] {
      comm.run(sum);
      compute();
    });
    if (comm.rank() == 0) overlapped = first, one_after_other = second;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_LT(overlapped, 0.25);  // 0.15 s if nothing else runs; the sum is 0.30 s
  EXPECT_GE(one_after_other, 0.3);
}

TEST(Position, SaysWhereARankIs) {
  Position position;
  EXPECT_EQ(position.str(), "before step 1");
  auto all = local_communicators(1);
  all[0]->report_to(&position);
  all[0]->set_step(20);
  float x = 1;
  for (int i = 0; i < 21; ++i) all[0]->all_reduce("grads.bucket3", &x, &x, 1, DType::kF32);
  EXPECT_EQ(position.str(), "in step 20, collective 21 (all_reduce grads.bucket3)");
  EXPECT_EQ(position.waiting, 0u);
  EXPECT_EQ(position.finished, 21u);
  position.set_text("broadcast", std::string(200, 'x'));
  EXPECT_EQ(position.text().size(), Position::kText - 1);
}

}  // namespace
}  // namespace galley
