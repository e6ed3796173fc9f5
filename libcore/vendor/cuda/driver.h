#pragma once
// The CUDA driver API, opened at run time: one binary runs with and without an NVIDIA driver. Names, types and values are those of cuda.h
// (CUDA 13, https://docs.nvidia.com/cuda/cuda-driver-api). They are declared here, so that every build has them, with or without a toolkit.

#include <cstddef>
#include <cstdint>
#include <string>

namespace galley::cuda {

using Result = int;        ///< CUresult
using DeviceNumber = int;  ///< CUdevice
using Address = uint64_t;  ///< CUdeviceptr
using Context = struct CUctx_st*;
using StreamHandle = struct CUstream_st*;
using EventHandle = struct CUevent_st*;
using LibraryHandle = struct CUlib_st*;
using KernelHandle = struct CUkern_st*;
using GraphHandle = struct CUgraph_st*;
using GraphExecHandle = struct CUgraphExec_st*;

// CUresult
inline constexpr Result kSuccess = 0, kOutOfMemory = 2, kStubLibrary = 34, kNoDevice = 100, kNoKernelImage = 209, kNotReady = 600;
// CUdevice_attribute
inline constexpr int kSharedMemoryPerBlock = 8, kMultiprocessors = 16, kComputeMajor = 75, kComputeMinor = 76, kSharedMemoryOptIn = 97;
inline constexpr unsigned kNonBlockingStream = 1;   ///< CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventWithoutTime = 2;    ///< CU_EVENT_DISABLE_TIMING
inline constexpr int kHighestPriority = -100;       ///< Of a stream: the driver takes the nearest that the GPU has.
inline constexpr unsigned kPortableHostMemory = 1;  ///< CU_MEMHOSTALLOC_PORTABLE
inline constexpr int kCaptureOfThread = 1;          ///< CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
/// The version of the API: the lowest driver (580) of CUDA 13, whose compiler builds the kernels.
inline constexpr int kNeededVersion = 13000;

/// The functions that Galley uses: X(name, arguments). All return a Result.
#define GALLEY_CUDA_DRIVER_FUNCTIONS(X)                                                                                                    \
  X(cuInit, (unsigned flags))                                                                                                              \
  X(cuDriverGetVersion, (int* version))                                                                                                    \
  X(cuGetErrorName, (Result result, const char** name))                                                                                    \
  X(cuGetErrorString, (Result result, const char** text))                                                                                  \
  X(cuDeviceGetCount, (int* count))                                                                                                        \
  X(cuDeviceGet, (DeviceNumber * device, int ordinal))                                                                                     \
  X(cuDeviceGetName, (char* name, int length, DeviceNumber device))                                                                        \
  X(cuDeviceGetAttribute, (int* value, int attribute, DeviceNumber device))                                                                \
  X(cuDeviceTotalMem, (size_t* bytes, DeviceNumber device))                                                                                \
  X(cuDevicePrimaryCtxRetain, (Context * context, DeviceNumber device))                                                                    \
  X(cuCtxSetCurrent, (Context context))                                                                                                    \
  X(cuMemGetInfo, (size_t* free, size_t* total))                                                                                           \
  X(cuMemAlloc, (Address * address, size_t bytes))                                                                                         \
  X(cuMemFree, (Address address))                                                                                                          \
  X(cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                                                                        \
  X(cuMemFreeHost, (void* address))                                                                                                        \
  X(cuMemcpyAsync, (Address to, Address from, size_t bytes, StreamHandle stream))                                                          \
  X(cuMemsetD8Async, (Address to, unsigned char value, size_t bytes, StreamHandle stream))                                                 \
  X(cuStreamCreate, (StreamHandle * stream, unsigned flags))                                                                               \
  X(cuStreamCreateWithPriority, (StreamHandle * stream, unsigned flags, int priority))                                                     \
  X(cuStreamDestroy, (StreamHandle stream))                                                                                                \
  X(cuStreamSynchronize, (StreamHandle stream))                                                                                            \
  X(cuStreamWaitEvent, (StreamHandle stream, EventHandle event, unsigned flags))                                                           \
  X(cuEventCreate, (EventHandle * event, unsigned flags))                                                                                  \
  X(cuEventDestroy, (EventHandle event))                                                                                                   \
  X(cuEventRecord, (EventHandle event, StreamHandle stream))                                                                               \
  X(cuEventQuery, (EventHandle event))                                                                                                     \
  X(cuEventSynchronize, (EventHandle event))                                                                                               \
  X(cuEventElapsedTime, (float* milliseconds, EventHandle begin, EventHandle end))                                                         \
  X(cuStreamBeginCapture, (StreamHandle stream, int mode))                                                                                 \
  X(cuStreamEndCapture, (StreamHandle stream, GraphHandle * graph))                                                                        \
  X(cuGraphInstantiateWithFlags, (GraphExecHandle * exec, GraphHandle graph, unsigned long long flags))                                    \
  X(cuGraphLaunch, (GraphExecHandle exec, StreamHandle stream))                                                                            \
  X(cuGraphDestroy, (GraphHandle graph))                                                                                                   \
  X(cuGraphExecDestroy, (GraphExecHandle exec))                                                                                            \
  X(cuLibraryLoadData, (LibraryHandle * library, const void* image, int* jit_options, void** jit_values, unsigned jit_count, int* options, \
                        void** values, unsigned count))                                                                                    \
  X(cuLibraryGetKernel, (KernelHandle * kernel, LibraryHandle library, const char* name))                                                  \
  X(cuLaunchKernel, (KernelHandle kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,           \
                     unsigned block_z, unsigned shared_bytes, StreamHandle stream, void** arguments, void** extra))

/// The functions, by their names.
struct Driver {
#define GALLEY_CUDA_MEMBER(name, arguments) Result(*name) arguments = nullptr;
  GALLEY_CUDA_DRIVER_FUNCTIONS(GALLEY_CUDA_MEMBER)
#undef GALLEY_CUDA_MEMBER
};

/// The driver, opened and initialized at the first call. The environment variable GALLEY_CUDA_DRIVER names its file; default: the loader
/// finds libcuda.so.1. Throws Error (kResource) that says what was looked for and what to install.
const Driver& driver();

/// What is known of a library of the machine, for `--version -v`.
struct LibraryState {
  std::string name;     ///< "driver"
  std::string version;  ///< "13.0"; empty: it cannot be used
  std::string file;     ///< its path; empty: it was not found
  std::string problem;  ///< why it cannot be used, with the cure; empty: it can
};
/// The state of the driver. Never throws.
LibraryState driver_state();

/// The release of the installed driver, "580.159.04": several have the same version of CUDA. Empty: unknown.
std::string driver_release();

/// Throws Error (kResource) with the name and the text of the error, unless the result is kSuccess. `what`: the call, for the message.
void check(Result result, const std::string& what);

}  // namespace galley::cuda
