#include "libcore/profiler/memory_timeline.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace galley {
namespace {

MemoryCategory category_of(ValueRole role) {
  switch (role) {
    case ValueRole::kParameter: return MemoryCategory::kParameters;
    case ValueRole::kBuffer: return MemoryCategory::kBuffers;
    case ValueRole::kState:
    case ValueRole::kCarried: return MemoryCategory::kState;
    case ValueRole::kInput: return MemoryCategory::kInputs;
    case ValueRole::kActivation: break;
  }
  return MemoryCategory::kActivations;
}

/// Lifetime and place of a value in the arena; `first` and `last` are node indices.
struct Lifetime {
  int first = 0, last = 0;
  int64_t offset = 0, bytes = 0;
  MemoryCategory category = MemoryCategory::kActivations;
};

}  // namespace

std::string_view category_name(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> names{"parameters", "buffers",     "optimizer_state", "inputs",
                                                                  "prepared",   "activations", "gradients",       "workspace"};
  return names[static_cast<size_t>(category)];
}

int64_t total(const MemorySizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

std::vector<bool> recomputed_nodes(const Graph& graph) {
  std::set<std::pair<std::string_view, std::string_view>> forward;
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::kForward) forward.insert({node.op->name, node.path});
  }
  std::vector<bool> clones, gradient(graph.value_count());
  for (const Node& node : graph.nodes()) {
    bool clone = node.phase == Phase::kBackward && !node.inputs.empty() && forward.count({node.op->name, node.path}) > 0;
    for (ValueId id : node.inputs) clone &= id == kNoValue || !gradient[static_cast<size_t>(id)];
    for (ValueId id : node.outputs) gradient[static_cast<size_t>(id)] = node.phase != Phase::kForward && !clone;
    clones.push_back(clone);
  }
  return clones;
}

MemoryTimeline memory_timeline(const Program& program) {
  const Graph& graph = program.graph();
  const MemoryPlan& plan = program.memory();
  MemoryTimeline timeline;
  MemorySizes always{};
  for (ValueId id : graph.inputs()) always[static_cast<size_t>(category_of(graph.value(id).role))] += graph.type(id).bytes();
  always[static_cast<size_t>(MemoryCategory::kPrepared)] += plan.prepared_bytes;
  timeline.arena_bytes = plan.arena_bytes;
  timeline.planned_bytes = plan.named_bytes + plan.prepared_bytes + plan.arena_bytes;

  const int count = static_cast<int>(graph.nodes().size());
  std::vector<int> last_use(graph.value_count(), -1);
  for (int n = 0; n < count; ++n) {
    const Node& node = graph.nodes()[static_cast<size_t>(n)];
    for (ValueId id : node.inputs) {
      if (id != kNoValue) last_use[static_cast<size_t>(id)] = n;
    }
    for (ValueId id : node.outputs) last_use[static_cast<size_t>(id)] = n;
  }
  for (const auto& [name, id] : graph.outputs()) last_use[static_cast<size_t>(id)] = count;

  const std::vector<bool> clones = recomputed_nodes(graph);
  std::vector<Lifetime> lifetimes;  // sorted by `first`
  for (int n = 0; n < count; ++n) {
    const Node& node = graph.nodes()[static_cast<size_t>(n)];
    const MemoryCategory made =
        node.phase == Phase::kForward || clones[static_cast<size_t>(n)] ? MemoryCategory::kActivations : MemoryCategory::kGradients;
    for (ValueId id : node.outputs) {
      const MemorySlot& place = plan.values[static_cast<size_t>(id)];
      if (place.region != MemorySlot::Region::kArena) continue;
      lifetimes.push_back({n, last_use[static_cast<size_t>(id)], place.offset, place.bytes, made});
    }
  }

  // Values that share memory (views, in-place results) have the same offset and count once, in the category of the newest.
  std::map<int64_t, std::vector<Lifetime>> live;
  size_t next = 0, step = 0;
  for (int n = 0; n < count; ++n) {
    for (; next < lifetimes.size() && lifetimes[next].first == n; ++next) live[lifetimes[next].offset].push_back(lifetimes[next]);
    if (step >= program.steps().size() || program.steps()[step].node != n) continue;
    MemorySizes sizes = always;
    int64_t arena = 0;
    for (auto at = live.begin(); at != live.end();) {
      std::vector<Lifetime>& here = at->second;
      std::erase_if(here, [n](const Lifetime& lifetime) { return lifetime.last < n; });
      if (here.empty()) {
        at = live.erase(at);
        continue;
      }
      int64_t bytes = 0;
      for (const Lifetime& lifetime : here) bytes = std::max(bytes, lifetime.bytes);
      sizes[static_cast<size_t>(here.back().category)] += bytes;
      arena += bytes;
      ++at;
    }
    const int64_t scratch = plan.scratch_offsets[static_cast<size_t>(n)] < 0 ? 0 : program.steps()[step].kernel->scratch_bytes();
    sizes[static_cast<size_t>(MemoryCategory::kWorkspace)] += scratch;
    timeline.arena_live_bytes = std::max(timeline.arena_live_bytes, arena + scratch);
    timeline.steps.push_back(sizes);
    if (total(sizes) > total(timeline.steps[timeline.peak])) timeline.peak = step;
    ++step;
  }
  return timeline;
}

}  // namespace galley
