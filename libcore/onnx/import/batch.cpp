#include "libcore/onnx/import/batch.h"

#include <algorithm>
#include <set>

#include "libcore/ops/elementwise.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"

namespace galley::onnx_import {
namespace {

/// Position of the samples in a value: along one axis of size outer * samples * inner.
struct Place {
  int axis = -1;  // -1: the value does not depend on the sample
  int64_t outer = 1, inner = 1;
  uint32_t equal = 0;  // for axis -1: bit mask of the axes along which all elements are equal

  bool has_samples() const { return axis >= 0; }
  friend bool operator==(const Place& a, const Place& b) { return a.axis == b.axis && a.outer == b.outer && a.inner == b.inner; }
};
Place samples_on(int axis) { return {.axis = axis}; }
Place moved(Place place, int axis) {
  place.axis = axis;
  return place;
}
constexpr uint32_t kAll = ~uint32_t{0};
uint32_t bit(int axis) { return axis < 0 ? 0 : uint32_t{1} << axis; }
int axis_from(int64_t axis, int rank) { return static_cast<int>(axis < 0 ? axis + rank : axis); }

/// One node with the places of its inputs.
class Step {
 public:
  Step(const Graph& graph, const Node& node, const std::map<ValueId, Place>& places, int64_t samples)
      : graph_(graph), node_(node), samples_(samples) {
    for (const ValueId id : node.inputs) inputs_.push_back(id == kNoValue ? Place{} : places.at(id));
  }

  const Node& node() const { return node_; }
  size_t inputs() const { return inputs_.size(); }
  int64_t samples() const { return samples_; }
  bool given(size_t i) const { return node_.input(i) != kNoValue; }
  const Place& in(size_t i) const { return inputs_[i]; }
  const Shape& shape(size_t i) const { return graph_.type(node_.inputs[i]).shape; }
  const Shape& out_shape() const { return graph_.type(node_.outputs[0]).shape; }
  bool any_samples() const {
    return std::any_of(inputs_.begin(), inputs_.end(), [](const Place& place) { return place.has_samples(); });
  }

  std::string mixing_reason;  // why samples are mixed; "" if they are not

  Place mixes(std::string_view reason) {
    mixing_reason = reason;
    return {};
  }
  /// Whether only the first input depends on the sample.
  bool others_shared() {
    for (size_t i = 1; i < inputs_.size(); ++i) {
      if (inputs_[i].has_samples()) mixing_reason = "its weights depend on the sample";
    }
    return mixing_reason.empty();
  }

 private:
  const Graph& graph_;
  const Node& node_;
  int64_t samples_;
  std::vector<Place> inputs_;
};

/// Inputs broadcast against each other, right-aligned.
Place elementwise(Step& s) {
  const int rank = s.out_shape().rank();
  Place result;
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (!s.given(i) || !s.in(i).has_samples()) continue;
    const Place here = moved(s.in(i), s.in(i).axis + rank - s.shape(i).rank());
    if (result.has_samples() && !(result == here)) return s.mixes("its inputs have the samples along different axes");
    result = here;
  }
  if (result.has_samples()) {
    for (size_t i = 0; i < s.inputs(); ++i) {
      if (!s.given(i) || s.in(i).has_samples()) continue;
      const int axis = result.axis - (rank - s.shape(i).rank());
      if (axis >= 0 && s.shape(i)[axis] != 1 && (s.in(i).equal & bit(axis)) == 0)
        return s.mixes("it combines each sample with different constants");
    }
    return result;
  }
  result.equal = kAll;
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (!s.given(i)) continue;
    const int shift = rank - s.shape(i).rank();
    for (int axis = 0; axis < s.shape(i).rank(); ++axis) {
      if (s.shape(i)[axis] != 1 && (s.in(i).equal & bit(axis)) == 0) result.equal &= ~bit(axis + shift);
    }
  }
  return result;
}

Place reshaped(Step& s) {
  const Shape &from = s.shape(0), &to = s.out_shape();
  const Place& x = s.in(0);
  if (!x.has_samples()) {
    for (int axis = 0; axis < from.rank(); ++axis) {
      if (from[axis] != 1 && (x.equal & bit(axis)) == 0) return {};
    }
    return {.equal = kAll};
  }
  if (from.elements() == 0) return s.mixes("it has no elements");
  int64_t before = x.outer, begun = 1;
  for (int axis = 0; axis < x.axis; ++axis) before *= from[axis];
  for (int axis = 0; axis < to.rank(); ++axis) {
    if (before % begun == 0) {
      const int64_t outer = before / begun;
      if (to[axis] % (outer * s.samples()) == 0) return {.axis = axis, .outer = outer, .inner = to[axis] / (outer * s.samples())};
    }
    begun *= to[axis];
  }
  return s.mixes("it splits samples");
}

Place permuted(Step& s) {
  const std::vector<int64_t>& order = s.node().attrs<PermuteAttrs>().order;
  Place y = s.in(0);
  y.equal = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (y.has_samples() && order[i] == s.in(0).axis) y.axis = static_cast<int>(i);
    if ((s.in(0).equal & bit(static_cast<int>(order[i]))) != 0) y.equal |= bit(static_cast<int>(i));
  }
  return y;
}

Place broadcasted(Step& s) {
  const Shape &from = s.shape(0), &to = s.out_shape();
  const int shift = to.rank() - from.rank();
  if (s.in(0).has_samples()) return moved(s.in(0), s.in(0).axis + shift);
  Place y;
  for (int axis = 0; axis < to.rank(); ++axis) {
    const bool repeats = axis < shift || from[axis - shift] == 1 || (s.in(0).equal & bit(axis - shift)) != 0;
    if (repeats) y.equal |= bit(axis);
  }
  return y;
}

/// Inputs are concatenated along `axis`, or indexed along it (gather, scatter_add).
Place side_by_side(Step& s, int axis) {
  Place result;
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (!s.in(i).has_samples()) continue;
    if (result.has_samples() && !(result == s.in(i))) return s.mixes("its inputs have the samples along different axes");
    result = s.in(i);
  }
  if (!result.has_samples()) {
    result.equal = kAll;
    for (size_t i = 0; i < s.inputs(); ++i) result.equal &= s.in(i).equal;
    result.equal &= ~bit(axis);
    return result;
  }
  if (result.axis == axis) return s.mixes("it operates along the sample axis");
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (!s.in(i).has_samples() && s.shape(i)[result.axis] != 1 && (s.in(i).equal & bit(result.axis)) == 0)
      return s.mixes("it combines each sample with different constants");
  }
  return result;
}

/// The operator works along `axes` of its first input and keeps the others; `dropped`: its result lacks those axes.
Place along(Step& s, const std::set<int>& axes, bool dropped) {
  if (!s.others_shared()) return {};
  const auto shifted = [&](int axis) {
    return dropped ? axis - static_cast<int>(std::distance(axes.begin(), axes.lower_bound(axis))) : axis;
  };
  const Place& x = s.in(0);
  if (x.has_samples()) return axes.contains(x.axis) ? s.mixes("it operates along the sample axis") : moved(x, shifted(x.axis));
  Place y;
  for (int axis = 0; axis < s.shape(0).rank(); ++axis) {
    if (!axes.contains(axis) && (x.equal & bit(axis)) != 0) y.equal |= bit(shifted(axis));
  }
  return y;
}

Place reduced(Step& s) {
  const auto& attrs = s.node().attrs<ReduceAttrs>();
  const int rank = s.shape(0).rank();
  std::set<int> axes;
  for (const int64_t axis : attrs.axes) axes.insert(axis_from(axis, rank));
  for (int axis = 0; attrs.axes.empty() && axis < rank; ++axis) axes.insert(axis);
  return along(s, axes, !attrs.keepdim);
}

/// The operator's first axis counts samples; it may mix along the others.
Place by_first_axis(Step& s) {
  if (!s.any_samples()) return {};
  if (!s.others_shared()) return {};
  return s.in(0).axis == 0 ? s.in(0) : s.mixes("it operates along the sample axis");
}

/// Queries, keys and values have the samples along their first axis, in parts (windows) of one size. A bias is the same for all samples, or
/// has them too.
Place attended(Step& s) {
  if (!s.any_samples()) return {};
  const Place& q = s.in(0);
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (!s.given(i)) continue;
    if (s.in(i).has_samples() ? !(s.in(i) == q) || q.axis != 0 || q.outer != 1 : q.inner % s.shape(i)[0] != 0 && (s.in(i).equal & 1) == 0)
      return s.mixes("it reads the keys of other samples");
  }
  return q;
}

/// The operator must not change the size of the sample axis.
Place keeps_axis(Step& s) {
  const Place& x = s.in(0);
  if (!x.has_samples()) return x;
  return s.shape(0)[x.axis] == s.out_shape()[x.axis] ? x : s.mixes("it operates along the sample axis");
}

Place product(Step& s) {
  const auto& attrs = s.node().attrs<MatmulAttrs>();
  const int rank = s.out_shape().rank();
  Place result;
  for (size_t i : {0u, 1u}) {
    const Place& x = s.in(i);
    if (!x.has_samples()) continue;
    const int operand_rank = s.shape(i).rank();
    const bool transposed = i == 0 ? attrs.transpose_a : attrs.transpose_b;
    const int summed = (i == 0) != transposed ? operand_rank - 1 : operand_rank - 2;
    if (x.axis == summed) return s.mixes("it sums over the samples");
    const Place here = moved(x, x.axis < operand_rank - 2 ? x.axis + rank - operand_rank : i == 0 ? rank - 2 : rank - 1);
    if (result.has_samples() && !(result == here)) return s.mixes("it multiplies samples with each other");
    result = here;
  }
  // The leading axes of the other operand must be equal or absent.
  for (size_t i : {0u, 1u}) {
    const int axis = result.axis - rank + s.shape(i).rank();
    if (result.axis < rank - 2 && result.has_samples() && !s.in(i).has_samples() && axis >= 0 && s.shape(i).rank() > 2 &&
        (s.in(i).equal & bit(axis)) == 0) {
      return s.mixes("it multiplies each sample with different constants");
    }
  }
  return result;
}

Place recurrent(Step& s) {
  if (!s.any_samples()) return {};
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (!s.given(i)) continue;
    if (s.in(i).has_samples() && s.in(i).axis != 0) return s.mixes("its time steps are the samples");
    const bool state = i > 0 && s.shape(i).rank() == 2 && s.shape(i)[0] == s.shape(0)[0];
    if (s.in(0).has_samples() && state && !s.in(i).has_samples() && (s.in(i).equal & 1) == 0)
      return s.mixes("its initial state depends on the sample");
    if (!s.in(0).has_samples()) return s.mixes("its initial state depends on the sample");
  }
  return samples_on(0);
}

Place normalized(Step& s) {
  const int dims = static_cast<int>(s.node().attrs<LayerNormAttrs>().dims), rank = s.shape(0).rank();
  std::set<int> axes;
  for (int axis = rank - dims; axis < rank; ++axis) axes.insert(axis);
  return along(s, axes, false);
}

Place picked_rows(Step& s) {
  if (s.in(0).has_samples()) return s.mixes("its table depends on the sample");
  return s.in(1).has_samples() ? s.in(1) : Place{};
}

Place class_axis(Step& s) {
  const int rank = s.out_shape().rank(), axis = axis_from(s.node().attrs<OneHotAttrs>().axis, rank);
  if (!s.in(0).has_samples()) return {};
  return moved(s.in(0), s.in(0).axis + (axis <= s.in(0).axis ? 1 : 0));
}

using Rule = Place (*)(Step&);
const std::map<std::string_view, Rule>& rules() {
  static const std::map<std::string_view, Rule> all{
      {"reshape", reshaped},
      {"permute", permuted},
      {"broadcast_to", broadcasted},
      {"concat", [](Step& s) { return side_by_side(s, axis_from(s.node().attrs<ConcatAttrs>().axis, s.out_shape().rank())); }},
      {"gather", [](Step& s) { return side_by_side(s, axis_from(s.node().attrs<GatherAttrs>().axis, s.out_shape().rank())); }},
      {"scatter_add", [](Step& s) { return side_by_side(s, axis_from(s.node().attrs<ScatterAddAttrs>().axis, s.out_shape().rank())); }},
      {"slice", keeps_axis},
      {"pad", keeps_axis},
      {"resize", by_first_axis},
      {"sum", reduced},
      {"mean", reduced},
      {"amax", reduced},
      {"amin", reduced},
      {"argmax",
       [](Step& s) {
         const auto& attrs = s.node().attrs<ArgmaxAttrs>();
         return along(s, {axis_from(attrs.axis, s.shape(0).rank())}, !attrs.keepdim);
       }},
      {"topk", [](Step& s) { return along(s, {axis_from(s.node().attrs<TopkAttrs>().axis, s.shape(0).rank())}, false); }},
      {"softmax", [](Step& s) { return along(s, {axis_from(s.node().attrs<SoftmaxAttrs>().axis, s.shape(0).rank())}, false); }},
      {"log_softmax", [](Step& s) { return along(s, {axis_from(s.node().attrs<SoftmaxAttrs>().axis, s.shape(0).rank())}, false); }},
      {"conv2d", by_first_axis},
      {"conv2d_backward_data", by_first_axis},
      {"conv3d", by_first_axis},
      {"max_pool2d", by_first_axis},
      {"avg_pool2d", by_first_axis},
      {"adaptive_avg_pool2d", by_first_axis},
      {"adaptive_max_pool2d", by_first_axis},
      {"group_norm", by_first_axis},
      {"batch_norm_inference", [](Step& s) { return along(s, {1}, false); }},
      {"layer_norm", normalized},
      {"linear", [](Step& s) { return along(s, {s.shape(0).rank() - 1}, false); }},
      {"matmul", product},
      {"attention", attended},
      {"embedding", picked_rows},
      {"one_hot", class_axis},
      {"lstm", recurrent},
      {"gru", recurrent},
      {"rnn", recurrent},
      {"full", [](Step&) { return Place{.equal = kAll}; }},
      {"cast", elementwise},
      {"reorder", elementwise},
      {"reduce_precision", elementwise},
      {"quantize", elementwise},
      {"dequantize", elementwise},
      {"lookup", elementwise},
  };
  return all;
}

std::string name_of(const Node& node) { return cat(node.op->name, node.path.empty() ? "" : cat(" at ", node.path)); }

}  // namespace

std::string find_mixed_samples(const Graph& graph, int64_t samples) {
  std::map<ValueId, Place> places;
  for (const ValueId id : graph.inputs()) places[id] = graph.value(id).role == ValueRole::kInput ? samples_on(0) : Place{};
  for (const Node& node : graph.nodes()) {
    Step step(graph, node, places, samples);
    const auto rule = rules().find(node.op->name);
    Place result;
    if (rule != rules().end()) {
      result = rule->second(step);
    } else if (find_elementwise(node.op->name) != nullptr) {
      result = elementwise(step);
    } else if (step.any_samples()) {
      step.mixes("it may mix samples");
    }
    if (!step.mixing_reason.empty()) return cat(name_of(node), ": ", step.mixing_reason);
    for (const ValueId id : node.outputs) places[id] = result;
  }
  for (const auto& [name, id] : graph.outputs()) {
    const Place& place = places.at(id);
    if (!place.has_samples()) return cat("the output '", name, "' is the same for all samples");
    if (!(place == samples_on(0))) return cat("the output '", name, "' ", graph.type(id).shape, " does not have one row for each sample");
  }
  return "";
}

}  // namespace galley::onnx_import
