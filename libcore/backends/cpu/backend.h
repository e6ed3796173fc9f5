#pragma once
// The CPU back end: own kernels, those of oneDNN where the build has it, and the references.

#include "libcore/backends/backend.h"

namespace galley {

std::unique_ptr<Backend> open_cpu(const BackendOptions& options);

/// The libraries that it uses, in one line.
std::string cpu_requirements();

}  // namespace galley
