#pragma once
// ScalarBlock: the small fed inputs of a program (learning rates, step, random keys) in one block of device memory, so that a run copies
// them at once.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "libcore/device/device.h"
#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The host writes one of two pinned copies; the device may still read the other.
class ScalarBlock {
 public:
  /// Inputs of at most this many bytes belong to the block.
  static constexpr int64_t kLargest = 64;

  /// Holds every fed input of rank 0 or 1 with at most kLargest bytes.
  ScalarBlock(const Graph& graph, Device& device);

  bool has(ValueId id) const { return slots_.count(id) > 0; }
  /// Sets the values for the following runs; `bytes` must have the size of the input.
  void set(ValueId id, std::span<const std::byte> bytes);
  /// The first input that has no values yet, or kNoValue.
  ValueId missing() const;
  /// The latest values, in host memory.
  Tensor values(ValueId id) const;
  /// Enqueues the copy of all values if any changed since the last call.
  void enqueue(Stream& stream);
  /// Address on the device; it does not change.
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
  size_t current_ = 0;    // the copy that holds the latest values
  bool changed_ = false;  // since it was enqueued
};

}  // namespace galley
