#pragma once
// What lies in memory while a program runs, by what it is for: from the plan (lifetimes and offsets), node by node.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "libcore/runtime/program.h"

namespace galley {

enum class MemoryCategory : uint8_t {
  kParameters,
  kBuffers,      // running statistics
  kState,        // optimizer moments, averages, accumulated gradients
  kInputs,       // what is fed
  kPrepared,     // packed or folded weights
  kActivations,  // made by the forward pass, or made again for the backward pass
  kGradients,    // made by the backward pass and by updates
  kWorkspace,    // scratch of kernels
};
inline constexpr size_t kMemoryCategories = 8;
std::string_view category_name(MemoryCategory category);

using MemorySizes = std::array<int64_t, kMemoryCategories>;
int64_t total(const MemorySizes& sizes);

struct MemoryTimeline {
  /// Live bytes while each of Program::steps() runs.
  std::vector<MemorySizes> steps;
  /// The step with the largest total; 0 for an empty program.
  size_t peak = 0;
  /// What the plan takes for the whole run: named values, packed weights and the arena. The arena is at least the largest sum of its
  /// live values; the difference is fragmentation.
  int64_t planned_bytes = 0;
  int64_t arena_bytes = 0, arena_live_bytes = 0;  // live: the largest sum over steps
};

MemoryTimeline memory_timeline(const Program& program);

/// By node: is it a clone of a forward node that the recompute pass put into the backward pass? It is of the same operator and module
/// and depends on no gradient.
std::vector<bool> recomputed_nodes(const Graph& graph);

}  // namespace galley
