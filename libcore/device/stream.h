#pragma once
// Stream: an ordered queue of work on a device. Kernels and copies are enqueued. The host waits only in functions that are documented to
// wait.
// Event: a point in a stream that the host or another stream can wait for.

#include <cstddef>
#include <cstdint>

namespace galley {

class Device;

/// A point in a stream. Recording it again replaces the previous record.
class Event {
 public:
  virtual ~Event() = default;
  /// Whether all work before the last record has run. True for an event that was never recorded.
  virtual bool done() const = 0;
  /// Waits until `done`. Errors of that work are reported by its stream.
  virtual void synchronize() = 0;
  /// The time at which the stream reached the last record, in nanoseconds of the device's steady clock. Differences between events of one
  /// device are durations. Waits for the record. 0 for an event that was never recorded.
  virtual int64_t time_ns() = 0;
};

/// Work of one stream runs in the order in which it was enqueued. Only events order work of different streams. A stream must not be used by
/// several threads at the same time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  /// Enqueues a copy of `bytes` bytes between any two memories of the device and the host. Memory from `Device::host_memory` must stay
  /// valid until the copy has run. Other host memory may be reused when the call returns, and a copy to it has then finished.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Enqueues setting `bytes` bytes to `value`.
  virtual void fill(void* to, uint8_t value, int64_t bytes) = 0;
  /// Records an event: it is done when all work enqueued so far has run.
  virtual void record(Event& event) = 0;
  /// Work enqueued from now on runs after the last record of the event, which may be of another stream of the device.
  virtual void wait(const Event& event) = 0;
  /// Waits until all work enqueued so far has run. Throws the first error of that work since the last call.
  virtual void synchronize() = 0;
};

/// The host's stream. Each call runs its work before it returns, and throws its own errors. Any number of threads may use it.
Stream& host_stream();

}  // namespace galley
