// Laws of collectives, over every transport: results, bits, bytes, order, errors.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "libcore/comm/delayed.h"
#include "libcore/comm/group.h"
#include "libcore/comm/mpi.h"
#include "tests/comm/ranks.h"

namespace galley {
namespace {

/// A number that looks random, of a leaf and an element. Magnitudes differ, so that sums round.
float sample(int leaf, int64_t element) {
  uint64_t x = static_cast<uint64_t>(leaf + 1) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(element) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 29;
  const double unit = static_cast<double>(x >> 11) / 9007199254740992.0 - 0.5;
  return static_cast<float>(unit * std::exp2(static_cast<double>(x % 13)));
}

/// The sum of leaves [begin, end) in the order that the header states, by recursion in float.
float sum_by_recursion(int begin, int end, int64_t element) {
  if (end - begin == 1) return sample(begin, element);
  int first = 1;
  while (2 * first < end - begin) first *= 2;
  return sum_by_recursion(begin, begin + first, element) + sum_by_recursion(begin + first, end, element);
}

/// The partial sums of a rank, as a rank computes them.
std::vector<float> partials_of(const ReductionTree& tree, int rank, int64_t count) {
  std::vector<float> parts;
  for (const LeafRange& range : tree.partials(rank)) {
    for (int64_t i = 0; i < count; ++i) parts.push_back(sum_by_recursion(range.begin, range.end, i));
  }
  return parts;
}

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

TEST(SharedCommunicator, ProcessesSum) {
  constexpr int kRanks = 3;
  const std::string name = cat("/galley-test-", getpid());
  const auto segment = SharedSegment::create(name, shared_board_bytes(kRanks));
  create_shared_board(*segment, kRanks);
  std::vector<pid_t> children;
  for (int r = 0; r < kRanks; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const ThreadShare share(1);
      const auto comm = shared_communicator(SharedSegment::open(name), name, r);
      bool good = true;
      for (const int64_t bytes : {int64_t{4000}, static_cast<int64_t>(2 * kHugePage)}) {
        const auto memory = comm->allocate(bytes);
        use_huge_pages(memory.get(), bytes);
        auto* array = reinterpret_cast<float*>(memory.get());
        for (int repeat = 0; repeat < 50; ++repeat) {
          for (int64_t i = 0; i < 1000; ++i) array[i] = sample(r, i + repeat);
          comm->all_reduce("sum", array, array, 1000, DType::kF32);
          for (int64_t i = 0; i < 1000; ++i) good &= array[i] == sum_by_recursion(0, kRanks, i + repeat);
        }
      }
      // One output for all: each rank writes its segment once, and reads those of the others.
      const auto common = comm->allocate_common(4096);
      auto* whole = reinterpret_cast<float*>(common.get());
      constexpr int64_t kSegment = 160;
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<float> own(kSegment);
        for (int64_t i = 0; i < kSegment; ++i) own[static_cast<size_t>(i)] = sample(r, i + repeat);
        comm->all_gather("gather", own.data(), whole, kRanks * kSegment, DType::kF32);
        for (int64_t i = 0; i < kRanks * kSegment; ++i) good &= whole[i] == sample(static_cast<int>(i / kSegment), i % kSegment + repeat);
      }
      comm->barrier("read");
      if (r == 0) whole[1000] = 7;
      comm->barrier("written");
      good &= whole[1000] == 7;
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST(SharedSegment, RemovesWhatKilledJobsHaveLeft) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);  // no process has this number any more
  const std::string stale = cat("/galley-", child, "-17"), live = cat("/galley-", getpid(), "-17");
  const auto left = SharedSegment::create(stale, 100), kept = SharedSegment::create(live, 100);
  const auto other = SharedSegment::create(cat("/galley-test-", getpid()), 100);
  EXPECT_THROW(SharedSegment::open(stale), Error);
  EXPECT_EQ(SharedSegment::open(live)->bytes(), 100);
}

TEST(SharedSegment, SaysThatThereIsNoRoom) {
  try {
    SharedSegment::create(cat("/galley-test-", getpid()), int64_t{1} << 50);
    FAIL() << "a segment of a petabyte was created";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_NE(error.message().find("/dev/shm has no room for 1 PiB"), std::string::npos) << error.message();
  }
  EXPECT_THROW(SharedSegment::open(cat("/galley-test-", getpid())), Error);  // nothing was left
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

/// Runs in processes that the next test starts: the same sums by MPI's messages and by shared memory.
TEST(UnderMpi, SumsHaveTheBitsOfTheTree) {
  if (!launched_rank() || std::getenv("GALLEY_TEST_MPI") == nullptr) GTEST_SKIP() << "runs under mpirun, started by Mpi.RanksSum";
  MpiJob job;
  const bool nodes = job.local_size() < job.size();
  for (const bool shared : {false, true}) {
    const auto comm = job.communicator({.messages = {.check = true}, .shared_memory = shared});
    EXPECT_EQ(comm->transport(), !shared ? "messages (MPI)" : nodes ? "shared memory and messages (MPI)" : "shared memory");
    EXPECT_EQ(comm->size(), launched_rank()->size);
    for (const int64_t count : {int64_t{10}, int64_t{1000003}}) {
      std::vector<float> array(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) array[static_cast<size_t>(i)] = sample(comm->rank(), i);
      comm->all_reduce("sum", array.data(), array.data(), count, DType::kF32);
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) wrong += array[static_cast<size_t>(i)] != sum_by_recursion(0, comm->size(), i);
      EXPECT_EQ(wrong, 0);
    }
    comm->barrier("end");
  }
}

TEST(Mpi, RanksSum) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const char* ranks : {"-np 3", "-x GALLEY_RANKS_PER_NODE=2 -np 4"}) {
    const std::string command = cat(
        "GALLEY_TEST_MPI=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 mpirun --oversubscribe --bind-to none ",
        ranks, " '", program, "' --gtest_filter=UnderMpi.* >/dev/null");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace
}  // namespace galley
