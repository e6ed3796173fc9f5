#pragma once
// ScalarBlock: the small fed inputs of a program (learning rates, step, random keys) in one block of device memory, so that a run copies
// them together.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "libcore/device/device.h"
#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// Keeps two pinned copies. The host writes one while the device may still read the other.
class ScalarBlock {
 public:
  /// Largest size of an input in the block, in bytes.
  static constexpr int64_t kLargest = 64;

  /// Contains every fed input of rank 0 or 1 with at most kLargest bytes.
  ScalarBlock(const Graph& graph, Device& device);
  /// Waits until the device has read both copies.
  ~ScalarBlock();
  ScalarBlock(const ScalarBlock&) = delete;
  ScalarBlock& operator=(const ScalarBlock&) = delete;

  bool has(ValueId id) const { return slots_.count(id) > 0; }
  /// Sets the values for the following runs. `bytes` must have the size of the input.
  void set(ValueId id, std::span<const std::byte> bytes);
  /// The first input whose values were never set, or kNoValue.
  ValueId missing() const;
  /// The latest values, in host memory.
  Tensor values(ValueId id) const;
  /// Enqueues a copy of all values to the device if any has changed since the last call.
  void enqueue(Stream& stream);
  /// Address on the device. It does not change.
  std::byte* address(ValueId id) const;

 private:
  struct Slot {
    TensorType type;
    int64_t offset = 0;
    bool set = false;
  };
  std::byte* writable();

  std::map<ValueId, Slot> slots_;
  int64_t bytes_ = 0;
  std::shared_ptr<Storage> device_;
  std::array<std::shared_ptr<Storage>, 2> host_;
  std::array<std::unique_ptr<Event>, 2> copied_;
  size_t current_ = 0;    // index of the copy with the latest values
  bool changed_ = false;  // since the last enqueue
};

}  // namespace galley
