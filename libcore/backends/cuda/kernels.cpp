#include "libcore/backends/cuda/kernels.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/backends/cuda/kernels/list.h"
#include "libcore/base/error.h"

#ifdef GALLEY_CUDA_IMAGE
// The file that nvcc made of kernels/kernels.cu.
__asm__(
    ".section .rodata\n"
    ".balign 64\n"
    "galley_cuda_image:\n"
    ".incbin \"" GALLEY_CUDA_IMAGE
    "\"\n"
    ".previous\n");
extern "C" const unsigned char galley_cuda_image[] __attribute__((visibility("hidden")));
#else
#define GALLEY_CUDA_ARCHITECTURES ""
constexpr unsigned char galley_cuda_image[] = "no kernels";  // a driver refuses it
#endif

namespace galley {
namespace {

cuda::LibraryHandle load_image(const CudaDevice& device) {
  device.make_current();
  cuda::LibraryHandle library = nullptr;
  const cuda::Result result = cuda::driver().cuLibraryLoadData(&library, galley_cuda_image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result == cuda::kSuccess) return library;
  if (cuda_architectures().empty()) {
    throw Error(ErrorCode::kResource, "device cuda: this build has no CUDA kernels, since nvcc was not found when it was configured")
        .key("device")
        .suggest("scripts/setup --cuda installs nvcc 13.0; then build again");
  }
  if (result == cuda::kNoKernelImage) {
    throw Error(ErrorCode::kResource, cat("device cuda: ", device.facts().name, " has compute capability ", device.facts().capability / 10,
                                          ".", device.facts().capability % 10, ", but this build has kernels for ", cuda_architectures()))
        .key("device")
        .suggest(cat("build with -DGALLEY_CUDA_ARCHITECTURES=", device.facts().capability));
  }
  cuda::check(result, "loading the kernels");
  return library;
}

/// The kernels of the build on one GPU.
class Kernels {
 public:
  explicit Kernels(const CudaDevice& device) {
    const cuda::LibraryHandle image = load_image(device);
    const auto find = [&](const char* name) {
      cuda::KernelHandle kernel = nullptr;
      cuda::check(cuda::driver().cuLibraryGetKernel(&kernel, image, name), cat("finding the kernel ", name));
      handles_[name] = kernel;
    };
#define GALLEY_FIND(name) find(#name);
    GALLEY_CUDA_KERNELS(GALLEY_FIND)
#undef GALLEY_FIND
  }
  cuda::KernelHandle at(std::string_view name) const {
    const auto found = handles_.find(name);
    GALLEY_ASSERT(found != handles_.end(), "kernels/list.h has no ", name);
    return found->second;
  }

 private:
  std::map<std::string, cuda::KernelHandle, std::less<>> handles_;
};

const Kernels& kernels_of(const CudaDevice& device) {
  static std::mutex mutex;
  static std::map<const CudaDevice*, Kernels> loaded;
  const std::lock_guard lock(mutex);
  auto found = loaded.find(&device);
  if (found == loaded.end()) found = loaded.emplace(&device, Kernels(device)).first;
  return found->second;
}

}  // namespace

std::string_view cuda_architectures() { return GALLEY_CUDA_ARCHITECTURES; }

void load_cuda_kernels(CudaDevice& device) { kernels_of(device); }

void cuda_launch(Stream& stream, const char* kernel, int64_t blocks, void** arguments) {
  if (blocks > 0) cuda_launch(stream, kernels_of(static_cast<CudaDevice&>(stream.device())).at(kernel), kernel, blocks, arguments);
}
void cuda_launch(Stream& stream, cuda::KernelHandle kernel, const char* name, int64_t blocks, void** arguments) {
  if (blocks <= 0) return;
  GALLEY_ASSERT(blocks <= 0x7fffffff, name, ": ", blocks, " blocks");
  static_cast<CudaDevice&>(stream.device()).make_current();
  cuda::check(cuda::driver().cuLaunchKernel(kernel, static_cast<unsigned>(blocks), 1, 1, device::kThreads, 1, 1, 0, cuda_stream(stream),
                                            arguments, nullptr),
              cat("starting the kernel ", name));
}

int64_t cuda_blocks(const Stream& stream, int64_t elements) {
  constexpr int64_t kBlocksPerProcessor = 16;  // twice what a processor holds at once
  const int64_t processors = static_cast<CudaDevice&>(stream.device()).facts().processors;
  return std::min((elements + device::kThreads - 1) / device::kThreads, processors * kBlocksPerProcessor);
}

}  // namespace galley
