#include "libcore/passes/assign_precision.h"

#include <algorithm>
#include <map>

#include "libcore/ops/convert.h"

namespace galley {
namespace {

bool is_narrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

/// Copies the nodes of a graph with other types of values.
class Recaster {
 public:
  Recaster(Graph& graph, const PrecisionPolicy& policy) : graph_(graph), policy_(policy) {}

  PassReport run() {
    const std::deque<Node> old = graph_.nodes();
    graph_.set_nodes({});
    for (const Node& node : old) add(node);
    graph_.set_path("");
    graph_.set_phase(Phase::kForward);
    for (auto& [name, id] : graph_.outputs()) id = as(moved(id), DType::kF32);
    return std::move(report_);
  }

 private:
  ValueId moved(ValueId id) const {
    const auto found = moved_.find(id);
    return found == moved_.end() ? id : found->second;
  }

  /// The value converted to that type. Integers, f64 and buffers in low precision are never converted.
  ValueId as(ValueId id, DType dtype) {
    const DType now = graph_.type(id).dtype;
    if (is_narrow(now) && graph_.value(id).role == ValueRole::kBuffer) return id;
    if (now == dtype || !(is_narrow(now) || now == DType::kF32)) return id;
    const auto [at, added] = casts_.try_emplace({id, dtype}, kNoValue);
    if (added) at->second = cast(graph_.at(id), dtype).id();
    return at->second;
  }

  void add(const Node& node) {
    graph_.set_path(node.path);
    graph_.set_phase(node.phase);
    std::vector<ValueId> inputs;
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? id : moved(id));
    const bool product = node.op->precision == PrecisionRule::kLow;
    const bool keep = node.op->precision == PrecisionRule::kKeepF32 ||
                      (policy_.keep_f32 && policy_.keep_f32(node) && node.op->precision != PrecisionRule::kActivations);
    const bool narrow =
        std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) { return id != kNoValue && is_narrow(graph_.type(id).dtype); });
    if (product) (keep ? report_.declined : report_.done).push_back(cat(node.path, ": ", node.op->name));
    if (keep ? narrow : product || narrow) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] != kNoValue && (keep || takes_narrow(node, i))) inputs[i] = as(inputs[i], keep ? DType::kF32 : policy_.compute);
      }
    }
    const std::vector<Value> made = graph_.add_node_like(node, std::move(inputs));
    for (size_t i = 0; i < made.size(); ++i) moved_[node.outputs[i]] = made[i].id();
  }

  bool takes_narrow(const Node& node, size_t i) const {
    const PortKind kind = node.op->input_port(i).kind;
    switch (node.op->precision) {
      case PrecisionRule::kLow: {
        const bool vector = graph_.type(node.inputs[i]).shape.rank() < 2;
        return kind == PortKind::kStatistics ? vector && policy_.biases && !stores_weight(node) : !vector;
      }
      case PrecisionRule::kActivations: return kind == PortKind::kActivation;
      default: return true;
    }
  }

  /// Is a weight of the product stored in another form, whose scales, and bias, are f32?
  bool stores_weight(const Node& node) const {
    const std::vector<size_t> weights = inputs_of(node, PortKind::kWeight);
    return std::any_of(weights.begin(), weights.end(), [&](size_t i) { return !is_floating(graph_.type(node.inputs[i]).dtype); });
  }

  Graph& graph_;
  const PrecisionPolicy& policy_;
  std::map<ValueId, ValueId> moved_;
  std::map<std::pair<ValueId, DType>, ValueId> casts_;
  PassReport report_;
};

}  // namespace

PassReport assign_precision(Graph& graph, const PrecisionPolicy& policy) {
  if (policy.compute == DType::kF32) return {};
  GALLEY_ASSERT(is_narrow(policy.compute));
  return Recaster(graph, policy).run();
}

}  // namespace galley
