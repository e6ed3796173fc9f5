// Collectives between GPUs by the stand-in of NCCL, whose ranks are threads of the test: their results, also recorded, and the message
// about a rank that failed.

#include "libcore/vendor/cuda/nccl.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "libcore/backends/cuda/nccl_ranks.h"
#include "libcore/base/error.h"
#include "libcore/comm/local.h"
#include "libcore/tensor/tensor.h"
#include "tests/backends/cuda/stand_in.h"
#include "tests/support/temporary_folder.h"

namespace galley::test {
namespace {

const std::string kNcclStandIn = std::string(GALLEY_STAND_IN_DRIVER).substr(0, std::string(GALLEY_STAND_IN_DRIVER).rfind('/'));
constexpr int kRanks = 3;
constexpr int64_t kOwn = 16 * 1201, kCount = kRanks * kOwn;  // more than a piece of the stand-in

/// Runs `work` for each rank in a thread.
void on_ranks(const std::function<void(int rank, DeviceRanks& ranks)>& work, int count = kRanks) {
  const auto host = local_communicators(count);
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<DeviceRanks> ranks = connect_nccl(stand_in_device(), *host[static_cast<size_t>(r)]);
      work(r, *ranks);
      host[static_cast<size_t>(r)]->barrier("end");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// An array on the device, with element i of rank r: i % 7 + 10 r.
struct Array {
  std::shared_ptr<Storage> storage = Storage::allocate(kCount * 4, stand_in_device());
  float* at(int64_t i) const { return reinterpret_cast<float*>(storage->address()) + i; }

  void set(Stream& stream, int rank) const {
    std::vector<float> values(static_cast<size_t>(kCount));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7 + static_cast<size_t>(10 * rank));
    stream.copy(at(0), values.data(), kCount * 4);
    stream.synchronize();
  }
  std::vector<float> get(Stream& stream) const {
    std::vector<float> values(static_cast<size_t>(kCount));
    stream.copy(values.data(), at(0), kCount * 4);
    stream.synchronize();
    return values;
  }
};

float sum_at(int64_t i) { return static_cast<float>(kRanks * (i % 7) + 10 * (kRanks * (kRanks - 1) / 2)); }

/// What a collective in place gives, element i of rank r; the own segment of sums that are scattered.
struct Case {
  CollectiveKind kind;
  std::function<float(int64_t i)> expected;
};
const Case kCases[] = {
    {CollectiveKind::kAllReduce, sum_at},
    {CollectiveKind::kReduceScatter, sum_at},
    {CollectiveKind::kAllGather, [](int64_t i) { return static_cast<float>(i % 7 + 10 * (i / kOwn)); }},
    {CollectiveKind::kBroadcast, [](int64_t i) { return static_cast<float>(i % 7 + 10); }},
};

Collective call_of(CollectiveKind kind, const Array& array, int rank) {
  float *whole = array.at(0), *own = array.at(rank * kOwn);
  return {.kind = kind,
          .name = "array",
          .input = kind == CollectiveKind::kAllGather ? own : whole,
          .output = kind == CollectiveKind::kReduceScatter ? own : whole,
          .count = kCount,
          .peer = 1};
}

TEST(Nccl, CollectivesGiveTheirResultsAlsoRecorded) {
  if (on_gpu()) GTEST_SKIP() << "the ranks are threads with one GPU";
  stand_in_device();
  const auto& driver = cuda::driver();
  on_ranks([&](int rank, DeviceRanks& ranks) {
    const std::unique_ptr<Stream> stream = stand_in_device().make_stream();
    const Array array;
    for (const Case& c : kCases) {
      const Collective call = call_of(c.kind, array, rank);
      const auto enqueue = [&] {
        ranks.start(call, *stream);
        ranks.wait(call.output, *stream);
      };
      const auto check = [&](const char* what) {
        const std::vector<float> values = array.get(*stream);
        const bool part = c.kind == CollectiveKind::kReduceScatter;
        for (int64_t i = part ? rank * kOwn : 0; i < (part ? (rank + 1) * kOwn : kCount); ++i)
          ASSERT_EQ(values[static_cast<size_t>(i)], c.expected(i)) << collective_name(c.kind) << " " << i << what;
      };
      array.set(*stream, rank);
      enqueue();
      check("");
      array.set(*stream, rank);
      ASSERT_EQ(driver.cuStreamBeginCapture(cuda_stream(*stream), cuda::kCaptureOfThread), cuda::kSuccess);
      enqueue();
      cuda::GraphHandle graph = nullptr;
      ASSERT_EQ(driver.cuStreamEndCapture(cuda_stream(*stream), &graph), cuda::kSuccess);
      cuda::GraphExecHandle replay = nullptr;
      ASSERT_EQ(driver.cuGraphInstantiateWithFlags(&replay, graph, 0), cuda::kSuccess);
      ASSERT_EQ(driver.cuGraphLaunch(replay, cuda_stream(*stream)), cuda::kSuccess);
      check(" recorded");
      driver.cuGraphDestroy(graph);
      driver.cuGraphExecDestroy(replay);
    }
  });
}

// Of 4 ranks, neighbors and those two apart: the meshes of hybrid sharding.
TEST(Nccl, GroupsHaveSumsOfTheirOwn) {
  if (on_gpu()) GTEST_SKIP() << "the ranks are threads with one GPU";
  stand_in_device();
  const auto work = [&](int rank, DeviceRanks& ranks) {
    const std::unique_ptr<Stream> stream = stand_in_device().make_stream();
    const Array array;
    for (const RankGroup group : {RankGroup{1, 2}, RankGroup{2, 2}, RankGroup{1, 2}, RankGroup{1, 4}}) {
      array.set(*stream, rank);
      const Collective call{.kind = CollectiveKind::kAllReduce,
                            .name = "array",
                            .input = array.at(0),
                            .output = array.at(0),
                            .count = kCount,
                            .of_group = true,
                            .group = group};
      ranks.start(call, *stream);
      ranks.wait(call.output, *stream);
      float expected = 0;
      for (int i = 0; i < group.size; ++i) expected += static_cast<float>(10 * (group.first_of(rank) + i * group.stride));
      const std::vector<float> values = array.get(*stream);
      for (const int64_t i : {int64_t{0}, int64_t{5}, kCount - 1})
        EXPECT_EQ(values[static_cast<size_t>(i)], expected + static_cast<float>(group.size * (i % 7))) << group.size << " " << group.stride;
    }
  };
  on_ranks(work, 4);
}

// The stand-in refuses what a driver refuses.
TEST(Nccl, ARecordedCollectiveMustBeWaitedFor) {
  if (on_gpu()) GTEST_SKIP() << "the ranks are threads with one GPU";
  stand_in_device();
  on_ranks([&](int rank, DeviceRanks& ranks) {
    const std::unique_ptr<Stream> stream = stand_in_device().make_stream();
    const Array array;
    ASSERT_EQ(cuda::driver().cuStreamBeginCapture(cuda_stream(*stream), cuda::kCaptureOfThread), cuda::kSuccess);
    ranks.start(call_of(CollectiveKind::kAllReduce, array, rank), *stream);
    cuda::GraphHandle graph = nullptr;
    constexpr cuda::Result kUnjoined = 904;
    EXPECT_EQ(cuda::driver().cuStreamEndCapture(cuda_stream(*stream), &graph), kUnjoined);
  });
}

TEST(Nccl, ARankThatFailsEndsTheWaitingOfOthers) {
  if (on_gpu()) GTEST_SKIP() << "the ranks are threads with one GPU";
  stand_in_device();
  std::atomic<int> messages{0};
  const auto fail = reinterpret_cast<void (*)()>(dlsym(dlopen(GALLEY_STAND_IN_DRIVER, RTLD_NOW), "galley_stand_in_break"));
  std::atomic<bool> last{false};
  std::atomic<int> connected{0};
  on_ranks([&](int rank, DeviceRanks& ranks) {
    ++connected;
    while (connected < kRanks) std::this_thread::yield();
    if (rank != 0) {  // rank 0 waits in vain
      while (!last) std::this_thread::yield();
      return;
    }
    const std::unique_ptr<Stream> stream = stand_in_device().make_stream();
    const Array array;
    stand_in_device().watch(nullptr);
    array.set(*stream, rank);
    const Collective call = call_of(CollectiveKind::kAllReduce, array, rank);
    ranks.start(call, *stream);
    fail();
    try {
      ranks.start(call, *stream);
      ADD_FAILURE() << "the collective should fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kWorker);
      EXPECT_EQ(error.message(), "NCCL: all_reduce array: remote process exited or there was a network error (6); another rank has failed");
      ++messages;
    }
    stream->synchronize();  // what was started ends
    last = true;
  });
  EXPECT_EQ(messages, 1);
}

TEST(Nccl, MissingAndOldLibrariesSayWhatIsNeeded) {
  const TemporaryFolder folder;
  EXPECT_EQ(cuda::nccl::open_nccl({folder.path()}).state.problem,
            "NCCL was not found (libnccl.so.2, searched " + folder.path() +
                "); install version 2.20 or later (pip install nvidia-nccl-cu13), or name its folder by GALLEY_CUDA_LIBRARIES");
  const std::string file = folder / "libnccl.so.2";
  std::filesystem::copy_file(kNcclStandIn + "/old/libcublasLt.so.13", file);
  EXPECT_EQ(cuda::nccl::open_nccl({folder.path()}).state.problem,
            "NCCL is of version 2.18.5, but 2.20.0 is needed (" + file +
                "); install version 2.20 or later (pip install nvidia-nccl-cu13), or name its folder by "
                "GALLEY_CUDA_LIBRARIES");
  const TemporaryFolder other;
  std::filesystem::copy_file(kNcclStandIn + "/partial/libcublasLt.so.13", other / "libnccl.so.2");
  EXPECT_EQ(cuda::nccl::open_nccl({other.path()}).state.problem.rfind("NCCL has no ncclGetErrorString, ncclGetLastError, ", 0), 0u);
  EXPECT_EQ(cuda::nccl::open_nccl({kNcclStandIn}).state.problem, "");
}

}  // namespace
}  // namespace galley::test
