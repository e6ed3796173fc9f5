#pragma once
// Host memory for arrays that are kept and read often, as weights are: in huge pages where the system gives them, since translating
// addresses page by page halves the rate at which one thread reads (docs/performance/notes.md#weights-stored-as-integers).

#include <cstdint>

#include "libcore/device/device.h"

namespace galley {

/// `device`, or for the host a device that differs in its memory only.
Device& device_of_kept_arrays(Device& device);

/// While it exists, arrays that this thread allocates of that memory lie side by side if they are smaller than a huge page. A freed one
/// gives its pages back.
class KeptArrays {
 public:
  /// `bytes`: of all these arrays (see kept_bytes).
  KeptArrays(Device& device, int64_t bytes);
  ~KeptArrays();
  KeptArrays(const KeptArrays&) = delete;
  KeptArrays& operator=(const KeptArrays&) = delete;

 private:
  bool opened_ = false;
};

/// What an array of `bytes` bytes takes of such memory: 0 of those that are allocated alone.
int64_t kept_bytes(int64_t bytes);

}  // namespace galley
