#include "libcore/passes/apply_extents.h"

#include <algorithm>
#include <set>

#include "libcore/ops/extent_builder.h"
#include "libcore/ops/norm.h"

namespace galley {

void apply_extents(Graph& graph, Value images, Value extents, bool training) {
  KnownExtents known;
  known.training = training;
  known.of[images.id()] = extents;
  known.zeroed[images.id()] = images.id();
  std::map<ValueId, ValueId> instead;  // what readers read in place of a value
  const auto current = [&](ValueId id) {
    for (auto found = instead.find(id); found != instead.end(); found = instead.find(id)) id = found->second;
    return id;
  };
  const std::string path = graph.path();
  const Phase phase = graph.phase();
  std::deque<Node> old = std::exchange(graph.nodes(), {});
  for (Node& node : old) {
    for (ValueId& id : node.inputs) id = id == kNoValue ? id : current(id);
    const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return known.of.contains(id); });
    if (!reads) {
      graph.nodes().push_back(std::move(node));
      continue;
    }
    // Under a name of their own, so that other nodes keep theirs in calibration files.
    graph.set_path(node.path.empty() ? "extents" : node.path + ".extents");
    graph.set_phase(node.phase);
    const std::vector<ValueId> before = node.inputs;
    ExtentBuilder builder(graph, node, known);
    apply_extent_rule(builder);
    for (const ValueId id : before) {
      const auto zeroed = known.zeroed.find(id);
      if (zeroed != known.zeroed.end() && zeroed->second != id) instead[id] = zeroed->second;
    }
    for (const auto& [from, to] : builder.replaced()) {
      instead[from] = to;
      if (const auto found = known.of.find(from); found != known.of.end()) known.of[to] = Value(found->second);
    }
    if (!builder.replaced().empty()) continue;
    const Value result = graph.at(node.outputs[0]);
    graph.nodes().push_back(std::move(node));
    if (!builder.clears_result()) continue;
    const Value cleared = fill_outside(result, known.of.at(result.id()));
    instead[result.id()] = cleared.id();
    known.of[cleared.id()] = Value(known.of.at(result.id()));
    known.zeroed[cleared.id()] = cleared.id();
  }
  for (auto& [name, id] : graph.outputs()) id = current(id);
  graph.set_path(path);
  graph.set_phase(phase);
}

void refuse_norms_inside_extents(const Graph& graph, std::string_view reason, std::string_view cure) {
  std::set<ValueId> made;  // by batch norms of all pixels
  for (const Node& node : graph.nodes())
    if (node.op == &batch_norm_op()) made.insert(node.outputs.begin(), node.outputs.end());
  for (const Node& node : graph.nodes()) {
    if (node.op != &batch_norm_update_op() || made.contains(node.inputs[2])) continue;
    throw Error(ErrorCode::kRecipe, cat("the batch norm at ", node.path, " has the statistics of pixels inside the images, ", reason))
        .key("data.padding")
        .suggest(cat("data.padding: batch; or frozen_norm: true of the model", cure.empty() ? "" : "; or ", cure));
  }
}

}  // namespace galley
