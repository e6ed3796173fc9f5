#pragma once
// The sim device: shows on every machine that no code assumes host memory or synchronous kernels. It has a heap of its own, which the host
// can access only while a stream of the device executes (protection is process-wide). Each stream is a thread that runs its work in order,
// with CUDA's semantics. Device addresses equal host addresses, so kernels are host code. For tests: it is slower than the host's
// device.

#include <functional>

#include "libcore/device/device.h"

namespace galley {

/// The first call opens it. Throws Error (kResource) if its address space cannot be reserved.
Device& sim_device();

/// Enqueues host code on a stream of the sim device. It may read and write the device's memory. An exception that it throws
/// (std::exception) is thrown by the stream's next `synchronize`; work enqueued before that is dropped.
void sim_enqueue(Stream& stream, std::function<void()> work);

}  // namespace galley
