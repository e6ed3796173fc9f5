#pragma once
// The memory plan: an offset for every value, computed before the first run. Values that nodes compute share one arena by their lifetimes;
// named inputs that persist between runs (parameters, buffers, state) belong to the caller.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// Where a value is stored.
struct MemorySlot {
  enum class Region : uint8_t { kNone, kNamed, kArena, kPrepared, kResult, kCommon } region = Region::kNone;
  ValueId named = kNoValue;  // kNamed: the input whose memory it is (itself, or the state it updates)
  int64_t offset = 0;        // kArena, kPrepared, kResult, kCommon
  int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemorySlot> values;        // by ValueId
  std::vector<int64_t> scratch_offsets;  // by node: in the arena, -1 without scratch
  int64_t arena_bytes = 0;
  int64_t named_bytes = 0;     // of all named inputs
  int64_t prepared_bytes = 0;  // of values that `prepare` computes and runs read
  int64_t result_bytes = 0;    // of outputs of one element, which are copied to the host together after a run
  int64_t guard = 0;
  int in_place = 0;          // outputs that take the memory of an input
  int64_t common_bytes = 0;  // of what ranks gather and read together (SegmentAttrs::common): one copy where they share memory
};

/// `scratch_bytes`: scratch of each node's kernel (empty: none). Alignment is 64 bytes; `guard` bytes stay free after every value.
/// The first `prepare_nodes` nodes run once, the others in each run: values that the first compute and the others read have a separate
/// region. Largest values are placed first, each at the lowest offset that is free over its whole life.
MemoryPlan plan_memory(const Graph& graph, const std::vector<int64_t>& scratch_bytes, int64_t guard = 0, size_t prepare_nodes = 0);

/// Describes two values that overlap while both are in use, or a value that is written past its end; "" if there are none.
std::string find_overlap(const Graph& graph, const MemoryPlan& plan, const std::vector<int64_t>& scratch_bytes);

}  // namespace galley
