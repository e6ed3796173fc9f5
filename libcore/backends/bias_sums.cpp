#include "libcore/backends/bias_sums.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "libcore/backends/residual_norms.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/elementwise_chain.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/rewritten.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr int kAddend = 5;  // of layer_norm_backward_sums

/// The type of the sums of such rows.
TensorType sums_of_rows(const TensorType& dx) {
  TensorType sums;
  sums.dtype = dx.dtype;
  sums.shape = Shape{dx.shape[-1]};
  return sums;
}
Value sum_of_rows(Value dx) {
  std::vector<int64_t> axes(static_cast<size_t>(dx.shape().rank() - 1));
  std::iota(axes.begin(), axes.end(), 0);
  return axes.empty() ? dx : sum(dx, axes);
}

std::vector<TensorType> infer_layer_norm_sums(const OpContext& c) {
  GALLEY_CHECK(c.attrs<LayerNormBackwardAttrs>().dims == 1, "the sums are those of a norm of the last dimension");
  if (c.has(kAddend)) check_like(c.in(kAddend), "addend", c.in(0), "grad");
  std::vector<TensorType> types =
      infer_part(layer_norm_backward_op(), *c.attributes, {&c.in(0), &c.in(1), &c.in(2), &c.in(3), given(c, 4)});
  types.push_back(sums_of_rows(types[0]));
  return types;
}
std::vector<TensorType> infer_gelu_sums(const OpContext& c) {
  std::vector<TensorType> types = infer_part(find_op("gelu_backward"), *c.attributes, {&c.in(0), &c.in(1)});
  GALLEY_CHECK(types[0].shape.rank() >= 1, "the sums are those of rows");
  types.push_back(sums_of_rows(types[0]));
  return types;
}

void define_layer_norm_sums(Expansion& e) {
  std::vector<Value> made =
      layer_norm_backward(e.in(0), e.in(1), e.in(2), e.in(3), e.has(4) ? e.in(4) : Value(), e.attrs<LayerNormBackwardAttrs>());
  if (e.has(kAddend)) made[0] = add(made[0], e.in(kAddend));
  made.push_back(sum_of_rows(made[0]));
  for (size_t i = 0; i < made.size(); ++i) e.set(i, made[i]);
}
void define_gelu_sums(Expansion& e) {
  const Value dx = gelu_backward(e.in(0), e.in(1), e.attrs<GeluAttrs>());
  e.set(0, dx);
  e.set(1, sum_of_rows(dx));
}

OpDef with_sums(const OpDef& op, std::string_view name, std::string_view doc) {
  OpDef def = rewritten_from(op, name, doc);
  def.outputs.push_back(Port::statistics("sums"));
  def.may_reuse = op.may_reuse;
  return def;
}

}  // namespace

const OpDef& layer_norm_backward_sums_op() {
  static const OpDef def = [] {
    OpDef made = with_sums(layer_norm_backward_op(), "layer_norm_backward_sums", "gradients of layer_norm, and sums of dx over rows");
    made.inputs.push_back("addend?");
    made.may_reuse.push_back({0, kAddend});
    made.infer = infer_layer_norm_sums;
    made.definition = define_layer_norm_sums;
    return made;
  }();
  return def;
}
const OpDef& gelu_backward_sums_op() {
  static const OpDef def = [] {
    ensure_ops_registered();
    OpDef made = with_sums(find_op("gelu_backward"), "gelu_backward_sums", "gradient of gelu, and its sums over rows");
    made.layout = {FormatRule::kContiguous};
    made.infer = infer_gelu_sums;
    made.definition = define_gelu_sums;
    return made;
  }();
  return def;
}

void ensure_bias_sum_operators() { ensure_registered({&layer_norm_backward_sums_op(), &gelu_backward_sums_op()}); }

std::vector<Value> layer_norm_backward_sums(Value grad, Value x, Value mean, Value rstd, Value gamma, Value addend) {
  return emit_all(layer_norm_backward_sums_op(), std::make_unique<LayerNormBackwardAttrs>(),
                  std::vector<Value>{grad, x, mean, rstd, gamma, addend});
}
std::vector<Value> gelu_backward_sums(Value grad, Value x, const GeluAttrs& attrs) {
  return emit_all(gelu_backward_sums_op(), std::make_unique<GeluAttrs>(attrs), std::vector<Value>{grad, x});
}

namespace {

/// The walk over the sums of a graph.
class BiasSums {
 public:
  BiasSums(Graph& graph, const Target& target) : graph_(graph), target_(target), producers_(graph.producers()) {}

  PassReport run() {
    std::vector<bool> gone(graph_.nodes().size());
    for (size_t n = 0; n < gone.size(); ++n) gone[n] = graph_.nodes()[n].is("sum") && join(graph_.nodes()[n]);
    std::deque<Node> kept;
    for (size_t n = 0; n < gone.size(); ++n)
      if (!gone[n]) kept.push_back(std::move(graph_.nodes()[n]));
    graph_.set_nodes(std::move(kept));
    if (!report_.done.empty()) graph_.remove_dead_nodes();  // reshapes that only sums read
    return std::move(report_);
  }

 private:
  Node* maker_of(ValueId id) {
    const int n = id == kNoValue ? -1 : producers_[static_cast<size_t>(id)];
    return n < 0 ? nullptr : &graph_.nodes()[static_cast<size_t>(n)];
  }
  /// Whether the sum is over all dimensions but the last.
  bool adds_rows(const Node& sum) const {
    const TensorType& x = graph_.type(sum.inputs[0]);
    const auto& attrs = sum.attrs<ReduceAttrs>();
    const std::vector<int> axes = axes_of(attrs.axes, x);
    return x.shape.rank() >= 2 && !attrs.keepdim && static_cast<int>(axes.size()) == x.shape.rank() - 1 &&
           axes.back() == x.shape.rank() - 2;
  }
  /// What `made` is with sums; no operator: nothing.
  Node with_sums(const Node& made) {
    Node joined = made;
    joined.op = nullptr;
    if (made.is("layer_norm_backward") || made.is("layer_norm_backward_add")) {
      if (made.outputs.size() != 3 || made.attrs<LayerNormBackwardAttrs>().dims != 1) return joined;
      joined.op = &layer_norm_backward_sums_op();
      joined.inputs.resize(kAddend, kNoValue);
      if (made.input(kAddend) != kNoValue) joined.inputs.push_back(made.input(kAddend));
    } else if (made.is("gelu_backward")) {
      const Node* before = maker_of(made.inputs[0]);
      bool in_chain = before != nullptr && is_chain_step(*before->op);
      for (const Node& reader : graph_.nodes())
        in_chain = in_chain || (is_chain_step(*reader.op) && std::count(reader.inputs.begin(), reader.inputs.end(), made.outputs[0]) > 0);
      if (!in_chain) joined.op = &gelu_backward_sums_op();
    }
    return joined;
  }
  /// Lets the node that makes what `sum` adds up make its result.
  bool join(const Node& sum) {
    if (!adds_rows(sum)) return false;
    const int64_t columns = graph_.type(sum.inputs[0]).shape[-1];
    ValueId added = sum.inputs[0];
    Node* made = maker_of(added);
    while (made != nullptr && made->is("reshape") && graph_.type(made->inputs[0]).shape.rank() > 0 &&
           graph_.type(made->inputs[0]).shape[-1] == columns) {
      added = made->inputs[0];
      made = maker_of(added);
    }
    if (made == nullptr || made->outputs[0] != added || made->phase != sum.phase) return false;
    Node joined = with_sums(*made);
    if (joined.op == nullptr) return false;
    joined.outputs.push_back(sum.outputs[0]);
    if (!target_.has_kernel(graph_, joined, Stage::kBeforeLayout)) return false;
    report_.done.push_back(cat(made->path, ": ", made->op->name, " + sum"));
    *made = std::move(joined);
    return true;
  }

  Graph& graph_;
  const Target& target_;
  std::vector<int> producers_;
  PassReport report_;
};

}  // namespace

PassReport use_bias_sums(Graph& graph, const Target& target) { return BiasSums(graph, target).run(); }

}  // namespace galley
