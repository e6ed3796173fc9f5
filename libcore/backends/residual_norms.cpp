#include "libcore/backends/residual_norms.h"

#include <algorithm>
#include <utility>

#include "libcore/ops/binary.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/rewritten.h"
#include "libcore/ops/rules.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

using Types = std::vector<TensorType>;

/// Of a norm of the sum of inputs 0 and 1, and of the sum.
Types infer_norm_of_sum(const OpContext& c, const OpDef& norm, const Options& attrs, bool keep_sum) {
  check_like(c.in(1), "residual", c.in(0), "x");
  std::vector<const TensorType*> inputs{&c.in(0)};
  for (size_t i = 2; i < c.inputs.size(); ++i) inputs.push_back(c.inputs[i]);
  Types types = infer_part(norm, attrs, std::move(inputs));
  if (keep_sum) types.push_back(c.in(0));
  return types;
}
Types infer_add_layer_norm(const OpContext& c) {
  const auto& attrs = c.attrs<AddLayerNormAttrs>();
  return infer_norm_of_sum(c, layer_norm_op(), attrs.norm, attrs.keep_sum);
}
Types infer_add_rms_norm(const OpContext& c) {
  const auto& attrs = c.attrs<AddRmsNormAttrs>();
  return infer_norm_of_sum(c, rms_norm_op(), attrs.norm, attrs.keep_sum);
}

/// Of a backward operator and its last input, an array like input 0, the gradient.
Types infer_with_addend(const OpContext& c, const OpDef& backward) {
  const int addend = static_cast<int>(backward.inputs.size());
  check_like(c.in(addend), "addend", c.in(0), "grad");
  return infer_part(backward, *c.attributes, {c.inputs.begin(), c.inputs.begin() + addend});
}
Types infer_layer_norm_backward_add(const OpContext& c) { return infer_with_addend(c, layer_norm_backward_op()); }
Types infer_rms_norm_backward_add(const OpContext& c) { return infer_with_addend(c, rms_norm_backward_op()); }
Types infer_add_batch_norm_backward(const OpContext& c) {
  GALLEY_CHECK(c.attrs<BatchNormBackwardAttrs>().residual && c.has(6), "a sum of gradients needs a residual and y");
  return infer_with_addend(c, batch_norm_backward_op());
}

Value input_of(Expansion& e, size_t i) { return e.has(i) ? e.in(i) : Value(); }
void set_all(Expansion& e, const std::vector<Value>& values) {
  for (size_t i = 0; i < values.size(); ++i) e.set(i, values[i]);
}

void define_add_layer_norm(Expansion& e) {
  const auto& attrs = e.attrs<AddLayerNormAttrs>();
  const Value sum = add(e.in(0), e.in(1));
  const LayerNorm made = layer_norm(sum, input_of(e, 2), input_of(e, 3), attrs.norm);
  set_all(e, {made.y, made.mean, made.rstd});
  if (attrs.keep_sum) e.set(3, sum);
}
void define_add_rms_norm(Expansion& e) {
  const auto& attrs = e.attrs<AddRmsNormAttrs>();
  const Value sum = add(e.in(0), e.in(1));
  const RmsNorm made = rms_norm(sum, input_of(e, 2), attrs.norm);
  set_all(e, {made.y, made.rstd});
  if (attrs.keep_sum) e.set(2, sum);
}
void define_layer_norm_backward_add(Expansion& e) {
  std::vector<Value> made = layer_norm_backward(e.in(0), e.in(1), e.in(2), e.in(3), input_of(e, 4), e.attrs<LayerNormBackwardAttrs>());
  made[0] = add(made[0], e.in(5));
  set_all(e, made);
}
void define_rms_norm_backward_add(Expansion& e) {
  std::vector<Value> made = rms_norm_backward(e.in(0), e.in(1), e.in(2), input_of(e, 3), e.attrs<RmsNormAttrs>());
  made[0] = add(made[0], e.in(4));
  set_all(e, made);
}
void define_add_batch_norm_backward(Expansion& e) {
  set_all(e, batch_norm_backward(add(e.in(0), e.in(7)), e.in(1), e.in(2), e.in(3), input_of(e, 4), input_of(e, 5), e.in(6),
                                 e.attrs<BatchNormBackwardAttrs>()));
}

/// A backward operator with one more input, whose memory `output` may take.
OpDef with_addend(const OpDef& backward, int output, std::string_view name, std::string_view doc) {
  OpDef def = rewritten_from(backward, name, doc);
  def.may_reuse = backward.may_reuse;
  def.may_reuse.push_back({output, static_cast<int>(def.inputs.size())});
  def.inputs.push_back("addend");
  return def;
}
/// A norm of a sum of two inputs. y and the sum may take their memory, also one each.
OpDef of_sum(const OpDef& norm, std::string_view name, std::string_view doc) {
  OpDef def = rewritten_from(norm, name, doc);
  def.inputs.insert(def.inputs.begin() + 1, "residual");
  const int sum = static_cast<int>(def.outputs.size());
  def.outputs.push_back("sum");
  def.may_reuse = {{0, 0}, {0, 1}, {sum, 1}, {sum, 0}};
  return def;
}

}  // namespace

void AddLayerNormAttrs::options(OptionVisitor& v) {
  norm.options(v);
  v.option({.name = "keep_sum", .doc = "whether the sum is an output"}, keep_sum);
}
void AddRmsNormAttrs::options(OptionVisitor& v) {
  norm.options(v);
  v.option({.name = "keep_sum", .doc = "whether the sum is an output"}, keep_sum);
}

const OpDef& add_layer_norm_op() {
  static const OpDef def = [] {
    OpDef made = of_sum(layer_norm_op(), "add_layer_norm", "layer_norm of the sum of two arrays");
    made.make_attrs = make_options<AddLayerNormAttrs>;
    made.infer = infer_add_layer_norm;
    made.definition = define_add_layer_norm;
    return made;
  }();
  return def;
}
const OpDef& add_rms_norm_op() {
  static const OpDef def = [] {
    OpDef made = of_sum(rms_norm_op(), "add_rms_norm", "rms_norm of the sum of two arrays");
    made.make_attrs = make_options<AddRmsNormAttrs>;
    made.infer = infer_add_rms_norm;
    made.definition = define_add_rms_norm;
    return made;
  }();
  return def;
}
const OpDef& layer_norm_backward_add_op() {
  static const OpDef def = [] {
    OpDef made = with_addend(layer_norm_backward_op(), 0, "layer_norm_backward_add", "gradients of layer_norm, and a sum with dx");
    made.infer = infer_layer_norm_backward_add;
    made.definition = define_layer_norm_backward_add;
    return made;
  }();
  return def;
}
const OpDef& rms_norm_backward_add_op() {
  static const OpDef def = [] {
    OpDef made = with_addend(rms_norm_backward_op(), 0, "rms_norm_backward_add", "gradients of rms_norm, and a sum with dx");
    made.infer = infer_rms_norm_backward_add;
    made.definition = define_rms_norm_backward_add;
    return made;
  }();
  return def;
}
const OpDef& add_batch_norm_backward_op() {
  static const OpDef def = [] {
    OpDef made =
        with_addend(batch_norm_backward_op(), 3, "add_batch_norm_backward", "gradients of batch_norm, of the sum of two gradients");
    made.infer = infer_add_batch_norm_backward;
    made.definition = define_add_batch_norm_backward;
    return made;
  }();
  return def;
}

void ensure_residual_norm_operators() {
  ensure_registered({&add_layer_norm_op(), &add_rms_norm_op(), &layer_norm_backward_add_op(), &rms_norm_backward_add_op(),
                     &add_batch_norm_backward_op()});
}

std::vector<Value> add_layer_norm(Value x, Value residual, Value gamma, Value beta, const AddLayerNormAttrs& attrs) {
  return emit_all(add_layer_norm_op(), std::make_unique<AddLayerNormAttrs>(attrs), std::vector<Value>{x, residual, gamma, beta});
}
std::vector<Value> add_rms_norm(Value x, Value residual, Value weight, const AddRmsNormAttrs& attrs) {
  return emit_all(add_rms_norm_op(), std::make_unique<AddRmsNormAttrs>(attrs), std::vector<Value>{x, residual, weight});
}
std::vector<Value> layer_norm_backward_add(Value grad, Value x, Value mean, Value rstd, Value gamma, Value addend,
                                           const LayerNormBackwardAttrs& attrs) {
  return emit_all(layer_norm_backward_add_op(), std::make_unique<LayerNormBackwardAttrs>(attrs),
                  std::vector<Value>{grad, x, mean, rstd, gamma, addend});
}
std::vector<Value> rms_norm_backward_add(Value grad, Value x, Value rstd, Value weight, Value addend, const RmsNormAttrs& attrs) {
  return emit_all(rms_norm_backward_add_op(), std::make_unique<RmsNormAttrs>(attrs), std::vector<Value>{grad, x, rstd, weight, addend});
}
std::vector<Value> add_batch_norm_backward(const std::vector<Value>& inputs, const BatchNormBackwardAttrs& attrs) {
  return emit_all(add_batch_norm_backward_op(), std::make_unique<BatchNormBackwardAttrs>(attrs), inputs);
}

namespace {

/// The walk over the nodes of a graph.
class ResidualNorms {
 public:
  ResidualNorms(Graph& graph, const Target& target) : graph_(graph), target_(target), fuser_(graph) {}

  PassReport run() {
    for (size_t n = 0; n < fuser_.size(); ++n) {
      if (fuser_.gone(n)) continue;
      const Node node = fuser_.node(n);
      if (node.is("layer_norm")) join_sum(n, attrs_of_sum<AddLayerNormAttrs, LayerNormAttrs>(node), add_layer_norm_op());
      if (node.is("rms_norm")) join_sum(n, attrs_of_sum<AddRmsNormAttrs, RmsNormAttrs>(node), add_rms_norm_op());
      if (node.is("batch_norm_backward")) join_gradients(n);
      if (node.is("add") && node.phase == Phase::kBackward) join_addend(n);
    }
    fuser_.finish();
    return std::move(fuser_.report);
  }

 private:
  /// The node that adds two arrays of one type to `sum`; -1: there is none.
  int sum_of(ValueId sum) const {
    const int n = fuser_.producer(sum);
    if (n < 0 || fuser_.gone(static_cast<size_t>(n))) return -1;
    const Node& node = fuser_.node(static_cast<size_t>(n));
    return node.is("add") && adds_alike(graph_, node) ? n : -1;
  }
  bool has_kernel(const Node& node) const { return target_.has_kernel(graph_, node, Stage::kBeforeLayout); }

  template <class Attrs, class NormAttrs>
  std::shared_ptr<Attrs> attrs_of_sum(const Node& norm) const {
    auto attrs = std::make_shared<Attrs>();
    attrs->norm = norm.attrs<NormAttrs>();
    attrs->keep_sum = !fuser_.reason_against(norm.inputs[0]).empty();
    return attrs;
  }

  /// add + norm, whoever else reads the sum.
  template <class Attrs>
  void join_sum(size_t n, std::shared_ptr<Attrs> attrs, const OpDef& op) {
    Node merged = fuser_.node(n);
    const int a = sum_of(merged.inputs[0]);
    if (a < 0) return;
    const Node& sum = fuser_.node(static_cast<size_t>(a));
    if (sum.phase != merged.phase) return;  // the backward pass computes the norm again, and may not keep the sum
    if (attrs->keep_sum) merged.outputs.push_back(merged.inputs[0]);
    merged.inputs[0] = sum.inputs[1];
    merged.inputs.insert(merged.inputs.begin(), sum.inputs[0]);
    merged.op = &op;
    merged.attributes = attrs;
    if (!has_kernel(merged)) return;
    fuser_.merge(n, static_cast<size_t>(a), std::move(merged), cat("add + ", op.variant_of));
  }

  /// batch_norm_backward of the sum of two gradients.
  void join_gradients(size_t n) {
    Node merged = fuser_.node(n);
    const int a = sum_of(merged.inputs[0]);
    if (a < 0 || !fuser_.reason_against(merged.inputs[0]).empty() || merged.outputs.size() < 4 || merged.input(6) == kNoValue) return;
    const Node& sum = fuser_.node(static_cast<size_t>(a));
    merged.op = &add_batch_norm_backward_op();
    merged.inputs[0] = sum.inputs[0];
    merged.inputs.resize(7, kNoValue);
    merged.inputs.push_back(sum.inputs[1]);
    if (has_kernel(merged)) fuser_.merge(n, static_cast<size_t>(a), std::move(merged), "add + batch_norm_backward");
  }

  /// The sum of the gradient that a norm makes and another one.
  void join_addend(size_t n) {
    const Node sum = fuser_.node(n);
    if (!adds_alike(graph_, sum) || sum.inputs[0] == sum.inputs[1]) return;
    for (const size_t side : {0u, 1u}) {
      const ValueId gradient = sum.inputs[side];
      const int made = fuser_.producer(gradient);
      if (made < 0 || fuser_.gone(static_cast<size_t>(made)) || !fuser_.reason_against(gradient).empty()) continue;
      Node merged = fuser_.node(static_cast<size_t>(made));
      const OpDef* op = merged.is("layer_norm_backward") ? &layer_norm_backward_add_op()
                        : merged.is("rms_norm_backward") ? &rms_norm_backward_add_op()
                                                         : nullptr;
      if (op == nullptr || merged.outputs[0] != gradient || fuser_.producer(sum.inputs[1 - side]) >= made) continue;
      merged.op = op;
      merged.inputs.resize(op->inputs.size() - 1, kNoValue);
      merged.inputs.push_back(sum.inputs[1 - side]);
      if (!has_kernel(merged)) continue;
      return fuser_.merge_into(static_cast<size_t>(made), n, std::move(merged), cat(op->variant_of, " + add"));
    }
  }

  Graph& graph_;
  const Target& target_;
  Fuser fuser_;
};

}  // namespace

PassReport use_residual_norms(Graph& graph, const Target& target) { return ResidualNorms(graph, target).run(); }

}  // namespace galley
