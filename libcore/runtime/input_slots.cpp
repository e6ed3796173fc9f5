#include "libcore/runtime/input_slots.h"

namespace galley {

InputSlots::InputSlots(Device& device, Stream& copies, const TensorType& type) : copies_(copies), bytes_(type.bytes()) {
  for (Slot& slot : slots_) {
    slot.host = Tensor(type.dtype, type.shape, type.format, Storage::allocate_host(bytes_, device));
    slot.device = Storage::allocate(bytes_, device);
    slot.arrived = device.make_event();
    slot.taken = device.make_event();
  }
}

InputSlots::~InputSlots() {
  for (const Slot& slot : slots_) {
    try {
      slot.arrived->synchronize();
      slot.taken->synchronize();
    } catch (const std::exception&) {  // of a lost device, which copies nothing any more
    }
  }
}

Tensor& InputSlots::next() {
  slots_[current_].arrived->synchronize();
  return slots_[current_].host;
}

void InputSlots::send(Stream& stream, void* to) {
  Slot& slot = slots_[current_];
  copies_.wait(*slot.taken);
  copies_.copy(slot.device->address(), slot.host.data(), bytes_);
  copies_.record(*slot.arrived);
  stream.wait(*slot.arrived);
  stream.copy(to, slot.device->address(), bytes_);
  stream.record(*slot.taken);
  current_ = 1 - current_;
}

}  // namespace galley
