#pragma once
// Collectives between the GPUs of ranks by NCCL. Each rank is a process with a GPU of its own.

#include <memory>

#include "libcore/backends/cuda/device.h"
#include "libcore/comm/device_ranks.h"

namespace galley {

/// Connects the GPUs of all ranks, each of which calls it. Collectives run on a stream of their own, which events order with that of the
/// program, so that they can be recorded with it. While a thread waits for the GPU, errors of NCCL are asked for: they end its work and are
/// thrown as Error (kWorker). Throws Error (kResource) without NCCL. `ranks` must outlive the result.
std::unique_ptr<DeviceRanks> connect_nccl(CudaDevice& device, Communicator& ranks);

}  // namespace galley
