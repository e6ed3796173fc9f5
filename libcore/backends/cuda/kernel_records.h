#pragma once
// The kernels that a GPU ran, by CUPTI (vendor/cuda/cupti.h).

#include "libcore/backends/kernel_records.h"

namespace galley {

/// Begins to record. Null: CUPTI is missing or refuses, for the reason `why`.
std::unique_ptr<KernelRecords> record_cuda_kernels(std::string& why);

}  // namespace galley
