#include <algorithm>
#include <set>

#include "libcore/graph/graph.h"

namespace galley {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph), made_(graph.value_count()), base_(graph.value_count()), writer_(graph.value_count(), -1) {}

  void run() {
    check_inputs();
    int index = 0;
    for (const Node& node : graph_.nodes()) {
      check_reads(node, index);
      check_types(node, index);
      record(node, index);
      ++index;
    }
    check_outputs();
  }

 private:
  std::string where(const Node& node, int index) const {
    return cat("node ", index, " (", node.op->name, node.path.empty() ? "" : " at ", node.path, ")");
  }

  void check_inputs() {
    std::set<std::string_view> names;
    for (ValueId id : graph_.inputs()) {
      const ValueInfo& info = graph_.value(id);
      GALLEY_ASSERT(info.role != ValueRole::kActivation, "input %", id, " has no role");
      GALLEY_ASSERT(names.insert(info.name).second, "two inputs have the name '", info.name, "'");
      made_[static_cast<size_t>(id)] = true;
      base_[static_cast<size_t>(id)] = id;
    }
  }

  void check_reads(const Node& node, int index) {
    for (ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      GALLEY_ASSERT(id >= 0 && static_cast<size_t>(id) < made_.size(), where(node, index), " reads the unknown value %", id);
      GALLEY_ASSERT(made_[static_cast<size_t>(id)], where(node, index), " reads %", id, " before it is defined");
      const int writer = writer_[static_cast<size_t>(base_[static_cast<size_t>(id)])];
      GALLEY_ASSERT(writer < 0, where(node, index), " reads the old value %", id, ", which node ", writer, " has overwritten");
    }
  }

  void check_types(const Node& node, int index) {
    OpContext context = context_of(graph_, node);
    const std::vector<const TensorType*> outputs = std::exchange(context.outputs, {});
    std::vector<TensorType> inferred;
    try {
      inferred = node.op->infer(context);
    } catch (const Error& error) {
      throw InternalError(cat(where(node, index), ": ", error.message()));
    }
    GALLEY_ASSERT(inferred.size() == outputs.size(), where(node, index), " has ", outputs.size(), " outputs, but its rule gives ",
                  inferred.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      GALLEY_ASSERT(inferred[o].dtype == outputs[o]->dtype && inferred[o].shape == outputs[o]->shape, where(node, index), " output ", o,
                    " is ", *outputs[o], ", but its rule gives ", inferred[o]);
      outputs[o]->format.order(outputs[o]->shape.rank());  // throws if the rank does not suit the format
    }
    check_placement(node, index);
  }

  /// A rewrite may keep a weaker placement than its node has, whose constant differs between ranks; not a stronger one.
  void check_placement(const Node& node, int index) const {
    const Placement rule = weaker(placement_of(*node.op, context_of(graph_, node)), node.cut);
    for (ValueId id : node.outputs) {
      const Placement& placement = graph_.type(id).placement;
      for (size_t axis = 0; axis < kPlacementAxes.size(); ++axis) {
        GALLEY_ASSERT(placement.held[axis] >= rule.held[axis], where(node, index), " gives %", id, ", which is ", held(placement, axis),
                      ", from values that are ", held(rule, axis));
      }
    }
  }
  static std::string held(const Placement& placement, size_t axis) {
    return cat(kHeldNames[static_cast<size_t>(placement.held[axis])], " along the axis ", kPlacementAxes[axis]);
  }
  /// What all ranks hold must stay equal on all of them, and ranges must stay complete.
  void check_update(const Node& node, int index, ValueId state, ValueId updated) const {
    const Placement &kept = graph_.type(state).placement, &given = graph_.type(updated).placement;
    for (size_t axis = 0; axis < kPlacementAxes.size(); ++axis) {
      GALLEY_ASSERT(given.held[axis] <= kept.held[axis], where(node, index), " updates ", graph_.value(state).name, ", which is ",
                    held(kept, axis), ", by values that are ", held(given, axis));
    }
  }

  void record(const Node& node, int index) {
    for (ValueId id : node.outputs) {
      GALLEY_ASSERT(id >= 0 && static_cast<size_t>(id) < made_.size() && !made_[static_cast<size_t>(id)], where(node, index), " defines %",
                    id, ", which exists already");
      made_[static_cast<size_t>(id)] = true;
      base_[static_cast<size_t>(id)] = id;
    }
    if (is_view(graph_, node)) base_[static_cast<size_t>(node.outputs[0])] = base_[static_cast<size_t>(node.inputs[0])];
    for (const InPlace& update : node.op->updates) {
      const ValueId old = node.input(static_cast<size_t>(update.input));
      if (old == kNoValue || static_cast<size_t>(update.output) >= node.outputs.size()) continue;
      const ValueId root = base_[static_cast<size_t>(old)];
      const ValueRole role = graph_.value(root).role;
      GALLEY_ASSERT(role != ValueRole::kInput, where(node, index), " updates %", old,
                    ", which is fed: it is not a parameter, buffer or state, and not made by a node");
      if (role != ValueRole::kActivation) check_update(node, index, root, node.outputs[static_cast<size_t>(update.output)]);
      writer_[static_cast<size_t>(root)] = index;
    }
  }

  void check_outputs() const {
    std::set<std::string_view> names;
    for (const auto& [name, id] : graph_.outputs()) {
      GALLEY_ASSERT(names.insert(name).second, "two outputs have the name '", name, "'");
      GALLEY_ASSERT(id >= 0 && static_cast<size_t>(id) < made_.size() && made_[static_cast<size_t>(id)], "output ", name,
                    " is not defined");
      const int writer = writer_[static_cast<size_t>(base_[static_cast<size_t>(id)])];
      GALLEY_ASSERT(writer < 0, "output ", name, " is an old value, which node ", writer, " has overwritten");
    }
  }

  const Graph& graph_;
  std::vector<bool> made_;
  std::vector<ValueId> base_;  // the value whose memory it uses: its own, or that of the viewed value
  std::vector<int> writer_;    // the node that overwrote that memory, or -1
};

}  // namespace

bool same_bytes(const Shape& shape, const MemoryFormat& a, const MemoryFormat& b) {
  if (a == b) return true;
  if (a.is_blocked() || b.is_blocked()) return false;
  if (shape.elements() == 0) return true;
  const Shape in_a = a.strides(shape), in_b = b.strides(shape);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (shape[dim] != 1 && in_a[dim] != in_b[dim]) return false;
  }
  return true;
}

bool is_view(const Graph& graph, const Node& node) {
  if (node.op->view()) return true;
  if (node.op->layout.formats != FormatRule::kReorder) return false;
  return same_bytes(graph.type(node.inputs[0]).shape, graph.type(node.inputs[0]).format, graph.type(node.outputs[0]).format);
}

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace galley
