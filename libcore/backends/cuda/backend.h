#pragma once
// The CUDA back end: kernels on an NVIDIA GPU.

#include "libcore/backends/backend.h"

namespace galley {

/// Throws Error (kResource) if there is no driver, no GPU, or no kernels for it.
std::unique_ptr<Backend> open_cuda(const BackendOptions& options);

/// The state of the driver and of the kernels of this build, in one line. Never throws.
std::string cuda_requirements();

}  // namespace galley
