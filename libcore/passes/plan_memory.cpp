#include "libcore/passes/plan_memory.h"

#include <algorithm>
#include <numeric>

#include "libcore/ops/collective.h"

namespace galley {
namespace {

/// Whether element i has the same offset in both arrays, so that a result may be written while the operand is read. An operand [C,H,W] and
/// a result [1,C,H,W] in channels_last have the same number of bytes but another order.
bool same_order(const TensorType& a, const TensorType& b) {
  if (a.bytes() != b.bytes()) return false;
  if (a.shape == b.shape) return same_bytes(a.shape, a.format, b.format);
  return a.format.is_contiguous() && b.format.is_contiguous();
}

constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Memory that several values use one after the other (views, in-place results), or the scratch memory of a node.
struct Block {
  int first = 0, last = 0;  // first and last node that use it
  int64_t bytes = 0;
  int64_t offset = 0;
  bool common = false;  // no node writes it but the gather
};

class Planner {
 public:
  Planner(const Graph& graph, const std::vector<int64_t>& scratch, int64_t guard, size_t prepare_nodes)
      : graph_(graph),
        scratch_(scratch),
        guard_(guard),
        prepare_nodes_(static_cast<int>(prepare_nodes)),
        block_of_(graph.value_count(), -1),
        named_of_(graph.value_count(), kNoValue),
        result_of_(graph.value_count(), -1),
        is_result_(graph.value_count(), false) {
    for (const auto& [name, id] : graph.outputs())
      is_result_[static_cast<size_t>(id)] = graph.type(id).elements() == 1 && graph.type(id).bytes() <= kAlignment;
  }

  MemoryPlan run() {
    find_last_uses();
    MemoryPlan plan;
    plan.guard = guard_;
    for (ValueId id : graph_.inputs()) {
      named_of_[static_cast<size_t>(id)] = id;
      plan.named_bytes += graph_.type(id).bytes();
    }
    int index = 0;
    for (const Node& node : graph_.nodes()) {
      for (size_t o = 0; o < node.outputs.size(); ++o) place_output(node, o, index, plan);
      plan.scratch_offsets.push_back(-1);
      if (!scratch_.empty() && scratch_[static_cast<size_t>(index)] > 0) {
        scratch_block_.push_back({index, static_cast<int>(blocks_.size())});
        blocks_.push_back({index, index, scratch_[static_cast<size_t>(index)], 0});
      }
      ++index;
    }
    assign_offsets(plan);
    plan.values.resize(graph_.value_count());
    for (size_t v = 0; v < graph_.value_count(); ++v) {
      const int64_t bytes = graph_.type(static_cast<ValueId>(v)).bytes();
      if (named_of_[v] != kNoValue) plan.values[v] = {MemorySlot::Region::kNamed, named_of_[v], 0, bytes};
      if (result_of_[v] >= 0) plan.values[v] = {MemorySlot::Region::kResult, kNoValue, result_of_[v], bytes};
      if (block_of_[v] < 0) continue;
      const Block& block = blocks_[static_cast<size_t>(block_of_[v])];
      plan.values[v] = {is_prepared(block) ? MemorySlot::Region::kPrepared
                        : block.common     ? MemorySlot::Region::kCommon
                                           : MemorySlot::Region::kArena,
                        kNoValue, block.offset, bytes};
    }
    for (const auto& [node, block] : scratch_block_)
      plan.scratch_offsets[static_cast<size_t>(node)] = blocks_[static_cast<size_t>(block)].offset;
    return plan;
  }

 private:
  void find_last_uses() {
    last_use_.assign(graph_.value_count(), -1);
    int index = 0;
    for (const Node& node : graph_.nodes()) {
      for (ValueId id : node.inputs) {
        if (id != kNoValue) last_use_[static_cast<size_t>(id)] = index;
      }
      for (ValueId id : node.outputs) last_use_[static_cast<size_t>(id)] = index;
      ++index;
    }
    for (const auto& [name, id] : graph_.outputs()) last_use_[static_cast<size_t>(id)] = index;
    for (const Node& node : graph_.nodes()) {
      if (!starts_common_gather(node)) continue;
      int& last = last_use_[static_cast<size_t>(node.inputs[0])];
      last = std::max(last, last_use_[static_cast<size_t>(node.outputs[0])]);  // the wait
    }
  }

  void place_output(const Node& node, size_t o, int index, MemoryPlan& plan) {
    const ValueId id = node.outputs[o];
    const auto v = static_cast<size_t>(id);
    for (const InPlace& update : node.op->updates) {
      if (update.output != static_cast<int>(o) || node.input(static_cast<size_t>(update.input)) == kNoValue) continue;
      const auto old = static_cast<size_t>(node.inputs[static_cast<size_t>(update.input)]);
      named_of_[v] = named_of_[old];
      if (named_of_[v] != kNoValue) return;
      // A value that a node has made, e.g. a rank's range of parameters. Its memory is written in place in each run.
      GALLEY_ASSERT(block_of_[old] >= 0 && !is_result_[v], node.op->name, " updates a value without memory of its own, at ", node.path);
      GALLEY_ASSERT(blocks_[static_cast<size_t>(block_of_[old])].last <= index, node.op->name, " updates a value that is read later, at ",
                    node.path);
      GALLEY_ASSERT(blocks_[static_cast<size_t>(block_of_[old])].first >= prepare_nodes_, node.op->name, " updates a constant, at ",
                    node.path);
      share(v, block_of_[old]);
      return;
    }
    if (o == 0 && is_view(graph_, node)) {
      const auto source = static_cast<size_t>(node.inputs[0]);
      named_of_[v] = named_of_[source];
      result_of_[v] = result_of_[source];
      share(v, block_of_[source]);
      return;
    }
    if (is_result_[v]) {
      result_of_[v] = plan.result_bytes;
      plan.result_bytes += kAlignment;
      return;
    }
    for (const InPlace& reuse : node.op->may_reuse) {
      const ValueId in = node.input(static_cast<size_t>(reuse.input));
      if (reuse.output != static_cast<int>(o) || in == kNoValue) continue;
      const auto source = static_cast<size_t>(in);
      // Another input may be the same value, or a view of it.
      const auto shares = [&](ValueId other) { return other != kNoValue && block_of_[static_cast<size_t>(other)] == block_of_[source]; };
      if (block_of_[source] < 0 || !same_order(graph_.type(in), graph_.type(id)) ||
          std::count_if(node.inputs.begin(), node.inputs.end(), shares) > 1)
        continue;
      // The memory must not be used later: no view and no earlier owner may be read after this node.
      Block& block = blocks_[static_cast<size_t>(block_of_[source])];
      if (block.common && node.op != &all_gather_wait_op()) continue;
      if (block.last > index || (block.first < prepare_nodes_ && index >= prepare_nodes_) || graph_.type(in).format.is_blocked()) continue;
      if (taken_at_[static_cast<size_t>(block_of_[source])] == index) continue;  // by another output of this node
      taken_at_[static_cast<size_t>(block_of_[source])] = index;
      share(v, block_of_[source]);
      ++plan.in_place;
      return;
    }
    block_of_[v] = static_cast<int>(blocks_.size());
    blocks_.push_back({index, last_use_[v], graph_.type(id).bytes(), 0, starts_common_gather(node)});
    taken_at_.resize(blocks_.size(), -1);
  }

  void share(size_t v, int block) {
    block_of_[v] = block;
    if (block < 0) return;
    Block& shared = blocks_[static_cast<size_t>(block)];
    shared.last = std::max(shared.last, last_use_[v]);
    shared.bytes = std::max(shared.bytes, graph_.type(static_cast<ValueId>(v)).bytes());
  }

  /// Written once by `prepare` and read by every run.
  bool is_prepared(const Block& block) const { return block.first < prepare_nodes_ && block.last >= prepare_nodes_; }

  void assign_offsets(MemoryPlan& plan) {
    std::vector<size_t> order(blocks_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return blocks_[a].bytes > blocks_[b].bytes; });
    std::vector<size_t> placed;
    for (size_t i : order) {
      Block& block = blocks_[i];
      if (is_prepared(block)) {
        block.offset = plan.prepared_bytes;
        plan.prepared_bytes += aligned(block.bytes + guard_);
        continue;
      }
      std::vector<std::pair<int64_t, int64_t>> taken;  // [begin, end) of placed blocks with an overlapping lifetime
      for (size_t p : placed) {
        const Block& other = blocks_[p];
        if (other.common == block.common && other.first <= block.last && block.first <= other.last)
          taken.emplace_back(other.offset, other.offset + aligned(other.bytes + guard_));
      }
      std::sort(taken.begin(), taken.end());
      int64_t offset = 0;
      for (const auto& [begin, end] : taken) {
        if (offset + aligned(block.bytes + guard_) <= begin) break;
        offset = std::max(offset, end);
      }
      block.offset = offset;
      int64_t& bytes = block.common ? plan.common_bytes : plan.arena_bytes;
      bytes = std::max(bytes, offset + aligned(block.bytes + guard_));
      placed.push_back(i);
    }
  }

  const Graph& graph_;
  const std::vector<int64_t>& scratch_;
  int64_t guard_;
  int prepare_nodes_;
  std::vector<int> block_of_;
  std::vector<ValueId> named_of_;
  std::vector<int64_t> result_of_;  // offset in the results; -1: not a result
  std::vector<bool> is_result_;
  std::vector<int> last_use_;
  std::vector<Block> blocks_;
  std::vector<int> taken_at_;
  std::vector<std::pair<int, int>> scratch_block_;
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const std::vector<int64_t>& scratch_bytes, int64_t guard, size_t prepare_nodes) {
  return Planner(graph, scratch_bytes, guard, prepare_nodes).run();
}

std::string find_overlap(const Graph& graph, const MemoryPlan& plan, const std::vector<int64_t>& scratch_bytes) {
  // Simulates the run: for each part of the arena, records the value that wrote it last. When a value is read, its memory must hold that
  // value (or the one that it views or overwrites in place).
  std::vector<int64_t> owner(static_cast<size_t>((plan.arena_bytes + kAlignment - 1) / kAlignment), -1);
  std::vector<int64_t> stamp(graph.value_count(), -1);
  int64_t next = 0;
  const auto range = [&](const MemorySlot& p, auto&& visit) {
    for (int64_t cell = p.offset / kAlignment; cell < (p.offset + std::max<int64_t>(p.bytes, 1) + kAlignment - 1) / kAlignment; ++cell)
      visit(owner[static_cast<size_t>(cell)]);
  };
  int index = 0;
  const auto check = [&](ValueId id, std::string_view reader) -> std::string {
    const MemorySlot& p = plan.values[static_cast<size_t>(id)];
    if (p.region != MemorySlot::Region::kArena) return "";
    bool good = true;
    range(p, [&](int64_t o) { good &= o == stamp[static_cast<size_t>(id)]; });
    return good ? "" : cat("value %", id, " was overwritten before ", reader, " (node ", index, ") read it");
  };
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      const std::string wrong = check(id, node.op->name);
      if (!wrong.empty()) return wrong;
    }
    if (plan.scratch_offsets[static_cast<size_t>(index)] >= 0) {
      range({MemorySlot::Region::kArena, kNoValue, plan.scratch_offsets[static_cast<size_t>(index)],
             scratch_bytes[static_cast<size_t>(index)]},
            [&](int64_t& o) { o = -2; });
      for (ValueId id : node.inputs) {
        const std::string wrong = id == kNoValue ? "" : check(id, "its own scratch");
        if (!wrong.empty()) return wrong;
      }
    }
    for (ValueId id : node.outputs) {
      const MemorySlot& p = plan.values[static_cast<size_t>(id)];
      if (p.region != MemorySlot::Region::kArena) continue;
      if (is_view(graph, node)) {
        stamp[static_cast<size_t>(id)] = stamp[static_cast<size_t>(node.inputs[0])];
        continue;
      }
      stamp[static_cast<size_t>(id)] = next++;
      range(p, [&](int64_t& o) { o = stamp[static_cast<size_t>(id)]; });
    }
    ++index;
  }
  for (const auto& [name, id] : graph.outputs()) {
    const std::string wrong = check(id, "output " + name);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace galley
