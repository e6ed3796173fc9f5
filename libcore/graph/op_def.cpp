#include "libcore/graph/op_def.h"

#include <map>
#include <mutex>
#include <shared_mutex>

namespace galley {
namespace {
struct OpStore {
  std::shared_mutex mutex;
  std::vector<const OpDef*> list;
  std::map<std::string_view, const OpDef*> by_name;
};
OpStore& store() {
  static OpStore ops;
  return ops;
}
}  // namespace

void register_ops(std::span<const OpDef* const> ops) {
  const std::unique_lock lock(store().mutex);
  for (const OpDef* op : ops) {
    GALLEY_ASSERT(op->infer != nullptr, op->name, " has no shape rule");
    GALLEY_ASSERT(store().by_name.emplace(op->name, op).second, "two operators have the name ", op->name);
    store().list.push_back(op);
  }
}

const OpDef* find_op_or_null(std::string_view name) {
  const std::shared_lock lock(store().mutex);
  const auto found = store().by_name.find(name);
  return found == store().by_name.end() ? nullptr : found->second;
}

const OpDef& find_op(std::string_view name) {
  const OpDef* op = find_op_or_null(name);
  GALLEY_ASSERT(op != nullptr, "there is no operator ", name);
  return *op;
}

const OpDef& family_of(const OpDef& op) { return op.variant_of.empty() ? op : find_op(op.variant_of); }

std::vector<const OpDef*> all_ops() {
  const std::shared_lock lock(store().mutex);
  return store().list;
}

Cost cost_of(const OpDef& op, const OpContext& context) {
  Cost cost;
  if (op.cost != nullptr) {
    cost = op.cost(context);
    const bool low = context.has(0) && (context.in(0).dtype == DType::kBF16 || context.in(0).dtype == DType::kF16);
    if (op.precision == PrecisionRule::kLow && low && cost.dtype == DType::kF32)
      cost.dtype = DType::kBF16;  // which stands for both types of 16 bits
    return cost;
  }
  if (op.view()) return cost;
  for (const TensorType* type : context.inputs) cost.bytes_read += type ? static_cast<double>(type->bytes()) : 0;
  for (const TensorType* type : context.outputs) cost.bytes_written += type ? static_cast<double>(type->bytes()) : 0;
  return cost;
}

}  // namespace galley
