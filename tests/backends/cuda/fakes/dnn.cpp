// A cuDNN 9.1, and a later one with a part of another version (GALLEY_FAKE_MIXED).

#include "libcore/vendor/cuda/dnn.h"

#include <string_view>

#pragma GCC diagnostic ignored "-Wunused-parameter"

namespace galley::cuda::dnn {
namespace {

#ifdef GALLEY_FAKE_MIXED
constexpr Status kCnn = 1003;  // CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH
constexpr size_t kVersion = 91400;
#else
constexpr Status kCnn = kSuccess;
constexpr size_t kVersion = 90100;
#endif

}  // namespace

#define GALLEY_FAKE(name, arguments)                                            \
  extern "C" __attribute__((visibility("default"))) Status name arguments {     \
    return std::string_view(#name) == "cudnnCnnVersionCheck" ? kCnn : kSuccess; \
  }
GALLEY_CUDA_DNN_FUNCTIONS(GALLEY_FAKE)
#undef GALLEY_FAKE
extern "C" __attribute__((visibility("default"))) size_t cudnnGetVersion() { return kVersion; }
extern "C" __attribute__((visibility("default"))) const char* cudnnGetErrorString(Status) { return "an error"; }

}  // namespace galley::cuda::dnn
