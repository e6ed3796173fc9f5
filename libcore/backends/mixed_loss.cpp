#include "libcore/backends/mixed_loss.h"

#include "libcore/ops/convert.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/rewritten.h"
#include "libcore/ops/rules.h"
#include "libcore/passes/fuser.h"

namespace galley {
namespace {

bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

/// Checks the logits, input `place`, and gives their type in f32.
TensorType logits_in_f32(const OpContext& c, int place) {
  TensorType type = c.in(place);
  GALLEY_CHECK(is_half(type.dtype), "logits must be bf16 or f16, not ", type);
  type.dtype = DType::kF32;
  return type;
}

std::vector<TensorType> infer_loss(const OpContext& c) {
  const TensorType logits = logits_in_f32(c, 0);
  return infer_part(cross_entropy_op(), c.attrs<CrossEntropyAttrs>(), {&logits, &c.in(1), given(c, 2)});
}
std::vector<TensorType> infer_backward(const OpContext& c) {
  const TensorType logits = logits_in_f32(c, 1);
  TensorType gradient =
      infer_part(cross_entropy_backward_op(), c.attrs<CrossEntropyAttrs>(), {&c.in(0), &logits, &c.in(2), given(c, 3)}).front();
  gradient.dtype = c.in(1).dtype;
  return {gradient};
}

Value class_weight_of(Expansion& e, size_t i) { return e.has(i) ? e.in(i) : Value(); }
void define_loss(Expansion& e) { e.set(0, cross_entropy(e.in(0), e.in(1), class_weight_of(e, 2), e.attrs<CrossEntropyAttrs>())); }
void define_backward(Expansion& e) {
  e.set(0, cross_entropy_backward(e.in(0), e.in(1), e.in(2), class_weight_of(e, 3), e.attrs<CrossEntropyAttrs>()));
}

}  // namespace

const OpDef& mixed_cross_entropy_op() {
  static const OpDef def{.name = "mixed_cross_entropy",
                         .doc = "cross_entropy in f32 of logits in bf16 or f16",
                         .inputs = {"logits", Port::index("target"), Port::statistics("class_weight?")},
                         .outputs = {"loss"},
                         .make_attrs = make_options<CrossEntropyAttrs>,
                         .infer = infer_loss,
                         .no_gradient = kAfterDifferentiation,
                         .cost = cross_entropy_op().cost,
                         .layout = {FormatRule::kContiguous},
                         .definition = define_loss,
                         .index_range = cross_entropy_op().index_range,
                         .indices = cross_entropy_op().indices,
                         .made_by_rewrite = true,
                         .variant_of = "cross_entropy"};
  return def;
}
const OpDef& mixed_cross_entropy_backward_op() {
  static const OpDef def{.name = "mixed_cross_entropy_backward",
                         .doc = "gradient of mixed_cross_entropy for the logits",
                         .inputs = {"grad", "logits", Port::index("target"), Port::statistics("class_weight?")},
                         .outputs = {"dlogits"},
                         .make_attrs = make_options<CrossEntropyAttrs>,
                         .infer = infer_backward,
                         .no_gradient = kAfterDifferentiation,
                         .cost = cross_entropy_backward_op().cost,
                         .layout = {FormatRule::kContiguous},
                         .may_reuse = {{0, 1}},
                         .definition = define_backward,
                         .made_by_rewrite = true,
                         .variant_of = "cross_entropy_backward"};
  return def;
}

void ensure_mixed_loss_operators() { ensure_registered({&mixed_cross_entropy_op(), &mixed_cross_entropy_backward_op()}); }

Value mixed_cross_entropy(Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs) {
  return emit_all(mixed_cross_entropy_op(), std::make_unique<CrossEntropyAttrs>(attrs),
                  std::vector<Value>{logits, target, class_weight})[0];
}
Value mixed_cross_entropy_backward(Value grad, Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs) {
  return emit_all(mixed_cross_entropy_backward_op(), std::make_unique<CrossEntropyAttrs>(attrs),
                  std::vector<Value>{grad, logits, target, class_weight})[0];
}

PassReport use_mixed_losses(Graph& graph, const Target& target) {
  Fuser fuser(graph);
  // The logits before their cast to f32.
  const auto uncast = [&](ValueId id) {
    const int n = fuser.producer(id);
    if (n < 0 || !fuser.node(static_cast<size_t>(n)).is("cast")) return kNoValue;
    const ValueId from = fuser.node(static_cast<size_t>(n)).inputs[0];
    return is_half(graph.type(from).dtype) && graph.type(id).dtype == DType::kF32 ? from : kNoValue;
  };
  for (size_t n = 0; n < fuser.size(); ++n) {
    Node merged = fuser.node(n);
    if (fuser.gone(n)) continue;
    if (merged.is("cross_entropy")) {
      const ValueId logits = uncast(merged.inputs[0]);
      merged.op = &mixed_cross_entropy_op();
      merged.inputs[0] = logits;
      if (logits == kNoValue || !target.has_kernel(graph, merged, Stage::kBeforeLayout)) continue;
      fuser.node(n) = merged;
      fuser.report.done.push_back(cat(merged.path, ": cast + cross_entropy"));
    } else if (merged.is("cast")) {  // of a gradient
      const int b = fuser.producer(merged.inputs[0]);
      if (b < 0 || !fuser.node(static_cast<size_t>(b)).is("cross_entropy_backward") || !fuser.reason_against(merged.inputs[0]).empty())
        continue;
      const Node backward = fuser.node(static_cast<size_t>(b));
      const ValueId logits = uncast(backward.inputs[1]);
      if (logits == kNoValue || graph.type(merged.outputs[0]).dtype != graph.type(logits).dtype) continue;
      const std::vector<ValueId> made = merged.outputs;
      merged = backward;
      merged.op = &mixed_cross_entropy_backward_op();
      merged.inputs[1] = logits;
      merged.outputs = made;
      if (!target.has_kernel(graph, merged, Stage::kBeforeLayout)) continue;
      fuser.merge_into(static_cast<size_t>(b), n, merged, "cross_entropy_backward + cast");
    }
  }
  fuser.finish();
  if (!fuser.report.done.empty()) graph.remove_dead_nodes();  // casts of logits
  return std::move(fuser.report);
}

}  // namespace galley
