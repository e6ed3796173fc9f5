#pragma once
// Kernels of chains of element-wise functions that NVRTC compiles when a program is prepared: one for each sequence, type and form of the
// operands. Their text is generated from the call; the functions are those of ops/elementwise_functions.h, whose text is in the binary.

#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/vendor/cuda/nvrtc.h"

namespace galley {

/// How many elements a thread of the compiled kernel computes at once: 16 bytes, if all operands have them one after the other, or the
/// same one.
int chain_width(const device::ChainCall& call);

/// The text of a kernel `chain` for such calls: it computes what chain_elements (kernels/chain.h) does. Addresses must be multiples of 16
/// bytes. Calls that differ in sizes, steps other than 0 and 1, and numbers of functions have the same text, as far as chain_width is
/// equal.
std::string chain_source(const device::ChainCall& call);

/// What the compiler makes of such a text for an architecture (90): an image for the driver. Throws Error (kInternal) with its messages.
std::string compile_for_gpu(const cuda::nvrtc::Nvrtc& compiler, const std::string& source, int architecture);

/// The kernel of calls with that text on a GPU, compiled once, or from the plan cache; nullptr: NVRTC is not installed or fails, which is
/// logged.
cuda::KernelHandle compiled_chain(const CudaDevice& device, const device::ChainCall& call);

/// A call whose addresses are set, by that kernel, if they are multiples of 16 bytes; false: they are not, and nothing was launched.
bool launch_compiled(Stream& stream, cuda::KernelHandle kernel, const device::ChainCall& call);

}  // namespace galley
