#pragma once
// Stream: an ordered queue of work on a device. Kernels and copies are enqueued; the host waits only where it calls a function that waits.
// Event: a point in a stream that the host or another stream can wait for.

#include <cstddef>
#include <cstdint>

namespace galley {

class Device;

/// A point in a stream. May be recorded again: the new record replaces the last.
class Event {
 public:
  virtual ~Event() = default;
  /// Has all work before the last record run? True for an event that was never recorded.
  virtual bool done() const = 0;
  /// Waits until `done`. Errors of that work stay with its stream.
  virtual void synchronize() = 0;
  /// The time at which the stream reached the last record, in nanoseconds of the device's steady clock: differences between events of one
  /// device are durations. Waits for the record. 0 for an event that was never recorded.
  virtual int64_t time_ns() = 0;
};

/// Work of one stream runs in the order in which it was enqueued. Only events order work of different streams.
/// One thread at a time may call it.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  /// Enqueues a copy of `bytes` bytes between any two memories of the device and the host. Host memory must stay valid until the copy has
  /// run if it is `Device::host_memory`; other host memory may be reused on return, and a copy to it has run on return.
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

/// The host's stream: a call has run when it returns, and throws its own errors. Any number of threads may use it.
Stream& host_stream();

}  // namespace galley
