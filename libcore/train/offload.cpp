#include "libcore/train/offload.h"

#include "libcore/runtime/program.h"

namespace galley {
namespace {

bool on_disk(const std::optional<OffloadPlace>& place) { return place && !place->host; }
bool on_host(const std::optional<OffloadPlace>& place) { return place && place->host; }

/// The place of an input that persists between steps.
std::optional<OffloadPlace> place_of(const OffloadSection& section, const ValueInfo& value) {
  switch (value.role) {
    case ValueRole::kParameter: return section.parameters;
    case ValueRole::kState: return value.name.ends_with(".grad") ? section.gradients : section.optimizer;
    default: return std::nullopt;
  }
}

}  // namespace

bool offloads_to_disk(const ShardingSection& sharding) {
  return sharding.offload &&
         (on_disk(sharding.offload->parameters) || on_disk(sharding.offload->gradients) || on_disk(sharding.offload->optimizer));
}

bool offloads_to_host(const ShardingSection& sharding) {
  return sharding.offload &&
         (on_host(sharding.offload->parameters) || on_host(sharding.offload->gradients) || on_host(sharding.offload->optimizer));
}

void place_on_host(const Graph& graph, ParameterStore& store, const OffloadSection& section) {
  for (const ValueId id : graph.inputs()) {
    const ValueInfo& value = graph.value(id);
    if (!on_host(place_of(section, value)) || store.has(value.name)) continue;
    const TensorType& type = value.type;
    store.adopt(value.name, Tensor(type.dtype, type.shape, type.format, Storage::allocate_host(type.bytes(), store.device())));
  }
}

bool Offload::is_offloaded(const ValueInfo& value) const { return on_disk(place_of(section_, value)); }

void Offload::place(const Graph& graph, ParameterStore& store) const {
  for (const ValueId id : graph.inputs()) {
    const ValueInfo& value = graph.value(id);
    if (is_offloaded(value) && !store.has(value.name))
      store.adopt(value.name, Tensor(value.type.dtype, value.type.shape, value.type.format, disk_));
  }
  disk_.release();
}

void Offload::used(int64_t bytes) {
  if (used_.fetch_add(bytes) + bytes < kOffloadWindow) return;
  used_ = 0;
  disk_.release();
}

void Offload::before(const Program& program, const Step& step, Stream& stream) {
  if (inner_ != nullptr) inner_->before(program, step, stream);
}

void Offload::after(const Program& program, const Step& step, const NodeOutputs& outputs) {
  if (inner_ != nullptr) inner_->after(program, step, outputs);
  count(program, step);
}

void Offload::count(const Program& program, const Step& step) {
  const Graph& graph = program.graph();
  int64_t bytes = 0;
  for (const ValueId id : graph.nodes()[static_cast<size_t>(step.node)].inputs) {
    if (id != kNoValue && is_offloaded(graph.value(id))) bytes += graph.type(id).bytes();
  }
  used(bytes);
}

void Offload::after_run(const Program& program) {
  if (inner_ != nullptr) inner_->after_run(program);
  disk_.release();
  used_ = 0;
}

void Offload::communicated(const std::string& what, int64_t begin_ns, int64_t end_ns) {
  if (inner_ != nullptr) inner_->communicated(what, begin_ns, end_ns);
}

void Offload::fetched(int64_t begin_ns, int64_t end_ns) {
  if (inner_ != nullptr) inner_->fetched(begin_ns, end_ns);
}

}  // namespace galley
