#pragma once
// The machine's limits with which results are compared: stored by `galley-benchmark machine`, otherwise measured.

#include <string>
#include <string_view>

#include "libcore/runtime/machine.h"

namespace galley {

/// The file in which `galley-benchmark machine` stores its result: $XDG_CACHE_HOME/galley/machine-<host>-<threads>.json
std::string machine_store(int threads);
/// The same for `galley-benchmark machine device=cuda`: machine-<host>-cuda.json
std::string machine_store(std::string_view device);
/// The limits from that store, or measured in half a second; cached for the process. `device` as in recipes: a GPU has limits of its own,
/// which are measured in a few seconds.
MachineLimits machine_limits(int threads, std::string_view device = "cpu");
/// "183 GFLOP/s (avx2) and 43 GB/s", with the rates of other data types that the work uses.
std::string limits_text(const MachineLimits& limits, const Arithmetic& work);

}  // namespace galley
