#pragma once
// The machine's limits with which results are compared: stored by `galley-benchmark machine`, otherwise measured.

#include <string>

#include "libcore/runtime/machine.h"

namespace galley {

/// The file in which `galley-benchmark machine` stores its result: $XDG_CACHE_HOME/galley/machine-<host>-<threads>.json
std::string machine_store(int threads);
/// The limits from that store, or measured in half a second; cached for the process.
MachineLimits machine_limits(int threads);
/// "183 GFLOP/s (avx2) and 43 GB/s", with the rates of other data types that the work uses.
std::string limits_text(const MachineLimits& limits, const Arithmetic& work);

}  // namespace galley
