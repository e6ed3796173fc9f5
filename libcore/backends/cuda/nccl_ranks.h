#pragma once
// Collectives between the GPUs of ranks by NCCL. Each rank is a process with a GPU of its own.

#include <memory>

#include "libcore/backends/cuda/device.h"
#include "libcore/comm/device_ranks.h"

namespace galley {

/// Connects the GPUs of all ranks, each of which calls it. Collectives run on a stream of their own, which events order with that of the
/// program, so that they can be recorded with it. While a thread waits for the GPU, errors of NCCL are asked for: they end its work and are
/// thrown as Error (kWorker). Throws Error (kResource) without NCCL. `ranks` must outlive the result. `before`: an earlier result for the
/// same GPU, or nullptr: collectives of both run on one stream, in the order in which they are started, because those of several
/// communicators may wait for each other in a circle otherwise.
std::unique_ptr<DeviceRanks> connect_nccl(CudaDevice& device, Communicator& ranks, DeviceRanks* before = nullptr);

}  // namespace galley
