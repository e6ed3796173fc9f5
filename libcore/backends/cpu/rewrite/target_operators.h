#pragma once
// The operators that only the CPU back end has.

namespace galley {

/// Registers them, once.
void ensure_cpu_operators();

}  // namespace galley
