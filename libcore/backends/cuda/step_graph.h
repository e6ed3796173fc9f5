#pragma once
// Replays the kernels of a bound program as one CUDA graph.

#include <memory>

#include "libcore/backends/cuda/device.h"
#include "libcore/backends/runner.h"

namespace galley {

/// Runs twice one kernel after the other, since the first run of a kernel may load code and choose algorithms; then records the kernels and
/// replays the record. A program that cannot be recorded runs on one by one, and the reason is logged. With the environment variable
/// GALLEY_CUDA_EAGER=1 nothing is recorded, and each kernel is waited for, so that an error of a kernel names its module. Optimizer steps
/// that follow one another run in one launch (joined_updates.h).
std::unique_ptr<Runner> step_graph(CudaDevice& device, const BoundProgram& program);

}  // namespace galley
