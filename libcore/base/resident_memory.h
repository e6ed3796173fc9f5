#pragma once
// Memory that this process holds.

#include <cstdint>

namespace galley {

/// Resident memory of this process now and at most so far, in bytes (VmRSS and VmHWM of the system); 0 where the system does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Lets the system count the high-water mark from here on.
void reset_peak_resident_bytes();

}  // namespace galley
