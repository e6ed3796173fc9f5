#pragma once
// Stream: an ordered queue of work on a device. Kernels and copies are enqueued; the host waits only where it says so.

#include <cstddef>
#include <cstdint>

namespace galley {

/// Work of one stream runs in the order in which it was enqueued. Streams are ordered among each other by events alone.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Enqueues a copy of `bytes` bytes between any two memories of the device and the host.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Enqueues setting `bytes` bytes to `value`.
  virtual void fill(void* to, uint8_t value, int64_t bytes) = 0;
  /// Waits until all work enqueued so far has run. Throws the first error of that work since the last call.
  virtual void synchronize() = 0;
};

/// The host's stream: a call has run when it returns.
Stream& host_stream();

}  // namespace galley
