#pragma once
// Device: memory, streams and events of one processor.

#include <memory>
#include <string_view>

#include "libcore/device/memory.h"
#include "libcore/device/stream.h"

namespace galley {

/// A device lives as long as the program. It may be used from any thread.
class Device {
 public:
  virtual ~Device() = default;
  /// Name in recipes: "cpu", "sim".
  virtual std::string_view name() const = 0;
  /// The memory that kernels read and write.
  virtual Memory& memory() = 0;
  /// Pinned host memory: streams of this device copy to and from it directly.
  virtual Memory& host_memory() = 0;
  /// The default stream.
  virtual Stream& stream() = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  /// Whether the host can read and write the device's memory by address.
  bool is_host() { return memory().host_access(); }
};

/// The processor that runs this program.
Device& host_device();

}  // namespace galley
