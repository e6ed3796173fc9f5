#pragma once
// The sim back end: the reference kernels on the sim device (device/sim_device.h). For tests.

#include "libcore/backends/backend.h"

namespace galley {

std::unique_ptr<Backend> open_sim(const BackendOptions& options);

}  // namespace galley
