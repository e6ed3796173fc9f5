#pragma once
// DiskDevice: the host, with arrays in memory-mapped files.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "libcore/device/device.h"

namespace galley {

/// Each array is a mapping of a file of its own, which has no name: it ends with the process. Pages that were used stay in memory until
/// `release`, or until the system needs the memory.
class DiskDevice : public Device {
 public:
  /// `path`: files are on the file system of this folder, or of the nearest one above that exists.
  explicit DiskDevice(const std::string& path);
  ~DiskDevice() override;

  std::string_view name() const override { return "disk"; }
  Memory& memory() override;
  Memory& host_memory() override { return host_device().host_memory(); }
  Stream& stream() override { return host_device().stream(); }
  std::unique_ptr<Stream> make_stream() override { return host_device().make_stream(); }
  std::unique_ptr<Event> make_event() override { return host_device().make_event(); }

  /// Takes the pages of all arrays out of this process; the system writes them to the disk. Arrays may be in use:
  /// their pages come back.
  void release();
  /// Bytes of all arrays.
  int64_t bytes() const;

 private:
  class Mapped;
  std::unique_ptr<Mapped> memory_;
};

}  // namespace galley
