#include "libcore/vendor/cuda/nvrtc.h"

#include "libcore/base/error.h"

namespace galley::cuda::nvrtc {
namespace {

constexpr int kNeededMajor = 13;
constexpr const char* kFiles[] = {"libnvrtc.so.13"};  // it opens libnvrtc-builtins in its folder itself
constexpr LibraryRow kRow{"NVRTC", kFiles, "install version 13 (pip install nvidia-cuda-nvrtc)"};

}  // namespace

Nvrtc open_nvrtc(const std::vector<std::string>& folders) {
  Nvrtc opened;
  const Library library = open_library(kRow, folders);
  opened.state = library.state;
  if (library.handle == nullptr) return opened;
  FunctionTaker taker(library);
  taker.take("nvrtcGetErrorString", opened.functions.nvrtcGetErrorString);
#define GALLEY_CUDA_TAKE(name, arguments) taker.take(#name, opened.functions.name);
  GALLEY_CUDA_NVRTC_FUNCTIONS(GALLEY_CUDA_TAKE)
#undef GALLEY_CUDA_TAKE
  int major = 0, minor = 0;
  if (opened.functions.nvrtcVersion != nullptr && opened.functions.nvrtcVersion(&major, &minor) == kSuccess) {
    opened.state.version = cat(major, ".", minor);
    if (major != kNeededMajor) {
      opened.state.problem = cat("NVRTC is of version ", opened.state.version, ", but ", kNeededMajor, " is needed (", opened.state.file,
                                 "); ", cure_of(kRow));
      return opened;
    }
  }
  if (!taker.missing().empty()) opened.state.problem = cat("NVRTC has no ", taker.missing(), " (", opened.state.file, "); ", cure_of(kRow));
  return opened;
}

const Nvrtc& nvrtc() {
  static const Nvrtc kOpened = open_nvrtc(library_folders());
  return kOpened;
}

}  // namespace galley::cuda::nvrtc
