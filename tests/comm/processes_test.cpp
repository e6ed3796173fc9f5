// Ranks that are processes: by shared memory, and by MPI.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "libcore/comm/mpi.h"
#include "tests/comm/ranks.h"
#include "tests/comm/tree_sums.h"

namespace galley {
namespace {

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
