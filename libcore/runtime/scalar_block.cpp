#include "libcore/runtime/scalar_block.h"

#include <cstring>

namespace galley {
namespace {
constexpr int64_t kAlignment = 64;  // alignment that kernels may assume
}

ScalarBlock::ScalarBlock(const Graph& graph, Device& device) {
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role != ValueRole::kInput || info.type.shape.rank() > 1 || info.type.bytes() > kLargest) continue;
    slots_[id] = {.type = info.type, .offset = bytes_};
    bytes_ += kAlignment;
  }
  if (bytes_ == 0) return;
  device_ = Storage::allocate(bytes_, device);
  for (size_t i = 0; i < host_.size(); ++i) {
    host_[i] = Storage::allocate_host(bytes_, device);
    copied_[i] = device.make_event();
  }
}

ScalarBlock::~ScalarBlock() {
  for (const std::unique_ptr<Event>& copied : copied_) {
    try {
      if (copied != nullptr) copied->synchronize();
    } catch (const std::exception&) {  // of a lost device, which reads nothing any more
    }
  }
}

std::byte* ScalarBlock::writable() {
  if (!changed_) {
    // The device may still read the current copy, so the other copy is updated with its values.
    const size_t other = 1 - current_;
    copied_[other]->synchronize();
    std::memcpy(host_[other]->data(), host_[current_]->data(), static_cast<size_t>(bytes_));
    current_ = other;
    changed_ = true;
  }
  return host_[current_]->data();
}

void ScalarBlock::set(ValueId id, std::span<const std::byte> bytes) {
  Slot& slot = slots_.at(id);
  GALLEY_ASSERT(static_cast<int64_t>(bytes.size()) == slot.type.bytes());
  if (!bytes.empty()) std::memcpy(writable() + slot.offset, bytes.data(), bytes.size());
  slot.set = true;
}

ValueId ScalarBlock::missing() const {
  for (const auto& [id, slot] : slots_) {
    if (!slot.set) return id;
  }
  return kNoValue;
}

Tensor ScalarBlock::values(ValueId id) const {
  const Slot& slot = slots_.at(id);
  Tensor values(slot.type.dtype, slot.type.shape);
  std::memcpy(values.data(), host_[current_]->data() + slot.offset, static_cast<size_t>(values.bytes()));
  return values;
}

void ScalarBlock::enqueue(Stream& stream) {
  if (!changed_) return;
  stream.copy(device_->address(), host_[current_]->data(), bytes_);
  stream.record(*copied_[current_]);
  changed_ = false;
}

std::byte* ScalarBlock::address(ValueId id) const { return device_->address() + slots_.at(id).offset; }

}  // namespace galley
