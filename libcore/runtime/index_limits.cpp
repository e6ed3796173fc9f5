#include "libcore/runtime/index_limits.h"

#include <algorithm>
#include <optional>
#include <span>

#include "libcore/base/error.h"

namespace galley {
namespace {

/// The first value that is not in 0 to count - 1.
template <class T>
std::optional<int64_t> outside(const Tensor& values, int64_t count) {
  const std::span<const T> all(values.data_as<T>(), static_cast<size_t>(values.shape().elements()));
  const auto found = std::find_if(all.begin(), all.end(), [count](T value) { return value < 0 || value >= count; });
  return found == all.end() ? std::nullopt : std::optional<int64_t>(*found);
}
std::optional<int64_t> index_outside(const Tensor& values, int64_t count) {
  switch (values.dtype()) {
    case DType::kI64: return outside<int64_t>(values, count);
    case DType::kI32: return outside<int32_t>(values, count);
    default: return std::nullopt;  // no fields have other integers
  }
}

}  // namespace

IndexLimits::IndexLimits(const Program& program) {
  const Graph& graph = program.graph();
  for (const Step& step : program.steps()) {
    const Node& node = graph.nodes()[static_cast<size_t>(step.node)];
    if (node.op->index_count == nullptr) continue;
    const ValueId id = node.input(static_cast<size_t>(node.op->indices));
    const MemorySlot* place = id == kNoValue ? nullptr : &program.memory().values[static_cast<size_t>(id)];
    if (place == nullptr || place->region != MemorySlot::Region::kNamed || graph.value(place->named).role != ValueRole::kInput) continue;
    limits_[place->named].push_back({&node, node.op->index_count(context_of(graph, node))});
  }
}

void IndexLimits::check(ValueId input, const Tensor& values) const {
  const auto found = limits_.find(input);
  if (found == limits_.end()) return;
  for (const Limit& limit : found->second) {
    if (const std::optional<int64_t> index = index_outside(values, limit.count))
      throw Error(ErrorCode::kInput, cat("[", limit.node->op->name, "] index ", *index, " is outside the table of ", limit.count, " rows"))
          .context(cat(" at ", limit.node->path, " (", limit.node->op->name, ")"));
  }
}

}  // namespace galley
