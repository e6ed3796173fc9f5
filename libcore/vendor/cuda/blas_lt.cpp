#include "libcore/vendor/cuda/blas_lt.h"

#include "libcore/base/error.h"

namespace galley::cuda::lt {
namespace {

constexpr size_t kNeededMajor = 13;
constexpr const char* kFiles[] = {"libcublasLt.so.13"};
constexpr LibraryRow kRow{"cuBLASLt", kFiles, "install version 13 (pip install nvidia-cublas)"};

const char* name_of(Status status) {
  switch (status) {
    case 1: return "not initialized";
    case 3: return "out of memory";
    case 7: return "invalid value";
    case 8: return "the GPU lacks a feature";
    case 11: return "no access to memory";
    case 13: return "execution failed";
    case 14: return "internal error";
    case kNotSupported: return "not supported";
    default: return "error";
  }
}

}  // namespace

BlasLt open_blas_lt(const std::vector<std::string>& folders) {
  BlasLt opened;
  const Library library = open_library(kRow, folders);
  opened.state = library.state;
  if (library.handle == nullptr) return opened;
  FunctionTaker taker(library);
  taker.take("cublasLtGetVersion", opened.functions.cublasLtGetVersion);
  if (taker.missing().empty()) {
    const size_t version = opened.functions.cublasLtGetVersion();
    opened.state.version = cat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
    if (version / 10000 != kNeededMajor) {
      opened.state.problem = cat("cuBLASLt is of version ", opened.state.version, ", but ", kNeededMajor, " is needed (", opened.state.file,
                                 "); ", cure_of(kRow));
      return opened;
    }
  }
#define GALLEY_CUDA_TAKE(name, arguments) taker.take(#name, opened.functions.name);
  GALLEY_CUDA_BLAS_LT_FUNCTIONS(GALLEY_CUDA_TAKE)
#undef GALLEY_CUDA_TAKE
  if (!taker.missing().empty())
    opened.state.problem = cat("cuBLASLt has no ", taker.missing(), " (", opened.state.file, "); ", cure_of(kRow));
  return opened;
}

const BlasLt& blas_lt() {
  static const BlasLt kOpened = open_blas_lt(library_folders());
  return kOpened;
}

void check(Status status, const std::string& what) {
  if (status == kSuccess) return;
  throw Error(ErrorCode::kResource, cat("cuBLASLt: ", what, ": ", name_of(status), " (", status, ")"));
}

}  // namespace galley::cuda::lt
