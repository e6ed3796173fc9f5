#pragma once
// Plans of vendor libraries on the disk, so that the next run need not choose and compile them again: a file for each plan, in the folder
// that GALLEY_CUDA_PLANS names, or galley/cuda-plans in $XDG_CACHE_HOME or ~/.cache. "none": plans are not kept.

#include <optional>
#include <string>
#include <string_view>

#include "libcore/backends/cuda/device.h"

namespace galley {

/// What a plan depends on: the GPU, the driver, the library with its version, and what it computes.
std::string plan_key(const CudaDevice& device, const cuda::LibraryState& library, const std::string& form);

/// The plan that was stored for a key; nullopt: none. A damaged file is logged and ignored.
std::optional<std::string> stored_plan(const std::string& key);
/// Stores a plan, atomically. A folder that cannot be written is logged once.
void store_plan(const std::string& key, std::string_view plan);

}  // namespace galley
