#pragma once
// Memory use during a program, by category, for each node; computed from the plan (lifetimes and offsets).

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
  kInputs,       // fed inputs
  kPrepared,     // packed or folded weights
  kActivations,  // outputs of the forward pass, also when recomputed
  kGradients,    // outputs of the backward pass and of updates
  kWorkspace,    // scratch memory of kernels
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
  /// Total planned memory: named values, packed weights and the arena. The arena is at least as large as the largest sum of its live
  /// values; the difference is fragmentation.
  int64_t planned_bytes = 0;
  int64_t arena_bytes = 0, arena_live_bytes = 0;  // live: the largest sum of live values over the steps
};

MemoryTimeline memory_timeline(const Program& program);

/// For each node, whether it is a clone of a forward node that the recompute pass added to the backward pass: it has the operator and
/// module of a forward node and depends on no gradient.
std::vector<bool> recomputed_nodes(const Graph& graph);

}  // namespace galley
