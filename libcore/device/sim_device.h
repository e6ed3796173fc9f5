#pragma once
// The sim device: shows on every machine that nothing assumes host memory or synchronous kernels. Its memory is a heap of its own, which
// the host can touch only while one of the device's streams executes (protection is process-wide); each stream is a thread that runs its
// work in order, with CUDA's semantics. Addresses are the same on both sides, so kernels are host code. For tests: it is slower than the
// host's device.

#include <functional>

#include "libcore/device/device.h"

namespace galley {

/// Opened by the first call. Throws Error (kResource) if its address space cannot be reserved.
Device& sim_device();

/// Enqueues host code on a stream of the sim device. It may read and write the device's memory. An exception that it throws
/// (std::exception) surfaces at the stream's next synchronize; work enqueued after it is dropped until then.
void sim_enqueue(Stream& stream, std::function<void()> work);

}  // namespace galley
