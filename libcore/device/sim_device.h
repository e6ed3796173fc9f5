#pragma once
// The sim device: tests use it on every machine to show that no code assumes host memory or synchronous kernels. It has its own heap, which
// the host can access only while a stream of the device executes (protection is process-wide). Each stream is a thread that runs its work
// in order, with CUDA's semantics. Device addresses equal host addresses, so kernels are host code. It is slower than the host's device.

#include <functional>

#include "libcore/device/device.h"

namespace galley {

/// The sim device. The first call creates it. Throws Error (kResource) if its address space cannot be reserved.
Device& sim_device();

/// Enqueues host code on a stream of the sim device. The code may read and write the device's memory. If it throws a std::exception, the
/// stream's next `synchronize` rethrows it; work that was enqueued in between is dropped.
void sim_enqueue(Stream& stream, std::function<void()> work);

}  // namespace galley
