#include "libcore/ops/rewritten.h"

#include <mutex>

#include "libcore/ops/registry.h"
#include "libcore/ops/rules.h"

namespace galley {

OpDef made_from(const OpDef& op, std::string_view name, std::string_view doc, std::string_view no_gradient) {
  // The number of fields, so that this does not compile after OpDef gets another one: it is copied below, or keeps its default. Not
  // copied are rules of this very operator (name to no_gradient, definition, cases), positions that operands may move away from
  // (may_reuse), and what is of integers and f8 (quantize to integer, exact_products, named_by_parts).
  [[maybe_unused]] const auto& [old_name, old_doc, inputs, outputs, make_attrs, infer, gradient, old_no_gradient, cost, place, work, layout,
                                precision, quantize, updates, gate, may_reuse, stops_gradient, has_effect, definition, quantizable,
                                integer_form, dynamic_form, f8_form, channel_scale, index_range, indices, integer, exact_products,
                                made_by_rewrite, variant_of, named_by_parts, cases, letters] = op;
  return {.name = name,
          .doc = doc,
          .inputs = op.inputs,
          .outputs = op.outputs,
          .make_attrs = op.make_attrs,
          .no_gradient = no_gradient,
          .cost = op.cost,
          .place = op.place,
          .work = op.work,
          .layout = op.layout,
          .precision = op.precision,
          .updates = op.updates,
          .gate = op.gate,
          .stops_gradient = op.stops_gradient,
          .has_effect = op.has_effect,
          .index_range = op.index_range,
          .indices = op.indices};
}

OpDef rewritten_from(const OpDef& op, std::string_view name, std::string_view doc) {
  OpDef made = made_from(op, name, doc, kAfterDifferentiation);
  made.made_by_rewrite = true;
  made.variant_of = op.name;
  return made;
}

void ensure_registered(std::initializer_list<const OpDef*> operators) {
  static std::mutex mutex;
  ensure_ops_registered();
  const std::lock_guard lock(mutex);
  std::vector<const OpDef*> missing;
  for (const OpDef* op : operators)
    if (find_op_or_null(op->name) != op) missing.push_back(op);
  register_ops(missing);
}

}  // namespace galley
