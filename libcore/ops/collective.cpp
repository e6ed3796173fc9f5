#include "libcore/ops/collective.h"

#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kNoCollectiveGradient = "gradients are summed over ranks after differentiation";

std::vector<TensorType> infer_same(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype != DType::kBool && dtype_size(c.in(0).dtype) >= 2, "values of type ", c.in(0).dtype,
               " cannot be summed over ranks");
  TensorType y = c.in(0);
  y.format = {};
  return {y};
}

OpDef collective(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .make_attrs = make_options<CollectiveAttrs>,
          .infer = infer_same,
          .no_gradient = kNoCollectiveGradient,
          .layout = {.formats = FormatRule::kContiguous},
          .may_reuse = {{0, 0}},
          .has_effect = true};
}

}  // namespace

void CollectiveAttrs::options(OptionVisitor& v) { v.option({.name = "name", .doc = "the collective in messages"}, name); }

const OpDef& all_reduce_start_op() {
  static const OpDef def = collective("all_reduce_start", "starts the sum over ranks");
  return def;
}

const OpDef& all_reduce_wait_op() {
  static const OpDef def = collective("all_reduce_wait", "waits for the sum over ranks");
  return def;
}

namespace {
Value emit_collective(const OpDef& op, Value x, const std::string& name) {
  CollectiveAttrs attrs;
  attrs.name = name;
  return emit(op, {x}, attrs);
}
}  // namespace

Value all_reduce_start(Value x, const std::string& name) { return emit_collective(all_reduce_start_op(), x, name); }
Value all_reduce_wait(Value started, const std::string& name) { return emit_collective(all_reduce_wait_op(), started, name); }

OpTable collective_ops() { return {&all_reduce_start_op(), &all_reduce_wait_op()}; }

}  // namespace galley
