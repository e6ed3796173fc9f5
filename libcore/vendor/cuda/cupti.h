#pragma once
// CUPTI, NVIDIA's library for profilers, opened at run time. Names, types and values are those of cupti.h (version 13,
// https://docs.nvidia.com/cupti), declared here as those of the driver are. Records begin with the members that are declared here; newer
// versions append others.

#include "libcore/vendor/cuda/library.h"

namespace galley::cuda::cupti {

using Result = int;                ///< CUptiResult
using Timestamp = uint64_t (*)();  ///< CUpti_TimestampCallbackFunc
using BufferRequest = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using BufferComplete = void (*)(Context context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t valid_bytes);

inline constexpr Result kSuccess = 0, kMaxLimitReached = 12;
/// CUpti_ActivityKind
inline constexpr int kMemcpy = 1, kMemset = 2, kDriverCall = 4, kRuntimeCall = 5, kConcurrentKernel = 10, kExternalCorrelation = 39;
inline constexpr int kCustomCorrelation = 3;          ///< CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0
inline constexpr uint32_t kFlushForced = 1;           ///< CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
inline constexpr size_t kBufferAlignment = 8;         ///< ACTIVITY_RECORD_ALIGNMENT
inline constexpr uint8_t kToDevice = 1, kToHost = 2;  ///< CUpti_ActivityMemcpyKind

/// CUpti_Activity: the begin of all records.
struct alignas(8) Record {
  int kind;
};
/// CUpti_ActivityKernel10, until its name.
struct alignas(8) KernelRecord {
  int kind;
  uint8_t cache_config, shared_memory_config;
  uint16_t registers;
  int partitioned_requested, partitioned_executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid_x, grid_y, grid_z, block_x, block_y, block_z;
  int32_t static_shared, dynamic_shared;
  uint32_t local_of_thread, local_total;
  uint32_t correlation;
  int64_t grid;
  const char* name;
};
/// CUpti_ActivityMemcpy6, until its correlation.
struct alignas(8) CopyRecord {
  int kind;
  uint8_t copy_kind, from_kind, to_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t correlation;
};
/// CUpti_ActivityMemset4, until its correlation.
struct alignas(8) FillRecord {
  int kind;
  uint32_t value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t correlation;
};
/// CUpti_ActivityExternalCorrelation
struct alignas(8) CorrelationRecord {
  int kind;
  int external_kind;
  uint64_t external;
  uint32_t correlation;
  uint32_t reserved;
};

/// The functions that Galley uses: X(name, arguments). All return a Result.
#define GALLEY_CUDA_CUPTI_FUNCTIONS(X)                                                      \
  X(cuptiGetVersion, (uint32_t* version))                                                   \
  X(cuptiGetResultString, (Result result, const char** text))                               \
  X(cuptiActivityRegisterCallbacks, (BufferRequest requested, BufferComplete completed))    \
  X(cuptiActivityRegisterTimestampCallback, (Timestamp timestamp))                          \
  X(cuptiActivityEnable, (int kind))                                                        \
  X(cuptiActivityDisable, (int kind))                                                       \
  X(cuptiActivityFlushAll, (uint32_t flag))                                                 \
  X(cuptiActivityGetNextRecord, (uint8_t* buffer, size_t valid_bytes, Record** record))     \
  X(cuptiActivityGetNumDroppedRecords, (Context context, uint32_t stream, size_t* dropped)) \
  X(cuptiActivityPushExternalCorrelationId, (int kind, uint64_t id))                        \
  X(cuptiActivityPopExternalCorrelationId, (int kind, uint64_t* last))

/// The functions, by their names.
struct Functions {
#define GALLEY_CUDA_MEMBER(name, arguments) Result(*name) arguments = nullptr;
  GALLEY_CUDA_CUPTI_FUNCTIONS(GALLEY_CUDA_MEMBER)
#undef GALLEY_CUDA_MEMBER
};

/// The library; `state.problem` says why it cannot be used.
struct Cupti {
  Functions functions;
  LibraryState state;
};
/// Opens it from these folders (open_library), for tests. Never throws.
Cupti open_cupti(const std::vector<std::string>& folders);
/// Opened at the first call.
const Cupti& cupti();

}  // namespace galley::cuda::cupti
