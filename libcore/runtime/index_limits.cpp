#include "libcore/runtime/index_limits.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

/// The first value that is not legal.
template <class T>
std::optional<int64_t> outside(const Tensor& values, const IndexRange& range) {
  const std::span<const T> all(values.data_as<T>(), static_cast<size_t>(values.shape().elements()));
  const int64_t ignored = range.ignored.value_or(0);  // 0 is legal
  const auto illegal = [&range, ignored](T value) { return ((value < 0) | (value >= range.count)) & (value != ignored); };
  std::atomic<bool> some = false;
  constexpr int64_t kGrain = int64_t{1} << 18;  // maps of labels have millions
  parallel_for(std::ssize(all), kGrain, [&](int64_t begin, int64_t end) {
    bool any = false;
    for (int64_t i = begin; i < end; ++i) any |= illegal(all[static_cast<size_t>(i)]);
    if (any) some = true;
  });
  if (!some) return std::nullopt;
  return *std::find_if(all.begin(), all.end(), illegal);
}
std::optional<int64_t> index_outside(const Tensor& values, const IndexRange& range) {
  switch (values.dtype()) {
    case DType::kI64: return outside<int64_t>(values, range);
    case DType::kI32: return outside<int32_t>(values, range);
    default: return std::nullopt;  // no fields have other integers
  }
}

}  // namespace

IndexLimits::IndexLimits(const Program& program) {
  const Graph& graph = program.graph();
  for (const Step& step : program.steps()) {
    const Node& node = graph.nodes()[static_cast<size_t>(step.node)];
    if (node.op->index_range == nullptr) continue;
    const ValueId id = node.input(static_cast<size_t>(node.op->indices));
    const MemorySlot* place = id == kNoValue ? nullptr : &program.memory().values[static_cast<size_t>(id)];
    if (place == nullptr || place->region != MemorySlot::Region::kNamed || graph.value(place->named).role != ValueRole::kInput) continue;
    const Limit limit{&node, node.op->index_range(context_of(graph, node))};
    std::vector<Limit>& limits = limits_[place->named];
    const auto same = [&](const Limit& other) {
      return other.range.count == limit.range.count && other.range.ignored == limit.range.ignored;
    };
    if (std::none_of(limits.begin(), limits.end(), same)) limits.push_back(limit);
  }
}

void IndexLimits::check(ValueId input, const Tensor& values) const {
  const auto found = limits_.find(input);
  if (found == limits_.end()) return;
  for (const Limit& limit : found->second) {
    const std::optional<int64_t> index = index_outside(values, limit.range);
    if (!index) continue;
    const OpDef& op = family_of(*limit.node->op);
    throw Error(ErrorCode::kInput, cat("[", op.name, "] ", op.inputs[static_cast<size_t>(op.indices)].name, " ", *index, " is outside the ",
                                       limit.range.count, " ", limit.range.of))
        .context(cat(" at ", limit.node->path, " (", op.name, ")"));
  }
}

}  // namespace galley
