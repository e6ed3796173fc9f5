// A stand-in for libnccl.so.2: collectives between processes, or threads of one, that the streams of the stand-in driver run, through a
// block of shared memory. Sums are in the order of ranks. As in the library, a call may go on in the background, and work that waits for a
// process that has ended waits until the communicator is aborted, while ncclCommGetAsyncError reports the error.
//
// GALLEY_STAND_IN_FAIL="ncclAllReduce:5=-9" ends the process in the fifth call.

#include "libcore/vendor/cuda/nccl.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/backends/cuda/stand_in/calls.h"
#include "tests/backends/cuda/stand_in/emulate.h"
// The types, after the emulation.
#include "libcore/backends/cuda/kernels/portable.h"

namespace {

using namespace galley;
using namespace galley::cuda;
using nccl::Result;

constexpr Result kInvalidArgument = 4;
constexpr int kMostRanks = 16, kMostSplits = 8;
constexpr size_t kPiece = size_t{1} << 16;  // bytes of a rank in one step

/// In shared memory.
struct Board {
  std::atomic<int> failed{0};
  std::array<std::atomic<pid_t>, kMostRanks> processes{};
  std::array<std::atomic<uint64_t>, kMostRanks> arrived{};
  std::array<std::array<std::atomic<int>, kMostRanks>, kMostSplits> colors{};  // plus 1
  std::byte pieces[kMostRanks][kPiece];
};

/// What a communicator and its enqueued work share.
struct Member {
  std::string name;
  Board* board = nullptr;
  int rank = 0, ranks = 0;
  uint64_t meetings = 0;  // of this rank
  size_t splits = 0;
  std::atomic<bool> aborted{false};
  std::atomic<Result> error{nccl::kSuccess};

  ~Member() {
    if (board != nullptr) munmap(board, sizeof(Board));
    shm_unlink(name.c_str());  // the first one that ends; the memory lives as long as it is mapped
  }
  bool all_are_there() const {
    for (int r = 0; r < ranks; ++r)
      if (board->processes[static_cast<size_t>(r)] == 0) return false;
    return true;
  }
  bool one_is_gone() const {
    if (board->failed != 0) return true;
    for (int r = 0; r < ranks; ++r) {
      const pid_t process = board->processes[static_cast<size_t>(r)];
      if (process > 0 && kill(process, 0) != 0) return true;
    }
    return false;
  }
  /// Waits for all ranks. False: the communicator was aborted.
  bool meet() {
    board->arrived[static_cast<size_t>(rank)] = ++meetings;
    for (int64_t times = 0;; ++times) {
      bool all = true;
      for (int r = 0; r < ranks; ++r) all = all && board->arrived[static_cast<size_t>(r)] >= meetings;
      if (all) return true;
      if (aborted) return false;
      if (times % 1024 == 1023 && one_is_gone()) error = nccl::kRemoteError;
      sched_yield();
    }
  }
};
struct Communicator {
  std::shared_ptr<Member> member;
  int registered = 0;  // arrays
};
Communicator& of(nccl::Handle handle) { return *reinterpret_cast<Communicator*>(handle); }

size_t size_of(int type) {
  switch (type) {
    case nccl::kI8:
    case nccl::kU8: return 1;
    case nccl::kF16:
    case nccl::kBF16: return 2;
    case nccl::kI32:
    case nccl::kF32: return 4;
    default: return 8;
  }
}
device::Type type_of(int type) {
  switch (type) {
    case nccl::kF16: return device::kF16;
    case nccl::kBF16: return device::kBF16;
    case nccl::kF32: return device::kF32;
    case nccl::kF64: return device::kF64;
    case nccl::kI32: return device::kI32;
    case nccl::kI64: return device::kI64;
    case nccl::kU8: return device::kU8;
    default: return device::kI8;
  }
}

/// to[i] = the sum, or the maximum, of the ranks' elements.
template <class V>
void combine(const Member& member, void* to, size_t count, int type, int operation) {
  for (size_t i = 0; i < count; ++i) {
    const auto element = [&](int r) { return device::load<V>(member.board->pieces[r], static_cast<int64_t>(i), type_of(type)); };
    V sum = element(0);
    for (int r = 1; r < member.ranks; ++r) sum = operation == nccl::kSum ? static_cast<V>(sum + element(r)) : std::max(sum, element(r));
    device::store(sum, to, static_cast<int64_t>(i), type_of(type));
  }
}

/// Each rank shows a piece of its array; `take` reads those of all. Arrays have `bytes` bytes.
template <class Take>
void exchange(Member& member, const std::byte* from, size_t bytes, const Take& take) {
  for (size_t begin = 0; begin < bytes; begin += kPiece) {
    const size_t size = std::min(kPiece, bytes - begin);
    std::memcpy(member.board->pieces[member.rank], from + begin, size);
    if (!member.meet()) return;
    take(begin, size);
    if (!member.meet()) return;
  }
}

void reduce(Member& member, const std::byte* from, std::byte* to, size_t bytes, int type, int operation) {
  exchange(member, from, bytes, [&](size_t begin, size_t size) {
    const size_t count = size / size_of(type);
    if (type == nccl::kI64 || type == nccl::kI32) {
      combine<int64_t>(member, to + begin, count, type, operation);
    } else {
      combine<double>(member, to + begin, count, type, operation);
    }
  });
}

Board* last_board = nullptr;

/// Makes the communicator of a rank.
Result join(nccl::Handle* handle, const std::string& name, int ranks, int rank) {
  auto member = std::make_shared<Member>();
  member->name = name;
  member->rank = rank;
  member->ranks = ranks;
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Board)) != 0) return 2;
  void* mapped = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return 2;
  last_board = member->board = static_cast<Board*>(mapped);  // zeros, as its members begin
  member->board->processes[static_cast<size_t>(rank)] = getpid();
  *handle = reinterpret_cast<nccl::Handle>(new Communicator{member});
  return nccl::kInProgress;
}

Result started(const char* function) {
  const Result injected = stand_in::count_call(function);
  if (injected < 0) raise(-injected);
  return injected;
}

/// Enqueues a collective. The call is in progress until it is asked for.
Result enqueue(nccl::Handle handle, StreamHandle stream, const char* name, std::function<void(Member&)> work) {
  if (const Result injected = started(name); injected != 0) return injected;
  stand_in::enqueue(stream, name, 1, [member = of(handle).member, work] { work(*member); });
  return nccl::kInProgress;
}

}  // namespace

#define GALLEY_EXPORT extern "C" __attribute__((visibility("default")))

/// For tests: the ranks of the last communicator see that one has failed.
GALLEY_EXPORT void galley_stand_in_break() { last_board->failed = 1; }

GALLEY_EXPORT Result ncclGetVersion(int* version) {
  *version = 22809;
  return nccl::kSuccess;
}
GALLEY_EXPORT const char* ncclGetErrorString(Result result) {
  return result == nccl::kRemoteError ? "remote process exited or there was a network error" : "an error of the stand-in";
}
GALLEY_EXPORT const char* ncclGetLastError(nccl::Handle) { return ""; }
GALLEY_EXPORT Result ncclGetUniqueId(nccl::UniqueId* id) {
  if (const Result injected = started("ncclGetUniqueId"); injected != 0) return injected;
  std::random_device random;
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "/galley_nccl_%d_%08x%08x", getpid(), random(), random());
  return nccl::kSuccess;
}
GALLEY_EXPORT Result ncclCommInitRankConfig(nccl::Handle* handle, int ranks, nccl::UniqueId id, int rank, nccl::Options* options) {
  if (const Result injected = started("ncclCommInitRankConfig"); injected != 0) return injected;
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks || options->magic != 0xcafebeef || options->blocking != 0)
    return kInvalidArgument;
  return join(handle, id.bytes, ranks, rank);
}
GALLEY_EXPORT Result ncclCommSplit(nccl::Handle parent, int color, int, nccl::Handle* handle, nccl::Options*) {
  if (const Result injected = started("ncclCommSplit"); injected != 0) return injected;
  Member& member = *of(parent).member;
  if (color < 0 || member.splits == kMostSplits) return kInvalidArgument;
  auto& colors = member.board->colors[member.splits++];
  colors[static_cast<size_t>(member.rank)] = color + 1;
  int ranks = 0, rank = 0;
  for (int r = 0; r < member.ranks; ++r) {
    while (colors[static_cast<size_t>(r)] == 0) sched_yield();
    if (colors[static_cast<size_t>(r)] != color + 1) continue;
    if (r == member.rank) rank = ranks;
    ++ranks;
  }
  return join(handle, member.name + "_" + std::to_string(member.splits) + "_" + std::to_string(color), ranks, rank);
}
GALLEY_EXPORT Result ncclCommRegister(nccl::Handle handle, void* array, size_t bytes, void** registration) {
  if (const Result injected = started("ncclCommRegister"); injected != 0) return injected;
  if (array == nullptr || bytes == 0) return kInvalidArgument;
  ++of(handle).registered;
  *registration = array;
  return nccl::kSuccess;
}
GALLEY_EXPORT Result ncclCommDeregister(nccl::Handle handle, void* registration) {
  if (const Result injected = started("ncclCommDeregister"); injected != 0) return injected;
  if (registration == nullptr || of(handle).registered == 0) return kInvalidArgument;
  --of(handle).registered;
  return nccl::kSuccess;
}
GALLEY_EXPORT Result ncclCommDestroy(nccl::Handle handle) {
  delete &of(handle);
  return nccl::kSuccess;
}
GALLEY_EXPORT Result ncclCommAbort(nccl::Handle handle) {
  of(handle).member->aborted = true;
  delete &of(handle);
  return nccl::kSuccess;
}
GALLEY_EXPORT Result ncclCommGetAsyncError(nccl::Handle handle, Result* result) {
  Member& member = *of(handle).member;

  if (member.board->failed != 0) member.error = nccl::kRemoteError;
  *result = member.error != nccl::kSuccess ? member.error.load() : member.all_are_there() ? nccl::kSuccess : nccl::kInProgress;
  return nccl::kSuccess;
}
GALLEY_EXPORT Result ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, nccl::Handle handle,
                                   StreamHandle stream) {
  return enqueue(handle, stream, "ncclAllReduce", [=](Member& member) {
    reduce(member, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count * size_of(type), type, operation);
  });
}
GALLEY_EXPORT Result ncclReduceScatter(const void* from, void* to, size_t own_count, int type, int operation, nccl::Handle handle,
                                       StreamHandle stream) {
  return enqueue(handle, stream, "ncclReduceScatter", [=](Member& member) {
    // The parts of each rank in turn; only the owner keeps the sum. `to` may be the own part of `from`, which is shown before.
    const size_t bytes = own_count * size_of(type);
    std::vector<std::byte> others(bytes), own(bytes);
    for (int r = 0; r < member.ranks; ++r)
      reduce(member, static_cast<const std::byte*>(from) + static_cast<size_t>(r) * bytes, r == member.rank ? own.data() : others.data(),
             bytes, type, operation);
    std::memcpy(to, own.data(), bytes);
  });
}
GALLEY_EXPORT Result ncclAllGather(const void* from, void* to, size_t own_count, int type, nccl::Handle handle, StreamHandle stream) {
  return enqueue(handle, stream, "ncclAllGather", [=](Member& member) {
    const size_t bytes = own_count * size_of(type);
    exchange(member, static_cast<const std::byte*>(from), bytes, [&](size_t begin, size_t size) {
      for (int r = 0; r < member.ranks; ++r)
        std::memcpy(static_cast<std::byte*>(to) + static_cast<size_t>(r) * bytes + begin, member.board->pieces[r], size);
    });
  });
}
GALLEY_EXPORT Result ncclBroadcast(const void* from, void* to, size_t count, int type, int root, nccl::Handle handle, StreamHandle stream) {
  return enqueue(handle, stream, "ncclBroadcast", [=](Member& member) {
    exchange(member, static_cast<const std::byte*>(from), count * size_of(type),
             [&](size_t begin, size_t size) { std::memcpy(static_cast<std::byte*>(to) + begin, member.board->pieces[root], size); });
  });
}
