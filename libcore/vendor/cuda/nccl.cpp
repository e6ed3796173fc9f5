#include "libcore/vendor/cuda/nccl.h"

#include "libcore/base/error.h"

namespace galley::cuda::nccl {
namespace {

constexpr int kNeeded = 22000;
constexpr const char* kFiles[] = {"libnccl.so.2"};
constexpr LibraryRow kRow{"NCCL", kFiles, "install version 2.20 or later (pip install nvidia-nccl-cu13)"};

std::string version_text(int version) { return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100); }

}  // namespace

Nccl open_nccl(const std::vector<std::string>& folders) {
  Nccl opened;
  const Library library = open_library(kRow, folders);
  opened.state = library.state;
  if (library.handle == nullptr) return opened;
  FunctionTaker taker(library);
  taker.take("ncclGetErrorString", opened.functions.ncclGetErrorString);
  taker.take("ncclGetLastError", opened.functions.ncclGetLastError);
#define GALLEY_CUDA_TAKE(name, arguments) taker.take(#name, opened.functions.name);
  GALLEY_CUDA_NCCL_FUNCTIONS(GALLEY_CUDA_TAKE)
#undef GALLEY_CUDA_TAKE
  int version = 0;
  if (opened.functions.ncclGetVersion != nullptr && opened.functions.ncclGetVersion(&version) == kSuccess) {
    opened.state.version = version_text(version);
    if (version < kNeeded) {
      opened.state.problem = cat("NCCL is of version ", opened.state.version, ", but ", version_text(kNeeded), " is needed (",
                                 opened.state.file, "); ", cure_of(kRow));
      return opened;
    }
  }
  if (!taker.missing().empty()) opened.state.problem = cat("NCCL has no ", taker.missing(), " (", opened.state.file, "); ", cure_of(kRow));
  return opened;
}

const Nccl& nccl() {
  static const Nccl kOpened = open_nccl(library_folders());
  return kOpened;
}

}  // namespace galley::cuda::nccl
