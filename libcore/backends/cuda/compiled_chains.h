#pragma once
// Kernels of chains of element-wise functions that NVRTC compiles when a program is prepared: one for each sequence, type and form of the
// operands. Their text is generated from the call; the functions are those of ops/elementwise_functions.h, whose text is in the binary.

#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/vendor/cuda/nvrtc.h"

namespace galley {

/// The text of a kernel `chain` of one ChainCall, from which it takes the addresses: it computes what chain_elements (kernels/chain.h)
/// does. Addresses must be multiples of 16 bytes.
std::string chain_source(const device::ChainCall& call);

/// What the compiler makes of such a text for an architecture (90): an image for the driver. Throws Error (kInternal) with its messages.
std::string compile_for_gpu(const cuda::nvrtc::Nvrtc& compiler, const std::string& source, int architecture);

/// The kernel of a chain on a GPU, compiled once, or from the plan cache; nullptr: NVRTC is not installed or fails, which is logged.
cuda::KernelHandle compiled_chain(const CudaDevice& device, const device::ChainCall& call);

}  // namespace galley
