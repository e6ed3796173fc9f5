#pragma once
// InputSlots: the way of a fed array to a device. The host fills one pinned slot while the device still copies or reads the other, so the
// copy of the next batch runs beside the step of this one.

#include <array>
#include <memory>

#include "libcore/device/device.h"
#include "libcore/graph/tensor_type.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// Two slots of pinned host memory and two of device memory for arrays of one type.
class InputSlots {
 public:
  /// `copies`: the stream of the copies to the device, apart from that of the programs. It must outlive the object.
  InputSlots(Device& device, Stream& copies, const TensorType& type);
  ~InputSlots();
  InputSlots(const InputSlots&) = delete;
  InputSlots& operator=(const InputSlots&) = delete;

  /// The array to fill next. Waits until its last values have left the host.
  Tensor& next();
  /// Enqueues the copy of that array to the device, and on `stream` its copy to `to`, which earlier work of `stream` may still read.
  void send(Stream& stream, void* to);

 private:
  struct Slot {
    Tensor host;
    std::shared_ptr<Storage> device;
    std::unique_ptr<Event> arrived, taken;  // on the device; by `stream`
  };
  Stream& copies_;
  int64_t bytes_;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
};

}  // namespace galley
