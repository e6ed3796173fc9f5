#pragma once
// The machine's limits beside which results stand: what `galley-benchmark machine` stored, else measured now.

#include <string>

#include "libcore/runtime/machine.h"

namespace galley {

/// Where `galley-benchmark machine` stores its result: $XDG_CACHE_HOME/galley/machine-<host>-<threads>.json
std::string machine_store(int threads);
/// From that store, else measured in half a second; remembered for the process.
MachineLimits machine_limits(int threads);
/// "183 GFLOP/s (avx2) and 43 GB/s", with the rates of the other types that the work has.
std::string limits_text(const MachineLimits& limits, const Arithmetic& work);

}  // namespace galley
