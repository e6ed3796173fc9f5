#pragma once
// DeviceRanks: collectives between arrays in the memory of devices, of which each rank has one. Streams run them; the host does not wait.

#include <string>

#include "libcore/comm/communicator.h"
#include "libcore/device/stream.h"

namespace galley {

/// The data plane of ranks with devices. Every rank starts the same collectives in the same order. One thread of a rank uses it.
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  /// "NCCL 2.28.9"
  virtual std::string transport() const = 0;
  /// Enqueues a collective, whose arrays are in the device's memory. It begins when the earlier work of `stream` has ended. Throws Error
  /// (kWorker) if another rank failed.
  virtual void start(const Collective& call, Stream& stream) = 0;
  /// Later work of `stream` begins when the collective whose output is at this address has ended. Each is waited for once.
  virtual void wait(const void* output, Stream& stream) = 0;
  /// Forgets the arrays of all collectives so far. Called before their memory is freed, when no collective is under way.
  virtual void release() = 0;
};

}  // namespace galley
