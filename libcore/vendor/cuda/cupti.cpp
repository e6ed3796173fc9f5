#include "libcore/vendor/cuda/cupti.h"

#include <cstddef>

#include "libcore/base/error.h"

namespace galley::cuda::cupti {
namespace {

// As in cupti_activity.h (tests compare them with the installed one).
static_assert(offsetof(KernelRecord, start) == 16 && offsetof(KernelRecord, correlation) == 92 && offsetof(KernelRecord, name) == 104);
static_assert(offsetof(CopyRecord, start) == 16 && offsetof(CopyRecord, correlation) == 44);
static_assert(offsetof(FillRecord, start) == 16 && offsetof(FillRecord, correlation) == 44);
static_assert(offsetof(CorrelationRecord, external) == 8 && sizeof(CorrelationRecord) == 24);

constexpr uint32_t kNeededVersion = 130000;  // of CUDA 13.0
constexpr const char* kFiles[] = {"libcupti.so.13"};
constexpr LibraryRow kRow{"CUPTI", kFiles, "install version 13 (pip install nvidia-cuda-cupti)"};

}  // namespace

Cupti open_cupti(const std::vector<std::string>& folders) {
  Cupti opened;
  const Library library = open_library(kRow, folders);
  opened.state = library.state;
  if (library.handle == nullptr) return opened;
  FunctionTaker taker(library);
#define GALLEY_CUDA_TAKE(name, arguments) taker.take(#name, opened.functions.name);
  GALLEY_CUDA_CUPTI_FUNCTIONS(GALLEY_CUDA_TAKE)
#undef GALLEY_CUDA_TAKE
  uint32_t version = 0;
  if (opened.functions.cuptiGetVersion != nullptr && opened.functions.cuptiGetVersion(&version) == kSuccess) {
    opened.state.version = cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
    if (version < kNeededVersion) {
      opened.state.problem =
          cat("CUPTI is of version ", opened.state.version, ", but 13.0 is needed (", opened.state.file, "); ", cure_of(kRow));
      return opened;
    }
  }
  if (!taker.missing().empty()) opened.state.problem = cat("CUPTI has no ", taker.missing(), " (", opened.state.file, "); ", cure_of(kRow));
  return opened;
}

const Cupti& cupti() {
  static const Cupti kOpened = open_cupti(library_folders());
  return kOpened;
}

}  // namespace galley::cuda::cupti
