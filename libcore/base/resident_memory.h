#pragma once
// Resident memory of this process.

#include <cstdint>

namespace galley {

/// Current and peak resident memory of this process in bytes (VmRSS and VmHWM); 0 if the system does not report it.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Resets the peak to the current value.
void reset_peak_resident_bytes();

}  // namespace galley
