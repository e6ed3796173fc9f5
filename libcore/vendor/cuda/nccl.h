#pragma once
// NCCL, NVIDIA's library of collectives between GPUs, opened at run time. Names, types and values are those of nccl.h (version 2,
// https://docs.nvidia.com/deeplearning/nccl), declared here as those of the driver are.

#include "libcore/vendor/cuda/library.h"

namespace galley::cuda::nccl {

using Result = int;  ///< ncclResult_t
using Handle = struct ncclComm*;

// ncclResult_t: a call goes on in the background; another process failed
inline constexpr Result kSuccess = 0, kRemoteError = 6, kInProgress = 7;
// ncclDataType_t
inline constexpr int kI8 = 0, kU8 = 1, kI32 = 2, kI64 = 4, kF16 = 6, kF32 = 7, kF64 = 8, kBF16 = 9;
// ncclRedOp_t
inline constexpr int kSum = 0, kMaximum = 2;

/// ncclUniqueId: what the ranks of a communicator have in common.
struct UniqueId {
  char bytes[128];
};

/// ncclConfig_t as of version 2.17; later versions read its size and take their defaults for the rest.
struct Options {
  static constexpr int kDefault = -2147483647 - 1;
  size_t size = sizeof(Options);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = kDefault;
  int cluster_size = kDefault, least_blocks = kDefault, most_blocks = kDefault;
  const char* network = nullptr;
  int share = kDefault;
};

/// The functions that Galley uses: X(name, arguments). All return a Result.
#define GALLEY_CUDA_NCCL_FUNCTIONS(X)                                                                                                     \
  X(ncclGetVersion, (int* version))                                                                                                       \
  X(ncclGetUniqueId, (UniqueId * id))                                                                                                     \
  X(ncclCommInitRankConfig, (Handle * communicator, int ranks, UniqueId id, int rank, Options* options))                                  \
  X(ncclCommSplit, (Handle parent, int color, int key, Handle* made, Options* options))                                                   \
  X(ncclCommDestroy, (Handle communicator))                                                                                               \
  X(ncclCommAbort, (Handle communicator))                                                                                                 \
  X(ncclCommGetAsyncError, (Handle communicator, Result * result))                                                                        \
  X(ncclCommRegister, (Handle communicator, void* array, size_t bytes, void** registration))                                              \
  X(ncclCommDeregister, (Handle communicator, void* registration))                                                                        \
  X(ncclAllReduce, (const void* from, void* to, size_t count, int type, int operation, Handle communicator, StreamHandle stream))         \
  X(ncclReduceScatter, (const void* from, void* to, size_t own_count, int type, int operation, Handle communicator, StreamHandle stream)) \
  X(ncclAllGather, (const void* from, void* to, size_t own_count, int type, Handle communicator, StreamHandle stream))                    \
  X(ncclBroadcast, (const void* from, void* to, size_t count, int type, int root, Handle communicator, StreamHandle stream))

/// The functions, by their names.
struct Functions {
  const char* (*ncclGetErrorString)(Result result) = nullptr;
  const char* (*ncclGetLastError)(Handle communicator) = nullptr;
#define GALLEY_CUDA_MEMBER(name, arguments) Result(*name) arguments = nullptr;
  GALLEY_CUDA_NCCL_FUNCTIONS(GALLEY_CUDA_MEMBER)
#undef GALLEY_CUDA_MEMBER
};

/// The library; `state.problem` says why it cannot be used.
struct Nccl {
  Functions functions;
  LibraryState state;
};
/// Opens it from these folders (open_library), for tests. Never throws.
Nccl open_nccl(const std::vector<std::string>& folders);
/// Opened at the first call.
const Nccl& nccl();

}  // namespace galley::cuda::nccl
