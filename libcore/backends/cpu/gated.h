#pragma once
// Updates with a gate.

#include <memory>

#include "libcore/backends/kernel.h"

namespace galley {

/// The kernel of an update; where its gate input is given, one that runs it only while the gate is open and otherwise leaves the state as
/// it is.
std::unique_ptr<PreparedKernel> gated(const KernelQuery& query, std::unique_ptr<PreparedKernel> kernel);

}  // namespace galley
