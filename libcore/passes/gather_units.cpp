#include "libcore/passes/gather_units.h"

#include <algorithm>
#include <map>
#include <optional>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

/// One gather of a unit.
struct Gather {
  size_t unit = 0;
  Phase phase = Phase::kForward;
  size_t first = 0;           // the node that reads it first
  std::vector<bool> used;     // members that nodes of this phase read
  size_t starts = 0;          // the node before which it starts
  Value started;              // in the new graph
  std::vector<Value> values;  // of members, after the wait
};

class Gatherer {
 public:
  Gatherer(const Graph& old, const std::vector<GradientBucket>& units, const GatherOptions& options)
      : old_(old), units_(units), options_(options), map_(old.value_count(), kNoValue) {
    attrs_.rank = options.rank;
    attrs_.ranks = options.ranks;
    attrs_.common = options.common;
    for (size_t u = 0; u < units.size(); ++u) {
      for (size_t m = 0; m < units[u].parameters.size(); ++m) {
        const ValueId id = old.find_input(units[u].parameters[m]);
        if (id != kNoValue) member_of_[id] = {u, m};
      }
    }
  }

  Graph run() {
    find_uses();
    place_starts();
    add_inputs();
    size_t index = 0;
    for (const Node& node : old_.nodes()) {
      for (Gather& gather : gathers_) {
        if (gather.first == index) finish(gather);
      }
      for (Gather& gather : gathers_) {
        if (gather.starts == index && !gather.started) start(gather);
      }
      copy(node);
      ++index;
    }
    for (const auto& [name, id] : old_.outputs()) new_.add_output(name, map_[static_cast<size_t>(id)]);
    return std::move(new_);
  }

 private:
  /// The gather that a node of this phase reads.
  size_t place_of(size_t unit, Phase phase) const { return 2 * unit + (phase != Phase::kForward && options_.reshard_after_forward); }

  void find_uses() {
    std::vector<std::optional<Gather>> found(2 * units_.size());
    size_t index = 0;
    for (const Node& node : old_.nodes()) {
      for (const ValueId id : node.inputs) {
        const auto member = member_of_.find(id);
        if (member == member_of_.end()) continue;
        GALLEY_ASSERT(node.phase != Phase::kUpdate, node.op->name, " at ", node.path, " updates a whole parameter");
        const auto [unit, place] = member->second;
        std::optional<Gather>& gather = found[place_of(unit, node.phase)];
        if (!gather) {
          gather = Gather{.unit = unit, .phase = node.phase, .first = index};
          gather->used.resize(units_[unit].parameters.size());
        }
        gather->used[place] = true;
      }
      ++index;
    }
    for (std::optional<Gather>& gather : found) {
      if (gather) gathers_.push_back(std::move(*gather));
    }
    std::stable_sort(gathers_.begin(), gathers_.end(), [](const Gather& a, const Gather& b) { return a.first < b.first; });
  }

  int64_t bytes(const Gather& gather) const {
    const GradientBucket& unit = units_[gather.unit];
    return unit.layout.padded(options_.ranks) * dtype_size(unit.dtype);
  }

  void place_starts() {
    int64_t limit = options_.limit;
    if (limit == 0) {
      std::vector<int64_t> sizes;
      for (const Gather& gather : gathers_) sizes.push_back(bytes(gather));
      std::sort(sizes.rbegin(), sizes.rend());
      for (size_t i = 0; i < std::min<size_t>(2, sizes.size()); ++i) limit += sizes[i];
    }
    for (const Gather& gather : gathers_) {
      if (bytes(gather) <= limit) continue;
      const GradientBucket& unit = units_[gather.unit];
      throw Error(ErrorCode::kRecipe, cat("'sharding.gather_limit' is ", human_bytes(static_cast<double>(limit)), ", but the unit of ",
                                          unit.parameters.front(), " has ", human_bytes(static_cast<double>(bytes(gather)))))
          .key("sharding.gather_limit")
          .suggest("use a larger limit, or smaller units (sharding.wrap)");
    }
    for (size_t g = 0; g < gathers_.size(); ++g) {
      const bool ahead = g > 0 && bytes(gathers_[g]) + bytes(gathers_[g - 1]) <= limit;
      gathers_[g].starts = ahead ? gathers_[g - 1].first : gathers_[g].first;
    }
  }

  void add_inputs() {
    for (const ValueId id : old_.inputs()) {
      if (member_of_.count(id) > 0) continue;
      const ValueInfo& info = old_.value(id);
      map_[static_cast<size_t>(id)] = new_.add_input(info.name, info.type, info.role).id();
    }
    for (const GradientBucket& unit : units_) {
      if (new_.find_input(unit.state) != kNoValue) continue;
      new_.add_input(unit.state, unit.type(unit.layout.shard(options_.ranks), true), ValueRole::kParameter);
    }
  }

  const SegmentAttrs& attrs(const Gather& gather) {
    attrs_.name = units_[gather.unit].gather_name;
    return attrs_;
  }

  void start(Gather& gather) {
    new_.set_path("ranks");
    new_.set_phase(gather.phase);
    gather.started = all_gather_start(new_.at(new_.find_input(units_[gather.unit].state)), attrs(gather));
  }

  void finish(Gather& gather) {
    if (!gather.started) start(gather);
    new_.set_path("ranks");
    new_.set_phase(gather.phase);
    const GradientBucket& unit = units_[gather.unit];
    const Value whole = all_gather_wait(gather.started, attrs(gather));
    gather.values.resize(unit.parameters.size());
    for (size_t m = 0; m < unit.parameters.size(); ++m) {
      if (!gather.used[m]) continue;
      const int64_t at = unit.layout.offsets[m], elements = unit.shapes[m].elements();
      gather.values[m] = reshape(whole.shape()[0] == elements ? whole : slice(whole, 0, at, at + elements), unit.shapes[m]);
      // A scalar or a flat parameter is a view of the slice; names of dimensions come with the parameter.
      new_.value(gather.values[m].id()).type.names = old_.type(old_.find_input(unit.parameters[m])).names;
    }
  }

  void copy(const Node& node) {
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) {
      const auto member = member_of_.find(id);
      if (id == kNoValue || member == member_of_.end()) {
        inputs.push_back(id == kNoValue ? kNoValue : map_[static_cast<size_t>(id)]);
        continue;
      }
      const size_t unit = member->second.first, place = member->second.second;
      const auto gather = std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& each) {
        return each.unit == unit && place_of(unit, each.phase) == place_of(unit, node.phase);
      });
      inputs.push_back(gather->values[place].id());
    }
    const std::vector<Value> outputs = new_.add_node_like(node, std::move(inputs));
    for (size_t o = 0; o < outputs.size(); ++o) map_[static_cast<size_t>(node.outputs[o])] = outputs[o].id();
  }

  const Graph& old_;
  const std::vector<GradientBucket>& units_;
  const GatherOptions& options_;
  SegmentAttrs attrs_;
  Graph new_;
  std::vector<ValueId> map_;
  std::map<ValueId, std::pair<size_t, size_t>> member_of_;  // unit and place of parameters
  std::vector<Gather> gathers_;                             // in order of first use
};

}  // namespace

void gather_units(Graph& graph, const std::vector<GradientBucket>& units, const GatherOptions& options) {
  graph = Gatherer(graph, units, options).run();
}

}  // namespace galley
