#pragma once
// The kernels of this build (kernels/) on a GPU, and their launches.

#include <array>

#include "libcore/backends/cuda/device.h"

namespace galley {

/// The architectures for which this build has kernels, "80, 90, 100"; empty: it was built without nvcc.
std::string_view cuda_architectures();

/// Loads the kernels, unless they are. Throws Error (kResource) if the build has none that this GPU can run.
void load_cuda_kernels(CudaDevice& device);

/// Enqueues a kernel of kernels/list.h with `blocks` blocks of device::kThreads threads; none if `blocks` is 0. Throws Error (kResource) if
/// the driver refuses it.
void cuda_launch(Stream& stream, const char* kernel, int64_t blocks, void** arguments);
/// The same of another kernel; `name`: for the message.
void cuda_launch(Stream& stream, cuda::KernelHandle kernel, const char* name, int64_t blocks, void** arguments);
template <class... A>
void cuda_launch(Stream& stream, const char* kernel, int64_t blocks, const A&... arguments) {
  std::array<void*, sizeof...(A)> addresses{const_cast<void*>(static_cast<const void*>(&arguments))...};
  cuda_launch(stream, kernel, blocks, addresses.data());
}

/// The number of blocks whose threads share so many elements.
int64_t cuda_blocks(const Stream& stream, int64_t elements);

}  // namespace galley
