#pragma once
// NVRTC, NVIDIA's compiler as a library, opened at run time. Names, types and values are those of nvrtc.h (version 13,
// https://docs.nvidia.com/cuda/nvrtc), declared here as those of the driver are.

#include "libcore/vendor/cuda/library.h"

namespace galley::cuda::nvrtc {

using Result = int;  ///< nvrtcResult
using Program = struct _nvrtcProgram*;

inline constexpr Result kSuccess = 0, kCompilation = 6;

/// The functions that Galley uses: X(name, arguments). All return a Result.
#define GALLEY_CUDA_NVRTC_FUNCTIONS(X)                                                                                          \
  X(nvrtcVersion, (int* major, int* minor))                                                                                     \
  X(nvrtcCreateProgram,                                                                                                         \
    (Program * program, const char* source, const char* name, int headers, const char* const* texts, const char* const* names)) \
  X(nvrtcDestroyProgram, (Program * program))                                                                                   \
  X(nvrtcCompileProgram, (Program program, int count, const char* const* options))                                              \
  X(nvrtcGetCUBINSize, (Program program, size_t* bytes))                                                                        \
  X(nvrtcGetCUBIN, (Program program, char* image))                                                                              \
  X(nvrtcGetProgramLogSize, (Program program, size_t* bytes))                                                                   \
  X(nvrtcGetProgramLog, (Program program, char* text))

/// The functions, by their names.
struct Functions {
  const char* (*nvrtcGetErrorString)(Result result) = nullptr;
#define GALLEY_CUDA_MEMBER(name, arguments) Result(*name) arguments = nullptr;
  GALLEY_CUDA_NVRTC_FUNCTIONS(GALLEY_CUDA_MEMBER)
#undef GALLEY_CUDA_MEMBER
};

/// The library; `state.problem` says why it cannot be used.
struct Nvrtc {
  Functions functions;
  LibraryState state;
};
/// Opens it from these folders (open_library), for tests. Never throws.
Nvrtc open_nvrtc(const std::vector<std::string>& folders);
/// Opened at the first call.
const Nvrtc& nvrtc();

}  // namespace galley::cuda::nvrtc
