#pragma once
// ScalarBlock: the small fed inputs of a program (learning rates, step, random key) as one block of device memory, so that a run copies
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

/// The host writes one of two pinned copies while the device may still read the other.
class ScalarBlock {
 public:
  /// Inputs of at most this many bytes belong to the block.
  static constexpr int64_t kLargest = 64;

  /// Takes in every fed input of rank 0 or 1 and at most kLargest bytes.
  ScalarBlock(const Graph& graph, Device& device);

  bool has(ValueId id) const { return slots_.count(id) > 0; }
  /// Writes the values for the following runs; `bytes` must be the input's.
  void set(ValueId id, std::span<const std::byte> bytes);
  /// The first input that has no values yet, or kNoValue.
  ValueId missing() const;
  /// The values set last, in host memory.
  Tensor values(ValueId id) const;
  /// Enqueues the copy of all values, if any changed since the last time.
  void enqueue(Stream& stream);
  /// Address on the device, the same for the block's life.
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
