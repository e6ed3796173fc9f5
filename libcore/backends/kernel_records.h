#pragma once
// KernelRecords: when a device ran each kernel and copy, as its profiling library records them. A node may launch several kernels, some of
// them of libraries.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libcore/device/device.h"

namespace galley {

/// A kernel or a copy. Times are nanoseconds of the steady clock.
struct KernelRecord {
  std::string name;      ///< "conv2d_direct", "copy to the device, 38 MiB"
  int64_t region = -1;   ///< In which it was enqueued; -1: in none.
  bool is_copy = false;  ///< Between memories, not a kernel.
  int64_t begin_ns = 0, end_ns = 0;
};

/// Records what one host thread enqueues on a device.
class KernelRecords {
 public:
  virtual ~KernelRecords() = default;
  /// What the thread enqueues until leave() is of that region, a number of 0 and more.
  virtual void enter(int64_t region) = 0;
  virtual void leave() = 0;
  /// The records since the last call, by begin. The work of all regions must have run.
  virtual std::vector<KernelRecord> take() = 0;
  /// The library and its version: "CUPTI 13.0.1".
  virtual std::string source() const = 0;
};

/// Begins to record the kernels of a device. Null: it cannot, for the reason `why`, empty for a device that runs kernels when they are
/// enqueued. One object at a time may exist for a device.
std::unique_ptr<KernelRecords> record_kernels(Device& device, std::string& why);

}  // namespace galley
